"""torchvision's files: its logits, names of today and before, and the preprocessing of its own weights."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchvision.models.vision_transformer import interpolate_embeddings, vit_b_32

from tests.conftest import TINY
from tests.weights.peers import assert_near, assert_same_tensors, images, torchvision_vit
from tests.weights.test_convert import CANNOT, SHAPES, make
from vitreous.base.errors import WeightsError
from vitreous.classifier import load
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.skeleton import empty_model
from vitreous.weights import torchvision
from vitreous.weights.convert import convert

CONFIG = ViTConfig(**TINY, gelu="erf", position_resize="torchvision")


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - CANNOT["torchvision"]))
def test_a_file_loads_strictly_in_torchvision_with_equal_logits(shape, suffix, tmp_path):
    clf = make(shape, "torchvision")
    path = tmp_path / f"m.{suffix}"
    convert(clf, path, to="torchvision")
    tensors = load_file(path) if suffix == "safetensors" else torch.load(path, weights_only=True)
    peer = torchvision_vit(clf.model.config)
    peer.load_state_dict(tensors, strict=True)
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(clf.model(x), peer(x))


@pytest.mark.parametrize("representation_size", [None, 24])
@pytest.mark.parametrize("old", [False, True])
def test_files_of_today_and_of_before(representation_size, old, tmp_path):
    peer = torchvision_vit(CONFIG.replace(representation_size=representation_size))
    tensors = peer.state_dict()
    if old:
        tensors = {
            n.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): t for n, t in tensors.items()
        }
    torch.save(tensors, tmp_path / "m.pth")
    clf = load(tmp_path / "m.pth", num_heads=3)
    assert clf.model.config == CONFIG.replace(representation_size=representation_size)
    assert clf.provenance["tensors"] == f"{len(tensors)} of {len(tensors)} tensors"
    with torch.inference_mode():
        assert_near(clf.model(images(CONFIG)), peer(images(CONFIG)))
    del tensors[next(name for name in tensors if "encoder_layer_2.mlp" in name and name.endswith("weight"))]
    torch.save(tensors, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match="linear_1.weight" if old else r"mlp\.0\.weight"):
        load(tmp_path / "m.pth", num_heads=3)


def test_at_another_size_as_torchvision_resizes(tmp_path):
    torch.save(torchvision_vit(CONFIG).state_dict(), tmp_path / "m.pth")
    clf = load(tmp_path / "m.pth", num_heads=3, image_size=48)
    peer = torchvision_vit(CONFIG.replace(image_size=48))
    peer.load_state_dict(interpolate_embeddings(48, 8, torch.load(tmp_path / "m.pth", weights_only=True)))
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(clf.model(x), peer(x))


def test_without_a_head_it_is_incomplete(tmp_path):
    tensors = {name: tensor for name, tensor in torchvision_vit(CONFIG).state_dict().items() if "heads" not in name}
    torch.save(tensors, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match="no classification head"):
        load(tmp_path / "m.pth", num_heads=3)
    assert load(tmp_path / "m.pth", num_heads=3, num_classes=4).model.config.num_classes == 4


def test_preprocessing_of_others(tmp_path):
    torch.save(torchvision_vit(CONFIG).state_dict(), tmp_path / "m.pth")
    clf = load(tmp_path / "m.pth", num_heads=3)
    assert clf.preprocess == Preprocess.preset("torchvision", size=32)
    assert clf.provenance["preprocess"] == "assumed: torchvision's default"


def test_the_names_are_those_of_vit_b_32():
    with torch.device("meta"):
        theirs = {name: tensor.shape for name, tensor in vit_b_32().state_dict().items()}
    ours = torchvision.to_torchvision(empty_model(ViTConfig.from_name("B/32")).state_dict())
    assert {name: tensor.shape for name, tensor in ours.items()} == theirs


def test_a_convolutional_stem_is_refused(tmp_path):
    from torchvision.models.vision_transformer import ConvStemConfig

    stem = [ConvStemConfig(out_channels=8, kernel_size=3, stride=2) for _ in range(3)]
    peer = torchvision_vit(CONFIG, conv_stem_configs=stem)
    save_file(peer.state_dict(), tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match="BatchNorm, so a convolutional stem"):
        load(tmp_path / "m.safetensors", num_heads=3)


def test_the_same_tensors_in_both_kinds_of_file(tmp_path):
    peer = torchvision_vit(CONFIG)
    torch.save(peer.state_dict(), tmp_path / "m.pth")
    torch.save(peer.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file(peer.state_dict(), tmp_path / "m.safetensors")
    first, *others = (
        load(tmp_path / name, num_heads=3).model.state_dict() for name in ("m.pth", "old.pth", "m.safetensors")
    )
    for other in others:
        assert_same_tensors(first, other)
