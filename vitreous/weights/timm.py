"""timm's ViT files: alone, or in a folder with `config.json` as on the Hugging Face hub.

Query, key and value are one matrix, as here. A file alone does not say which GELU, how many heads
or what preprocessing it was trained with; `config.json` says so in part, and timm's own code for
the architecture named there says the rest. Facts from timm 1.0.31 `vision_transformer.py`,
`vision_transformer_hybrid.py` and `_hub.py`.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.base.errors import ConfigError, WeightsError
from vitreous.base.files import write_text
from vitreous.config import ResNetConfig, Size, ViTConfig, as_size
from vitreous.pictures.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights import backbones
from vitreous.weights.assemble import assemble
from vitreous.weights.carried import read_carried
from vitreous.weights.checkpoint import Checkpoint, Hints, default_preprocess
from vitreous.weights.family import (
    PICKLES,
    WEIGHTS,
    Beside,
    Family,
    antialiased,
    constants,
    heads_not_told,
    never_kept,
    single_file,
    without_description,
    write_tensors,
)
from vitreous.weights.names import Names
from vitreous.weights.stored import Stored

logger = logging.getLogger("vitreous")

_STEM = (  # written with the first of these, or the second when the root is all there is
    ("stem.root", "patch_embed.backbone.stem.conv"),
    ("stem.root", "patch_embed.backbone.conv"),
    ("stem.root_norm", "patch_embed.backbone.stem.norm"),
    ("stem.root_norm", "patch_embed.backbone.norm"),
)
NAMES = Names(
    [
        ("cls_token", "cls_token"),
        ("position_embedding", "pos_embed"),
        ("patch_embedding.projection.*", "patch_embed.proj.*"),
        ("blocks.#.norm1.*", "blocks.#.norm1.*"),
        ("blocks.#.attention.qkv.*", "blocks.#.attn.qkv.*"),
        ("blocks.#.attention.out.*", "blocks.#.attn.proj.*"),
        ("blocks.#.scale1", "blocks.#.ls1.gamma"),
        ("blocks.#.scale1", "blocks.#.gamma_1"),  # DeiT III's own files
        ("blocks.#.norm2.*", "blocks.#.norm2.*"),
        ("blocks.#.mlp.fc1.*", "blocks.#.mlp.fc1.*"),
        ("blocks.#.mlp.fc2.*", "blocks.#.mlp.fc2.*"),
        ("blocks.#.scale2", "blocks.#.ls2.gamma"),
        ("blocks.#.scale2", "blocks.#.gamma_2"),
        ("norm.*", "norm.*"),
        ("norm.*", "fc_norm.*"),
        ("pre_logits.*", "pre_logits.fc.*"),  # older files; timm itself leaves them out today
        ("head.*", "head.*"),
        *((f"{ours}.*", f"{theirs}.*") for ours, theirs in _STEM),
        ("stem.stages.#.#.conv#.*", "patch_embed.backbone.stages.#.blocks.#.conv#.*"),
        ("stem.stages.#.#.norm#.*", "patch_embed.backbone.stages.#.blocks.#.norm#.*"),
        ("stem.stages.#.#.shortcut.0.*", "patch_embed.backbone.stages.#.blocks.#.downsample.conv.*"),
        ("stem.stages.#.#.shortcut.1.*", "patch_embed.backbone.stages.#.blocks.#.downsample.norm.*"),
    ]
)
GELUS = {"gelu": "erf", "gelu_erf": "erf", "gelu_tanh": "tanh"}
# The architectures that timm has by name, for `config.json`; all sizes are overridden by `model_args`.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
PLAIN = "vit_base_patch16_224"


class Timm(Family):
    """timm's `VisionTransformer`, and with it DINO's, MAE's and DINOv2's files, which have the same names."""

    name, title = "timm", "timm"
    anchor = r"patch_embed\.proj\.weight"
    described = ("architecture", "num_features")
    position_resize, preset = "timm", "timm"
    imagenet = True

    def read(self, stored: Stored, hints: Hints, beside: Beside) -> Checkpoint:
        description, carried = beside.config, read_carried(stored)
        if carried is not None:
            made = assemble(stored, NAMES, hints, carried.settings, image_size=carried.image_size)
            provenance = {"family": self.name, **made.provenance}
            preprocess = carried.preprocess.resized(made.config.image_size)
            return Checkpoint(made.config, made.tensors, preprocess, carried.labels, provenance, carried.head_expected)
        if description is None and (backbone := backbones.recognise(stored)) is not None:
            return backbones.read(stored, NAMES, hints, backbone)
        settings, size = _settings(stored, description or {})
        made = assemble(stored, NAMES, hints, settings, backbones.PRETRAINING, size)
        provenance = {"family": self.name, **made.provenance}
        if description is None:
            preprocess = default_preprocess("timm", made.config)
            provenance["preprocess"] = "assumed: timm's default, as of AugReg's files"
            logger.warning(
                "%s does not say how its pictures were prepared: assumed timm's default, mean and std 0.5, which "
                "DeiT's and MAE's files do not have: say it with preprocess=... if you know better",
                stored.source,
            )
        else:
            provenance["architecture"] = str(description.get("architecture"))
            preprocess = preprocess_of(description.get("pretrained_cfg", description), stored.source)
        labels = _labels(description or {}, made.config.num_classes)
        head_expected = description is None or bool(description.get("num_classes", 1))
        preprocess = preprocess.resized(made.config.image_size)
        return Checkpoint(made.config, made.tensors, preprocess, labels, provenance, head_expected)

    def check_path(self, path: Path) -> None:
        if path.suffix == ".npz":
            raise WeightsError(f"{path}: for timm give a folder's name, or a file's that ends in .safetensors or .pth")

    def refusals(self, config: ViTConfig, path: Path) -> Iterator[str]:
        if config.representation_size is not None:
            yield 'it has no pre-logits layer: write to="google" or "torchvision", or fine-tune without it first'
        if config.gap_class_token and not config.norm_after_pooling and path.suffix in PICKLES:
            yield "beside a class token, a pickle does not say that the head reads the mean: write a folder"
        if not single_file(path) and architecture(config) is None:
            yield (
                f"it has no named hybrid with stages {config.resnet and config.resnet.num_layers}: "
                "give a file's name that ends in .safetensors, and build the model yourself"
            )

    def changes(self, config: ViTConfig, path: Path) -> Iterator[str]:
        yield from constants(config, gelu="erf" if single_file(path) else config.gelu, name=self.name, option=True)

    def losses(self, checkpoint: Checkpoint, path: Path) -> Iterator[str]:
        config = checkpoint.config
        if single_file(path):
            yield from without_description(self, checkpoint, path)
            yield from heads_not_told(config)
        elif not checkpoint.preprocess.antialias:
            yield antialiased(self)
        yield from never_kept(self, config)

    def write(self, checkpoint: Checkpoint, path: Path) -> None:
        tensors = to_timm(checkpoint.config, checkpoint.tensors)
        if single_file(path):
            write_tensors(path, tensors, checkpoint)
            return
        write_tensors(path / WEIGHTS, tensors, checkpoint)
        write_description(path / "config.json", checkpoint.config, checkpoint.preprocess, checkpoint.labels)


def _settings(stored: Stored, description: Mapping[str, Any]) -> tuple[dict[str, Any], Size | None]:
    """What the shapes do not say, and the image size that the positions are for."""
    architecture, args = str(description.get("architecture", "")), description.get("model_args") or {}
    act = args.get("act_layer") or ("quick_gelu" if "quickgelu" in architecture else None)
    act = act or ("gelu_tanh" if "siglip" in architecture else "gelu")
    if act not in GELUS:
        raise WeightsError(f"{stored.source} is not the classic ViT: its MLPs use {act}, not GELU")
    if (norm := str(args.get("norm_layer") or "layernorm")) not in ("layernorm", "layernormfp32"):
        raise WeightsError(f"{stored.source} is not the classic ViT: its norms are {norm}, not LayerNorm")
    settings: dict[str, Any] = {
        "gelu": GELUS[act],
        "layer_norm_eps": 1e-6,
        "position_resize": "timm",
        "resnet": {"numerics": "timm"},
        **_pooling(stored, args.get("global_pool") or description.get("global_pool"), args),
    }
    if heads := args.get("num_heads"):
        settings["num_heads"] = heads
    elif architecture == "vit_base_patch16_gap_224":  # I-JEPA's
        settings["num_heads"] = 16
    cfg = description.get("pretrained_cfg", description)
    size = args.get("img_size") or (cfg.get("input_size") or (None, None))[1:]
    try:
        return settings, as_size(tuple(size) if isinstance(size, list) else size)
    except ConfigError:
        return settings, None


def _pooling(stored: Stored, pool: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """Which tokens the head reads, and whether the last norm comes before or after.

    timm takes the norm after average pooling, under the name `fc_norm`, unless told otherwise.
    """
    norm_after = "fc_norm.weight" in stored.tensors
    has_cls = "cls_token" in stored.tensors
    pool = pool or ("avg" if norm_after or not has_cls else "token")
    if pool not in ("token", "avg") or args.get("pool_include_prefix"):
        raise WeightsError(
            f"{stored.source} is not the classic ViT: its head reads {pool!r} pooling, not CLS or the mean"
        )
    if pool == "token":
        return {"classifier": "token"}
    return {"classifier": "gap", "gap_class_token": has_cls, "norm_after_pooling": norm_after}


def preprocess_of(cfg: Mapping[str, Any], source: str) -> Preprocess:
    """`pretrained_cfg` -> what timm's evaluation does to a picture.

    Source: timm `data/transforms_factory.py` `transforms_imagenet_eval`.
    """
    try:
        mode = cfg.get("crop_mode") or "center"
        if mode not in ("center", "squash"):
            raise ConfigError(f"crop_mode {mode!r} pads the picture")
        return Preprocess(
            size=tuple((cfg.get("input_size") or (3, 224, 224))[1:]),
            resize="squash" if mode == "squash" else "short",
            interpolation=cfg.get("interpolation") or "bicubic",
            antialias=True,
            crop_fraction=cfg.get("crop_pct") or 0.875,
            mean=tuple(cfg.get("mean") or IMAGENET_MEAN),
            std=tuple(cfg.get("std") or IMAGENET_STD),
        )
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        logger.warning("%s: its preprocessing cannot be followed (%s): timm's default is used instead", source, error)
        return Preprocess.preset("timm")


def _labels(description: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    cfg = description.get("pretrained_cfg") or {}
    names = description.get("label_names") or description.get("labels") or cfg.get("label_names")
    if isinstance(names, dict):
        names = [names.get(str(i), names.get(i)) for i in range(count)]
    if not isinstance(names, (list, tuple)) or len(names) != count or not all(isinstance(n, str) for n in names):
        return None
    descriptions = description.get("label_descriptions") or {}
    return tuple(descriptions.get(name, name) for name in names)


def to_timm(config: ViTConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our `state_dict` under timm's names."""
    alone = config.resnet is not None and not config.resnet.num_layers
    rows = [row for row in NAMES.rows if not (alone and ".backbone.stem." in row[1])]
    names = Names(rows) if not config.norm_after_pooling else Names([("norm.*", "fc_norm.*"), *rows])
    return {str(names.theirs(name)): tensor for name, tensor in tensors.items()}


