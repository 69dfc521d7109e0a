"""The architecture of a weight file, from the sizes that its tensors have in whatever names and order of axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.base.errors import ConfigError, WeightsError
from vitreous.config import ResNetConfig, Size, ViTConfig

# Heads by width, in all published models of these families (Touvron et al. 2021; Dosovitskiy et al. 2021; timm).
HEADS = {192: 3, 384: 6, 512: 8, 640: 10, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1664: 16}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the shapes of the tensors say.

    Args:
        kernel: (P1, P2) of the patch embedding's convolution.
        channels: of the picture.
        hidden_size: D.
        mlp_dim: width of the MLP's hidden layer.
        num_layers: blocks.
        num_heads: heads of the attention, where a shape tells.
        num_classes: K; 0 without a head.
        representation_size: width of the pre-logits layer; None without one.
        positions: rows of the position embedding.
        has_cls: whether there is a class token.
        class_row_optional: whether the position embedding may have no row for the class token (`no_embed_class`).
        stages: units of each stage of a ResNet stem; None without one.
        root_width: channels of the stem's first convolution.
    """

    kernel: Size
    channels: int
    hidden_size: int
    mlp_dim: int
    num_layers: int
    num_heads: int | None
    num_classes: int
    representation_size: int | None
    positions: int
    has_cls: bool
    class_row_optional: bool = False
    stages: tuple[int, ...] | None = None
    root_width: int = 64


def infer_config(
    sizes: Sizes,
    source: str,
    settings: Mapping[str, Any],
    *,
    stated: Sequence[Size] = (),
    asked: Size | None = None,
    num_heads: int | None = None,
) -> ViTConfig:
    """The configuration that a file's shapes, and what is known besides, amount to.

    Args:
        sizes: what the shapes say.
        source: what messages call the file.
        settings: fields of `ViTConfig` that no shape tells; under `"resnet"`, those of a stem.
        stated: image sizes that something says the positions are for.
        asked: the image size wanted, for a grid that is not square.
        num_heads: heads, where neither shapes nor settings tell.

    Raises:
        WeightsError: no such grid or number of heads, or sizes that do not fit together.
    """
    try:
        resnet = _resnet(sizes, settings.get("resnet") or {})
        stride = resnet.stride if resnet else 1
        by = sizes.kernel[0] * stride, sizes.kernel[1] * stride
        grid = infer_grid(sizes, by, stated, asked, source)
        derived = dict(
            image_size=(grid[0] * by[0], grid[1] * by[1]),
            patch_size=sizes.kernel,
            in_channels=sizes.channels,
            hidden_size=sizes.hidden_size,
            num_layers=sizes.num_layers,
            num_heads=_heads(sizes, settings.get("num_heads") or num_heads, source),
            mlp_dim=sizes.mlp_dim,
            num_classes=sizes.num_classes,
            classifier="token" if sizes.has_cls else "gap",
            representation_size=sizes.representation_size,
            resnet=resnet,
        )
        own = {field: value for field, value in settings.items() if field not in ("num_heads", "resnet")}
        return ViTConfig(**{**derived, **own})
    except ConfigError as error:
        raise WeightsError(f"{source}: {error}") from None


def infer_grid(sizes: Sizes, stride: Size, stated: Sequence[Size], asked: Size | None, source: str) -> Size:
    """(rows, columns) of patches: of a stated image size, else a square, else of the size asked for.

    A square comes before what is asked for, which may be a size to resize to.

    Raises:
        WeightsError: none of these has as many patches.
    """
    rows = sizes.positions
    possible = [rows - 1] if sizes.has_cls else [rows]
    if sizes.has_cls and sizes.class_row_optional:
        possible.append(rows)
    candidates = [(size, patches) for size in stated for patches in possible]
    for patches in possible:
        side = math.isqrt(max(patches, 0))
        candidates += [((side * stride[0], side * stride[1]), patches)]
        candidates += [(asked, patches)] if asked else []
    for size, patches in candidates:
        grid = size[0] // stride[0], size[1] // stride[1]
        if patches > 0 and grid[0] * grid[1] == patches:
            return grid
    raise WeightsError(
        f"{source} holds positions for {possible[0]} patches, which is no square grid: "
        "say the image size it was trained at with image_size=(height, width)"
    )


def _heads(sizes: Sizes, known: int | None, source: str) -> int:
    heads = sizes.num_heads or known or _usual_heads(sizes)
    if heads is None:
        raise WeightsError(
            f"{source} does not say how many attention heads it has, and no published model is "
            f"{sizes.hidden_size} wide{'' if sizes.has_cls else ' without a class token'}: give num_heads=..."
        )
    return heads


def _usual_heads(sizes: Sizes) -> int | None:
    if (sizes.hidden_size, sizes.mlp_dim) == (768, 2304):  # timm's first `vit_small`, before AugReg
        return 8
    if sizes.hidden_size == 768 and not sizes.has_cls:  # 12 in most, 16 in I-JEPA's
        return None
    return HEADS.get(sizes.hidden_size)


def _resnet(sizes: Sizes, settings: Mapping[str, Any]) -> ResNetConfig | None:
    if sizes.stages is None:
        return None
    return ResNetConfig(num_layers=sizes.stages, width_factor=sizes.root_width / 64, **settings)
