"""Hugging Face's folders: logits, old and new names, shards, processors, labels, and DINOv2."""

import json
import logging

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.conftest import TINY, randomise, shared
from tests.weights.peers import (
    NAMES,
    assert_near,
    assert_same_tensors,
    classifier,
    edit_json,
    hugging_vit,
    images,
)
from tests.weights.test_convert import CANNOT, SHAPES, make
from vitreous.base.errors import WeightsError
from vitreous.classifier import Classifier, load
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights import processors
from vitreous.weights.convert import convert

CONFIG = ViTConfig(**TINY, gelu="erf", layer_norm_eps=1e-12, position_resize="huggingface")
DINOV2 = "weights/dinov2-vits14-saliency.safetensors"


def strictly(kind, folder, **settings):
    """`from_pretrained`, with every tensor used and none made up."""
    model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **settings)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - CANNOT["huggingface"]))
@pytest.mark.parametrize(("gelu", "eps"), [("erf", 1e-12), ("tanh", 1e-6)])
def test_a_folder_loads_strictly_in_transformers_with_equal_logits(shape, gelu, eps, tmp_path):
    clf = make(shape, "huggingface")
    clf = Classifier(
        randomise(type(clf.model)(clf.model.config.replace(gelu=gelu, layer_norm_eps=eps))).eval(),
        clf.preprocess,
        clf.labels if clf.model.head else None,
    )
    convert(clf, tmp_path / "m", to="huggingface")
    x = images(clf.model.config)
    with torch.inference_mode():
        if clf.model.head is not None:
            assert_near(clf.model(x), strictly("ViTForImageClassification", tmp_path / "m")(x).logits)
        else:
            pooled = clf.model.pre_logits is not None
            out = strictly("ViTModel", tmp_path / "m", add_pooling_layer=pooled)(x)
            assert_near(clf.model.features(x), out.last_hidden_state)
            assert_near(clf.model(x), out.pooler_output if pooled else out.last_hidden_state[:, 0])
    back = load(tmp_path / "m")
    assert_same_tensors(clf.model.state_dict(), back.model.state_dict())
    assert back.model.config == clf.model.config.replace(position_resize="huggingface")
    assert back.labels == clf.labels


@pytest.mark.parametrize("change", [{}, dict(qkv_bias=False), dict(layer_norm_eps=1e-3), dict(hidden_act="gelu_new")])
@pytest.mark.parametrize("shape", [{}, dict(image_size=(32, 48))])
def test_folders_that_transformers_wrote(shape, change, tmp_path):
    config = CONFIG.replace(**shape)
    peer = hugging_vit(config, **change)
    peer.save_pretrained(tmp_path)
    clf = load(tmp_path)
    n = len(peer.state_dict())
    assert clf.provenance["tensors"] == f"{n} of {n} tensors"
    assert clf.labels is None  # LABEL_0, LABEL_1, ... are no names
    with torch.inference_mode():
        assert_near(clf.model(images(config)), peer(images(config)).logits)


@pytest.mark.parametrize("size", [(48, 48), (24, 40)])
def test_at_another_size_as_transformers_resizes(size, tmp_path, caplog):
    peer = hugging_vit(CONFIG)
    peer.save_pretrained(tmp_path)
    clf = load(tmp_path, image_size=size)
    assert "mode 'huggingface' (bicubic)" in caplog.text
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(clf.model(x), peer(x, interpolate_pos_encoding=True).logits)


def test_old_and_new_names_one_file_or_shards_tensors_or_pickles(tmp_path):
    peer = hugging_vit(CONFIG)
    peer.save_pretrained(tmp_path / "old")
    peer.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    for name in ("new", "pickle"):
        (tmp_path / name).mkdir()
        peer.config.save_pretrained(tmp_path / name)
    save_file({n: t.contiguous() for n, t in peer.state_dict().items()}, tmp_path / "new" / "model.safetensors")
    torch.save(load_file(tmp_path / "old" / "model.safetensors"), tmp_path / "pickle" / "pytorch_model.bin")
    assert "vit.encoder.layer.0.attention.attention.query.weight" in load_file(tmp_path / "old" / "model.safetensors")
    assert "vit.layers.0.attention.q_proj.weight" in peer.state_dict()
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    first = load(tmp_path / "old").model
    for name in ("new", "shards", "pickle"):
        assert_same_tensors(first.state_dict(), load(tmp_path / name).model.state_dict())
    with torch.inference_mode():
        assert_near(first(images(CONFIG)), peer(images(CONFIG)).logits)