def architecture(config: ViTConfig) -> str | None:
    """timm's name for something of this kind, of which all sizes can be set; None where it has none."""
    if config.resnet is None:
        return PLAIN
    return HYBRIDS.get(config.resnet.num_layers) if config.resnet.width_factor == 1 else None


def write_description(path: Path, config: ViTConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> None:
    """Write `config.json`, with which `timm.create_model("local-dir:FOLDER", pretrained=True)` makes the model."""
    cfg: dict[str, Any] = {
        "tag": "vitreous",
        "input_size": [config.in_channels, *config.image_size],
        "fixed_input_size": True,
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop_fraction,
        "crop_mode": "squash" if preprocess.resize == "squash" else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": _first_conv(config.resnet),
        "classifier": "head",
    }
    description: dict[str, Any] = {
        "architecture": architecture(config),
        "num_classes": config.num_classes,
        "num_features": config.hidden_size,
        "global_pool": "token" if config.classifier == "token" else "avg",
        "model_args": _model_args(config),
        "pretrained_cfg": cfg,
    }
    if labels is not None:
        description["label_names"] = list(labels)
    write_text(path, json.dumps(description, indent=2, ensure_ascii=False))


def _first_conv(resnet: ResNetConfig | None) -> str:
    if resnet is None:
        return "patch_embed.proj"
    return f"patch_embed.backbone.{'stem.' if resnet.num_layers else ''}conv"


def _model_args(config: ViTConfig) -> dict[str, Any]:
    ratio = config.mlp_dim / config.hidden_size
    if int(config.hidden_size * ratio) != config.mlp_dim:  # timm rounds down
        ratio = (config.mlp_dim + 0.5) / config.hidden_size
    args: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": _number_or_pair(config.patch_size),
        "embed_dim": config.hidden_size,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "mlp_ratio": ratio,
        "act_layer": "gelu_tanh" if config.gelu == "tanh" else "gelu",
        "class_token": bool(config.prefix_tokens),
    }
    if config.classifier == "gap":
        args |= {"global_pool": "avg", "fc_norm": config.norm_after_pooling}
    return args


def _number_or_pair(size: Size) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
