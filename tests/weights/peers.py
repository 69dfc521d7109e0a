"""The other libraries' models of a given configuration, and the pieces that their tests share."""

import json
import struct
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.conftest import randomise, tiny
from vitreous.classifier import Classifier
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess

NAMES = tuple(f"kind {i}" for i in range(7))


def classifier(preset="google", **overrides):
    """A tiny classifier with random weights, as torch's families compute it unless told otherwise."""
    model = tiny(**{"gelu": "erf", **overrides})
    labels = NAMES if model.head is not None else None
    return Classifier(model, Preprocess.preset(preset, size=model.config.image_size), labels)


def images(config: ViTConfig, count: int = 2, seed: int = 3):
    return torch.randn(count, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(seed))


def assert_near(ours, theirs, tolerance=1e-5):
    """Within 1e-5 of the largest value."""
    assert ours.shape == theirs.shape
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error <= tolerance, f"relative error {error:.2e}"


def assert_same_tensors(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def strip_metadata(path: Path):
    """Leave nothing in the header but the tensors, as files that others wrote have it."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})


def edit_json(path: Path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def header(path: Path):
    content = path.read_bytes()
    return json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])


def timm_vit(config: ViTConfig, **overrides):
    """timm's model for a configuration, random."""
    from timm.layers import LayerNorm
    from timm.layers.hybrid_embed import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_hybrid import _resnetv2

    args = dict(
        img_size=config.image_size,
        patch_size=config.patch_size,
        in_chans=config.in_channels,
        embed_dim=config.hidden_size,
        depth=config.num_layers,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_dim / config.hidden_size,
        num_classes=config.num_classes,
        act_layer="gelu_tanh" if config.gelu == "tanh" else "gelu",
        norm_layer=partial(LayerNorm, eps=config.layer_norm_eps),
        class_token=bool(config.prefix_tokens),
        global_pool="token" if config.classifier == "token" else "avg",
        fc_norm=config.norm_after_pooling,
    )
    if config.resnet is not None:
        backbone = _resnetv2(config.resnet.num_layers, in_chans=config.in_channels)
        args |= dict(embed_layer=partial(HybridEmbed, backbone=backbone), patch_size=config.patch_size[0])
    return randomise(VisionTransformer(**{**args, **overrides}), seed=1).eval()


def hugging_vit(config: ViTConfig, kind="ViTForImageClassification", **overrides):
    """Hugging Face's model for a configuration, random."""
    import transformers

    args = dict(
        image_size=list(config.image_size),
        patch_size=config.patch_size[0],
        num_channels=config.in_channels,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.mlp_dim,
        hidden_act="gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        num_labels=config.num_classes,
    )
    made = transformers.ViTConfig(**{**args, **overrides})
    return randomise(getattr(transformers, kind)(made), seed=1).eval()


def torchvision_vit(config: ViTConfig, **overrides):
    """torchvision's model for a configuration, random."""
    from torchvision.models.vision_transformer import VisionTransformer

    args = dict(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_size,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
        representation_size=config.representation_size,
        norm_layer=partial(torch.nn.LayerNorm, eps=config.layer_norm_eps),
    )
    return randomise(VisionTransformer(**{**args, **overrides}), seed=1).eval()