def test_a_part_that_is_missing_is_named(tmp_path):
    hugging_vit(CONFIG).save_pretrained(tmp_path, max_shard_size="40KB")
    part = sorted(tmp_path.glob("*.safetensors"))[0]
    tensors = load_file(part)
    gone = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, part, {"format": "pt"})
    with pytest.raises(WeightsError, match=rf"not in the parts that it names: {gone}"):
        load(tmp_path)
    part.unlink()
    with pytest.raises(WeightsError, match=rf"part {part.name} is missing"):
        load(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"vit.layernorm.bias": "../elsewhere.safetensors"}}))
    with pytest.raises(WeightsError, match="no file beside it"):
        load(tmp_path)


@pytest.mark.parametrize("old", [True, False])
def test_missing_and_extra_tensors_are_named_as_in_the_file(old, tmp_path):
    peer = hugging_vit(CONFIG)
    peer.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path) if old else {n: t.contiguous() for n, t in peer.state_dict().items()}
    gone = "vit.encoder.layer.1.attention.attention.key.weight" if old else "vit.layers.1.attention.k_proj.weight"
    total = len(tensors)
    del tensors[gone]
    save_file(tensors | {"vit.surplus": torch.zeros(3)}, path, {"format": "pt"})
    short = gone.removeprefix("vit.")
    with pytest.raises(WeightsError, match=rf"{total - 1} of {total} tensors.*missing: {short}; .*model: surplus"):
        load(tmp_path)


def test_vit_model_and_its_pooler(tmp_path):
    peer = hugging_vit(CONFIG, "ViTModel")
    peer.save_pretrained(tmp_path)
    clf = load(tmp_path)
    assert clf.model.config.representation_size == 48
    with torch.inference_mode():
        out = peer(images(CONFIG))
        assert_near(clf.model.features(images(CONFIG)), out.last_hidden_state)
        assert_near(clf.model(images(CONFIG)), out.pooler_output)
    with pytest.raises(WeightsError, match="no head"):
        clf.predict(Image.new("RGB", (9, 9)))


def test_a_classifier_without_its_head_is_incomplete(tmp_path):
    hugging_vit(CONFIG).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if "classifier" not in name}
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(WeightsError, match=r"no classification head: give num_classes="):
        load(tmp_path)
    assert load(tmp_path, num_classes=0).model.head is None
    fresh = load(tmp_path, num_classes=5)
    assert fresh.model.head.weight.shape == (5, 48)
    with pytest.raises(WeightsError, match="all zeros"):
        fresh.predict(Image.new("RGB", (9, 9)))


def test_encoders_of_masked_pretraining(tmp_path):
    small = dict(
        decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=8
    )
    config = transformers.ViTMAEConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=96,
        mask_ratio=0.0,
        **small,
    )
    peer = randomise(transformers.ViTMAEForPreTraining(config), 1).eval()
    peer.save_pretrained(tmp_path / "mae")
    clf = load(tmp_path / "mae")
    assert list(clf.provenance["left_out"]) == ["decoder, used in pre-training only"]
    x = images(CONFIG)
    with torch.inference_mode():
        noise = torch.arange(16.0).expand(2, 16)  # nothing hidden, in the order that it is
        assert_near(clf.model.features(x), peer.vit(x, noise=noise).last_hidden_state)
    peer = randomise(transformers.ViTForMaskedImageModeling(transformers.ViTConfig(**small_vit())), 1).eval()
    peer.save_pretrained(tmp_path / "simmim")
    clf = load(tmp_path / "simmim")
    assert len(clf.provenance["left_out"]) == 2
    with torch.inference_mode():
        assert_near(clf.model.features(x), peer.vit(x).last_hidden_state)


def small_vit():
    return dict(
        image_size=32,
        patch_size=8,
        encoder_stride=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=96,
    )


def dinov2(**settings):
    config = transformers.Dinov2Config(
        image_size=56,
        patch_size=14,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        mlp_ratio=2,
        **settings,
    )
    return config


