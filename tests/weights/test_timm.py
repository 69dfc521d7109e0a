"""timm's files: its logits, its descriptions, its hybrids, and what it has that is not the classic ViT."""

import json
import logging

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import TINY
from tests.weights.peers import (
    NAMES,
    assert_near,
    assert_same_tensors,
    classifier,
    edit_json,
    images,
    strip_metadata,
    timm_vit,
)
from tests.weights.test_convert import CANNOT, SHAPES, make
from vitreous.base.errors import ConfigError, WeightsError
from vitreous.classifier import load
from vitreous.config import ResNetConfig, ViTConfig
from vitreous.pictures.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights.convert import convert

CONFIG = ViTConfig(**TINY, gelu="erf")
STAGES = ResNetConfig(num_layers=(1, 2), numerics="timm")


def save(model, path, **metadata):
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path, metadata)
    return path


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - CANNOT["timm file"] - {"hybrid, stages"}))
def test_a_file_loads_strictly_in_timm_with_equal_logits(shape, tmp_path):
    clf = make(shape, "timm")
    convert(clf, tmp_path / "m.safetensors", to="timm")
    peer = timm_vit(clf.model.config)
    peer.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(clf.model(x), peer(x))


@pytest.mark.parametrize("shape", ["square", "oblong patches", "mean over patches", "norm after the mean", "backbone"])
@pytest.mark.parametrize("gelu", ["erf", "tanh"])
def test_a_folder_is_a_model_of_timm(shape, gelu, tmp_path):
    clf = classifier("timm", **{**SHAPES[shape], "gelu": gelu, "mlp_dim": 100})
    convert(clf, tmp_path / "m", to="timm")
    peer = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(clf.model(x), peer(x))
    strip_metadata(tmp_path / "m" / "model.safetensors")  # from config.json alone
    back = load(tmp_path / "m")
    assert back.model.config == clf.model.config.replace(position_resize="timm")
    assert (back.labels, back.preprocess) == (clf.labels, clf.preprocess)
    assert_same_tensors(back.model.state_dict(), clf.model.state_dict())


def test_preprocessing_as_timm_resolves_it(tmp_path):
    clf = classifier("timm")
    clf.preprocess = Preprocess(
        size=32, resize="squash", interpolation="bilinear", antialias=True, crop_fraction=0.8, mean=IMAGENET_MEAN
    )
    convert(clf, tmp_path / "m", to="timm")
    peer = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True)
    cfg = timm.data.resolve_model_data_config(peer)
    assert cfg["input_size"] == (3, 32, 32)
    assert (cfg["interpolation"], cfg["crop_pct"], cfg["crop_mode"]) == ("bilinear", 0.8, "squash")
    assert (tuple(cfg["mean"]), tuple(cfg["std"])) == (IMAGENET_MEAN, (0.5, 0.5, 0.5))
    assert peer.pretrained_cfg["label_names"] == list(NAMES)
    strip_metadata(tmp_path / "m" / "model.safetensors")
    assert load(tmp_path / "m").preprocess == clf.preprocess


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        (CONFIG, {}),
        (CONFIG.replace(image_size=(32, 48)), {}),
        (CONFIG, dict(no_embed_class=True)),
        (CONFIG, dict(qkv_bias=False)),
        (CONFIG, dict(init_values=0.1)),
        (CONFIG, dict(global_pool="avg", fc_norm=None)),  # with a class token and fc_norm, timm's own default
        (CONFIG.replace(classifier="gap"), dict(init_values=0.1, qkv_bias=False)),  # vit_medium_patch16_gap_256
        (CONFIG.replace(classifier="gap", norm_after_pooling=True), {}),
        (CONFIG.replace(image_size=64, patch_size=4, resnet=ResNetConfig()), {}),
        (CONFIG.replace(image_size=64, patch_size=1, resnet=STAGES), {}),
        (CONFIG.replace(image_size=(80, 64), patch_size=2, resnet=STAGES), {}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else value.classifier,
)
def test_timm_models_of_many_kinds(config, overrides, tmp_path):
    peer = timm_vit(config, **overrides)
    path = save(peer, tmp_path / "m.safetensors")
    clf = load(path, num_heads=3, image_size=config.image_size)
    with torch.inference_mode():
        x = images(config)
        assert_near(clf.model(x), peer(x))
        assert_near(clf.model.features(x), peer.fc_norm(peer.forward_features(x)))  # one of the two norms does nothing
    total = len(peer.state_dict())
    assert clf.provenance["tensors"] == f"{total} of {total} tensors"


