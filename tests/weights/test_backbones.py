"""DINO, MAE and DINOv2 in their own files: recognised by content, loaded without a head, resized their own way."""

import logging
import math

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.conftest import TINY
from tests.weights.peers import assert_near, images, timm_vit
from vitreous.base.errors import WeightsError
from vitreous.classifier import load
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import IMAGENET_MEAN
from vitreous.weights import backbones

CONFIG = ViTConfig(**{**TINY, "num_classes": 0}, gelu="erf")
PROJECTION = {"head.mlp.0.weight": torch.zeros(4, 48), "head.last_layer.weight_g": torch.zeros(4, 1)}


@pytest.fixture
def peer():
    return timm_vit(CONFIG)


def check(clf, peer, family):
    assert clf.provenance["family"] == family
    assert clf.model.config.num_classes == 0
    assert clf.preprocess == backbones.preprocess(clf.model.config.image_size)
    assert clf.preprocess.mean == IMAGENET_MEAN
    with torch.inference_mode():
        x = images(CONFIG)
        assert_near(clf.model.features(x), peer.forward_features(x))
        assert_near(clf.model(x), peer(x))
    with pytest.raises(WeightsError, match="no head"):
        clf.predict(Image.new("RGB", (9, 9)))
    assert clf.reset_head(num_classes=3).model.head.weight.shape == (3, 48)


def test_dino(peer, tmp_path):
    torch.save(peer.state_dict(), tmp_path / "m.pth")
    check(load(tmp_path / "m.pth", num_heads=3), peer, "dino")


def test_a_training_state_of_dino(peer, tmp_path, caplog):
    """The teacher is what DINO publishes; its projection head stays out, and both are said."""
    teacher = {f"backbone.{name}": tensor for name, tensor in peer.state_dict().items()} | PROJECTION
    student = {f"module.backbone.{name}": tensor + 1 for name, tensor in peer.state_dict().items()}
    student |= {f"module.{name}": tensor for name, tensor in PROJECTION.items()}
    torch.save({"student": student, "teacher": teacher, "optimizer": {"state": {}}, "epoch": 3}, tmp_path / "m.pth")
    with caplog.at_level(logging.INFO, "vitreous"):
        clf = load(tmp_path / "m.pth", num_heads=3)
    assert clf.provenance["weights"] == "ema: teacher.backbone; not taken: student.module.backbone"
    assert clf.provenance["left_out"] == {"projection head of self-distillation": "2 tensors"}
    assert "teacher.backbone" in caplog.text
    assert "projection head" in caplog.text
    check(clf, peer, "dino")
    other = load(tmp_path / "m.pth", num_heads=3, weights="raw")
    assert torch.equal(other.model.norm.bias, peer.norm.bias + 1)


@pytest.mark.parametrize("decoder", [False, True])
def test_mae(decoder, peer, tmp_path):
    with torch.no_grad():
        peer.pos_embed[:, 0] = 0  # sines and cosines, none for the class token
    tensors = dict(peer.state_dict())
    if decoder:
        tensors |= {"mask_token": torch.zeros(1, 1, 32), "decoder_pos_embed": torch.zeros(1, 17, 32)}
        tensors |= {
            "decoder_embed.weight": torch.zeros(32, 48),
            "decoder_blocks.0.attn.qkv.weight": torch.zeros(96, 32),
        }
    torch.save({"model": tensors}, tmp_path / "m.pth")
    clf = load(tmp_path / "m.pth", num_heads=3)
    assert clf.model.config.position_resize == "huggingface"
    assert set(clf.provenance.get("left_out", {}).values()) == ({"1 tensor", "3 tensors"} if decoder else set())
    check(clf, peer, "mae")


def test_dinov2(tmp_path):
    peer = timm_vit(CONFIG, init_values=0.1)
    torch.save(dict(peer.state_dict()) | {"mask_token": torch.zeros(1, 48)}, tmp_path / "m.pth")
    clf = load(tmp_path / "m.pth", num_heads=3)
    assert "folded" in clf.provenance["layer_scale"]
    assert "mask" in str(clf.provenance["left_out"]) or "hidden patches" in str(clf.provenance["left_out"])
    check(clf, peer, "dinov2")


def test_dinov2_with_registers_is_refused(tmp_path):
    peer = timm_vit(CONFIG, init_values=0.1)
    extra = {"mask_token": torch.zeros(1, 48), "register_tokens": torch.zeros(1, 4, 48)}
    torch.save(dict(peer.state_dict()) | extra, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match="register tokens"):
        load(tmp_path / "m.pth", num_heads=3)


@pytest.mark.parametrize("size", [(48, 48), (24, 40)])
def test_dino_resizes_with_its_small_offset(size, peer, tmp_path):
    """The arithmetic of DINO's `interpolate_pos_encoding`, written out in its own words."""
    torch.save(peer.state_dict(), tmp_path / "m.pth")
    new = load(tmp_path / "m.pth", num_heads=3, image_size=size).model.position_embedding
    h0, w0 = size[0] // 8 + 0.1, size[1] // 8 + 0.1
    positions = peer.pos_embed.detach()
    n = positions.shape[1] - 1
    patches = positions[:, 1:].reshape(1, int(math.sqrt(n)), int(math.sqrt(n)), 48).permute(0, 3, 1, 2)
    patches = F.interpolate(patches, scale_factor=(h0 / math.sqrt(n), w0 / math.sqrt(n)), mode="bicubic")
    wanted = torch.cat([positions[:, :1], patches.permute(0, 2, 3, 1).reshape(1, -1, 48)], dim=1)
    torch.testing.assert_close(new.detach(), wanted, atol=2e-6, rtol=0)