@pytest.mark.parametrize("size", [56, (70, 42)])
def test_dinov2_with_its_layer_scale_folded(size, tmp_path):
    peer = randomise(transformers.Dinov2Model(dinov2()), 1).eval()
    peer.save_pretrained(tmp_path)
    clf = load(tmp_path, image_size=size)
    assert "folded" in clf.provenance["layer_scale"]
    assert clf.model.config.layer_norm_eps == 1e-6
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(clf.model.features(x), peer(x).last_hidden_state)
    convert(clf, tmp_path / "vit", to="huggingface")
    with torch.inference_mode():
        again = strictly("ViTModel", tmp_path / "vit", add_pooling_layer=False)
        assert_near(again(x).last_hidden_state, peer(x).last_hidden_state)


def test_dinov2_that_is_not_this_architecture(tmp_path):
    randomise(transformers.Dinov2ForImageClassification(dinov2(num_labels=5)), 1).save_pretrained(tmp_path / "wide")
    with pytest.raises(WeightsError, match=r"class token and mean of patches.*num_classes=0"):
        load(tmp_path / "wide")
    assert load(tmp_path / "wide", num_classes=0).model.head is None
    transformers.Dinov2Model(dinov2(use_swiglu_ffn=True)).save_pretrained(tmp_path / "swiglu")
    with pytest.raises(WeightsError, match="SwiGLU"):
        load(tmp_path / "swiglu")
    registers = transformers.Dinov2WithRegistersConfig(**{k: v for k, v in dinov2().to_dict().items() if k in SAME})
    transformers.Dinov2WithRegistersModel(registers).save_pretrained(tmp_path / "registers")
    with pytest.raises(WeightsError, match="register"):
        load(tmp_path / "registers")


SAME = ("image_size", "patch_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio")


def test_other_kinds_are_refused(tmp_path):
    deit = transformers.DeiTConfig(**small_vit())
    transformers.DeiTModel(deit).save_pretrained(tmp_path / "deit")
    with pytest.raises(WeightsError, match="distillation token"):
        load(tmp_path / "deit")
    beit = transformers.BeitConfig(
        **{k: v for k, v in small_vit().items() if k != "encoder_stride"}, use_relative_position_bias=True
    )
    transformers.BeitModel(beit).save_pretrained(tmp_path / "beit")
    with pytest.raises(WeightsError, match=r"relative positions|'beit'"):
        load(tmp_path / "beit")
    vision = dict(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=8
    )
    transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**vision)).save_pretrained(tmp_path / "clip")
    with pytest.raises(WeightsError, match=r"image-text|CLIP"):
        load(tmp_path / "clip")
    hugging_vit(CONFIG).save_pretrained(tmp_path / "vit")
    edit_json(tmp_path / "vit" / "config.json", hidden_act="quick_gelu")
    with pytest.raises(WeightsError, match="quick_gelu"):
        load(tmp_path / "vit")
    edit_json(tmp_path / "vit" / "config.json", hidden_act="gelu", num_attention_heads=7)
    with pytest.raises(WeightsError, match="not divisible"):
        load(tmp_path / "vit")
    edit_json(tmp_path / "vit" / "config.json", num_attention_heads="three")
    with pytest.raises(WeightsError, match=r"num_heads|config"):
        load(tmp_path / "vit")


PROCESSORS = [
    (dict(image_processor_type="ViTImageProcessor", size=dict(height=32, width=32)), dict(size=32, antialias=True)),
    (dict(feature_extractor_type="ViTFeatureExtractor", size=32, resample=2), dict(size=32, antialias=True)),
    (
        dict(
            image_processor_type="BitImageProcessor", size=dict(shortest_edge=36), crop_size=dict(height=32, width=32),
            image_mean=list(IMAGENET_MEAN), image_std=list(IMAGENET_STD),
        ),
        dict(
            size=32, resize="short", interpolation="bicubic", antialias=True, crop_fraction=32 / 36, mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        ),
    ),
    (
        dict(feature_extractor_type="DeiTFeatureExtractor", size=36, crop_size=32, do_center_crop=True, resample=3),
        dict(size=32, interpolation="bicubic", antialias=True, crop_fraction=32 / 36),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "fields"), PROCESSORS, ids=lambda value: "")
