"""Bringing learned position embeddings to another grid of patches.

A fine-tuned ViT at a higher resolution has more patches than it learned positions for. The
paper interpolates them in 2-D by their place in the image (section 3.2). Each family of
ViT code does so in its own way, and the results differ by more than rounding, so the mode
belongs to the checkpoint (`ViTConfig.position_resize`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.config import PositionResize, Size

# What each family hands to the interpolation of its framework.
MODES: dict[PositionResize, dict[str, str | bool]] = {
    # scipy.ndimage.zoom(order=1): corner cells stay on the corners (vit_jax `checkpoint.py`).
    "google": dict(mode="bilinear", align_corners=True, antialias=False),
    # `resample_abs_pos_embed`, used when timm loads or runs at another size.
    "timm": dict(mode="bicubic", align_corners=False, antialias=True),
    # timm reading a Google .npz file.
    "timm_npz": dict(mode="bilinear", align_corners=False, antialias=False),
    # `interpolate_pos_encoding` of Hugging Face's ViT and DINOv2; MAE's `interpolate_pos_embed`.
    "huggingface": dict(mode="bicubic", align_corners=False, antialias=False),
    # `torchvision.models.vision_transformer.interpolate_embeddings`.
    "torchvision": dict(mode="bicubic", align_corners=True, antialias=False),
    # `interpolate_pos_encoding` of DINO and DINOv2 themselves: as "huggingface", with OFFSET.
    "dino": dict(mode="bicubic", align_corners=False, antialias=False),
}
# DINO scales by (new + 0.1) / old, so that rounding never loses a cell; the samples lie a little closer together.
OFFSET = 0.1


def resize_positions(
    positions: Tensor, old_grid: Size, new_grid: Size, *, prefix: int, mode: PositionResize = "google"
) -> Tensor:
    """Interpolate position embeddings from one grid of patches to another.

    The `prefix` rows in front (the CLS token's) have no place in the image and stay as they
    are, bit for bit. How many there are is stated, never guessed from the number of tokens:
    4 x 49 = 196 + 0 could as well be 195 + 1.

    Args:
        positions: (1, prefix + h*w, D) for `old_grid` (h, w), rows first.
        old_grid: (h, w) patches that the positions were learned for; need not be square.
        new_grid: (h', w') patches wanted.
        prefix: tokens before the patches: 1 with a CLS token, 0 without.
        mode: the family whose arithmetic to follow, one of `MODES`.

    Returns:
        (1, prefix + h'*w', D) in the dtype given, computed in float64 so that the result does
        not depend on the order of summation. The same tensor when the grids are equal.

    Raises:
        ConfigError: when the rows are not `prefix + h*w`, or the mode is unknown.
    """
    if mode not in MODES:
        raise ConfigError(f"unknown position resize mode {mode!r}: one of {', '.join(MODES)}")
    if positions.ndim != 3 or positions.shape[1] != prefix + old_grid[0] * old_grid[1]:
        raise ConfigError(
            f"positions of shape {tuple(positions.shape)} do not belong to a {old_grid[0]}x{old_grid[1]} grid "
            f"with {prefix} prefix token(s): {prefix + old_grid[0] * old_grid[1]} rows expected"
        )
    if old_grid == new_grid:
        return positions
    cls, patches = positions[:, :prefix], positions[:, prefix:]  # (1, prefix, D), (1, h*w, D)
    grid = patches.double().unflatten(1, old_grid).permute(0, 3, 1, 2)  # (1, D, h, w)
    where: dict[str, Any] = {"size": new_grid}
    if mode == "dino":
        where = {"scale_factor": tuple((new + OFFSET) / old for new, old in zip(new_grid, old_grid, strict=True))}
    grid = F.interpolate(grid, **where, **MODES[mode])  # type: ignore[arg-type]  # (1, D, h', w')
    patches = grid.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)  # (1, h'*w', D)
    return torch.cat([cls, patches], dim=1)