@pytest.mark.parametrize("size", [(48, 48), (24, 40)])
def test_at_another_size_as_timm_resizes(size, tmp_path, caplog):
    peer = timm_vit(CONFIG)
    with caplog.at_level(logging.WARNING, "vitreous"):
        clf = load(save(peer, tmp_path / "m.safetensors"), num_heads=3, image_size=size)
    assert "mode 'timm' (bicubic, antialias)" in caplog.text
    old, new = peer.pos_embed.detach().clone(), clf.model.position_embedding
    assert torch.equal(new[:, 0], old[:, 0])
    peer.set_input_size(img_size=size)
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(clf.model(x), peer(x))
    assert clf.preprocess.size == size


def test_layer_scale_and_half_precision_are_folded_exactly(tmp_path):
    """A product of two half-precision numbers fits into single precision: only the order of the sums differs."""
    peer = timm_vit(CONFIG, init_values=0.1).half()
    clf = load(save(peer, tmp_path / "m.safetensors"), num_heads=3)
    block, theirs = clf.model.blocks[1], peer.blocks[1]
    wanted = theirs.mlp.fc2.weight.double() * theirs.ls2.gamma.double()[:, None]
    assert torch.equal(block.mlp.fc2.weight.double(), wanted)
    assert torch.equal(block.attention.out.bias.double(), theirs.attn.proj.bias.double() * theirs.ls1.gamma.double())
    assert clf.provenance["stored_as"] == "float16"
    assert "folded" in clf.provenance["layer_scale"]
    assert all(tensor.dtype == torch.float32 for tensor in clf.model.state_dict().values())


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (dict(reg_tokens=4), "register tokens"),
        (dict(pre_norm=True), "CLIP's extra LayerNorm"),
        (dict(qk_norm=True), "QK norm"),
        (dict(scale_attn_norm=True), "extra norm inside attention"),
        (dict(global_pool="map"), "MAP head"),
        (dict(mlp_layer="SwiGLU"), "SwiGLU"),
        (dict(mlp_layer="SwiGLUPacked"), "SwiGLU"),
        (dict(block_fn="ParallelThingsBlock"), "side by side"),
        (dict(norm_layer="rmsnorm"), "norm1.bias"),
        (dict(pos_embed="none"), "position_embedding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_other_architectures_are_refused_with_the_reason(overrides, reason, tmp_path):
    if "mlp_layer" in overrides:
        overrides = dict(mlp_layer=getattr(timm.layers, overrides["mlp_layer"]))
    if "block_fn" in overrides:
        overrides = dict(block_fn=getattr(timm.models.vision_transformer, overrides["block_fn"]))
    path = save(timm_vit(CONFIG, **overrides), tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=reason):
        load(path, num_heads=3)


@pytest.mark.parametrize(
    ("name", "overrides", "reason"),
    [
        ("deit_tiny_distilled_patch16_224", {}, "distillation token"),
        ("eva02_tiny_patch14_224", {}, "keys have no bias"),
        ("beit_base_patch16_224", dict(embed_dim=48, num_heads=3), "relative positions|BEiT"),
        ("vit_relpos_small_patch16_224", dict(embed_dim=48, num_heads=3), "relative positions|position"),
        ("swin_tiny_patch4_window7_224", dict(embed_dim=24, depths=(1, 1), num_heads=(3, 6)), "relative positions"),
        ("vit_small_resnet26d_224", dict(embed_dim=48, depth=1, num_heads=3), "BatchNorm|convolutional"),
        ("resnet18", {}, "BatchNorm"),
    ],
)
def test_other_models_of_timm_are_refused_with_the_reason(name, overrides, reason, tmp_path):
    depth = {} if "depth" in overrides or "depths" in overrides or name == "resnet18" else dict(depth=1)
    path = save(timm.create_model(name, **depth, **overrides), tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=reason):
        load(path, num_heads=3)


def test_descriptions_that_are_not_the_classic_vit(tmp_path):
    convert(classifier("timm"), tmp_path / "m", to="timm")
    strip_metadata(tmp_path / "m" / "model.safetensors")
    description = json.loads((tmp_path / "m" / "config.json").read_text())
    for args, reason in (
        (dict(act_layer="quick_gelu"), "quick_gelu"),
        (dict(norm_layer="rmsnorm"), "rmsnorm"),
        (dict(global_pool="max"), "max"),
    ):
        edit_json(tmp_path / "m" / "config.json", model_args=description["model_args"] | args)
        with pytest.raises(WeightsError, match=reason):
            load(tmp_path / "m")
    edit_json(tmp_path / "m" / "config.json", num_features=192)
    with pytest.raises(WeightsError, match=r"config\.json is of another model"):
        load(tmp_path / "m")


def test_old_pre_logits_and_first_small_model(tmp_path):
    """What timm wrote before 0.5: a tanh layer before the head, and a `vit_small` of its own."""
    peer = timm_vit(CONFIG)
    tensors = {name: tensor.contiguous() for name, tensor in peer.state_dict().items()}
    tensors |= {"pre_logits.fc.weight": torch.randn(24, 48), "pre_logits.fc.bias": torch.randn(24)}
    tensors["head.weight"] = torch.randn(7, 24)
    save_file(tensors, tmp_path / "m.safetensors")
    clf = load(tmp_path / "m.safetensors", num_heads=3)
    with torch.inference_mode():
        x = images(CONFIG)
        y = torch.tanh(
            peer.forward_head(peer.forward_features(x), pre_logits=True) @ tensors["pre_logits.fc.weight"].T
            + tensors["pre_logits.fc.bias"]
        )
        assert_near(clf.model(x), y @ tensors["head.weight"].T + tensors["head.bias"])
    early = CONFIG.replace(hidden_size=768, num_heads=8, mlp_dim=2304, num_layers=1)
    assert load(save(timm_vit(early), tmp_path / "s.safetensors")).model.config.num_heads == 8


def test_widths_that_no_published_model_has_need_the_number_of_heads(tmp_path):
    path = save(timm_vit(CONFIG), tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=r"how many attention heads.*48 wide.*num_heads="):
        load(path)
    with pytest.raises(WeightsError, match="not divisible"):
        load(path, num_heads=5)


def test_imagenet_names_only_for_the_thousand_classes(tmp_path):
    path = save(timm_vit(CONFIG.replace(num_classes=1000)), tmp_path / "m.safetensors")
    clf = load(path, num_heads=3)
    assert clf.labels[0] == "tench"
    assert clf.labels[999] == "toilet tissue"
    assert "assumed" in clf.provenance["labels"]
    assert load(path, num_heads=3, num_classes=5).labels is None
    assert load(save(timm_vit(CONFIG), path), num_heads=3).labels is None
    description = dict(architecture="vit_base_patch16_224", model_args=dict(num_heads=3), pretrained_cfg={})
    own = description | dict(num_classes=1000, label_names=[f"own {i}" for i in range(1000)])
    (tmp_path / "m").mkdir()
    save(timm_vit(CONFIG.replace(num_classes=1000)), tmp_path / "m" / "model.safetensors")
    (tmp_path / "m" / "config.json").write_text(json.dumps(own))
    assert load(tmp_path / "m").labels[7] == "own 7"


def test_average_pooling_has_its_own_fields():
    for field in ("gap_class_token", "norm_after_pooling"):
        with pytest.raises(ConfigError, match=f'{field} must be false without classifier="gap"'):
            ViTConfig(**{field: True})
    assert CONFIG.replace(classifier="gap", gap_class_token=True).num_tokens == CONFIG.num_tokens
    with pytest.raises(ConfigError, match="numerics"):
        ResNetConfig(numerics="other")


def test_a_grey_file_alone(tmp_path):
    config = CONFIG.replace(in_channels=1)
    clf = load(save(timm_vit(config), tmp_path / "m.safetensors"), num_heads=3)
    assert (clf.model.config.in_channels, clf.preprocess.mean) == (1, (0.5,))


def test_assumed_preprocessing_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "vitreous"):
        clf = load(save(timm_vit(CONFIG), tmp_path / "m.safetensors"), num_heads=3)
    assert "does not say how its pictures were prepared" in caplog.text
    assert clf.preprocess == Preprocess.preset("timm", size=32)
    assert clf.provenance["preprocess"].startswith("assumed")
    own = Preprocess(size=32, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    assert load(tmp_path / "m.safetensors", num_heads=3, preprocess=own).preprocess == own