def test_processors_make_the_same_pixels(content, fields, tmp_path):
    ours = processors.read(content)
    assert ours == Preprocess(**fields)
    name = content.get(
        "image_processor_type", str(content.get("feature_extractor_type")).replace("FeatureExtractor", "ImageProcessor")
    )
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    theirs = getattr(transformers, name)(**{k: v for k, v in content.items() if not k.endswith("_type")})
    wanted = theirs(picture, return_tensors="pt")["pixel_values"][0]
    assert (ours.load(picture) - wanted).abs().max() < 2.1 / 255 / min(ours.std)  # rounded twice, where we do it once
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processors.to_dict(ours)))
    assert processors.read(processors.to_dict(ours)) == ours
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert torch.equal(again(picture, return_tensors="pt")["pixel_values"][0], wanted)


def test_processors_that_cannot_be_followed_are_said(tmp_path, caplog):
    hugging_vit(CONFIG).save_pretrained(tmp_path)
    for content in (
        dict(image_processor_type="ConvNextImageProcessor"),
        dict(do_resize=False),
        dict(image_processor_type="BitImageProcessor", do_center_crop=False),
        dict(resample=99),
        dict(size="large"),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
        caplog.clear()
        with caplog.at_level(logging.WARNING, "vitreous"):
            clf = load(tmp_path)
        assert "preprocessing cannot be followed" in caplog.text, content
        assert clf.preprocess == Preprocess.preset("huggingface", size=32)
        assert clf.provenance["preprocess"].startswith("assumed")


def test_eps_belongs_to_the_file(tmp_path):
    """1e-12 here and 1e-6 in all other families: of no effect on wide activations, of a factor 1.414 on narrow ones."""
    convert(classifier("huggingface", layer_norm_eps=1e-12), tmp_path / "m", to="huggingface")
    convert(classifier("timm"), tmp_path / "m.safetensors", to="timm")
    narrow, wide = load(tmp_path / "m").model.norm, load(tmp_path / "m.safetensors").model.norm
    x = torch.linspace(-1, 1, 48)
    x = x / x.std(correction=0)
    for std, ratio in ((1e-3, (2e-6 / (1e-6 + 1e-12)) ** 0.5), (1.0, 1 + 0.5e-6)):
        one, other = (norm.bias + 0 * x for norm in (narrow, wide))
        difference = ((narrow(std * x) - one) / (wide(std * x) - other)).mean().item()
        assert difference == pytest.approx(ratio, rel=2e-6 if std == 1 else 1e-3)


def test_a_processor_of_another_size_is_said(tmp_path, caplog):
    hugging_vit(CONFIG).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(dict(size=dict(height=48, width=48))))
    with caplog.at_level(logging.WARNING, "vitreous"):
        assert load(tmp_path).preprocess.size == (32, 32)
    assert "with image_size=(48, 48) it does as Hugging Face does" in caplog.text


def test_labels_travel_in_order(tmp_path):
    clf = classifier("huggingface")
    convert(clf, tmp_path, to="huggingface")
    peer = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)
    assert [peer.config.id2label[i] for i in range(7)] == list(NAMES)
    assert peer.config.label2id[NAMES[3]] == 3
    assert load(tmp_path).labels == NAMES


def test_the_real_dinov2_gives_the_golden_numbers():
    """DINOv2 ViT-S/14, fine-tuned: fp16, 518 pixels, LayerScale, Hugging Face's names, no config beside it."""
    golden = load_file(shared("golden/dinov2-vits14.io.safetensors"))
    clf = load(shared(DINOV2))
    config = clf.model.config
    assert (config.image_size, config.patch_size, config.num_heads) == ((518, 518), (14, 14), 6)
    assert clf.provenance["tensors"] == "222 of 222 tensors"
    assert clf.provenance["stored_as"] == "float16"
    with torch.inference_mode():
        whole = clf.model.features(golden["518/images"].float())[:, :1]
        assert_near(whole, golden["518/last_hidden_state"])
        for size, name in (((224, 336), "224x336"), ((224, 224), "224")):
            model = load(shared(DINOV2), image_size=size).model
            x = golden[f"{name}/images"].float()
            assert_near(model.features(x), golden[f"{name}/last_hidden_state"])
        weights = model.attention(x, layers=[-1])[:, 0]
        torch.testing.assert_close(weights, golden["224/attention_last_layer"], atol=1e-5, rtol=0)
