"""The ways of bringing positions to another grid: each family's mode, and the ways that are wrong."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import VisionTransformer
from vitreous.base.seeds import derive
from vitreous.config import Size
from vitreous.positions import MODES, resize_positions


def resized(mode: str) -> Callable[[Tensor, Size, Size, int], Tensor]:
    return lambda p, old, new, seed: resize_positions(p, old, new, prefix=1, mode=mode)  # type: ignore[arg-type]


def along_the_sequence(p: Tensor, old: Size, new: Size, seed: int) -> Tensor:
    """The table stretched as one line of tokens: rows run into each other."""
    line = F.interpolate(p[:, 1:].transpose(1, 2), size=new[0] * new[1], mode="linear", align_corners=True)
    return torch.cat([p[:, :1], line.transpose(1, 2)], dim=1)


def tiled(p: Tensor, old: Size, new: Size, seed: int) -> Tensor:
    """The table repeated until it is long enough."""
    count = new[0] * new[1]
    return torch.cat([p[:, :1], p[:, 1:].repeat(1, -(-count // p[:, 1:].shape[1]), 1)[:, :count]], dim=1)


def transposed(p: Tensor, old: Size, new: Size, seed: int) -> Tensor:
    """Resized rightly, then read column by column: width and height mixed up."""
    right = resize_positions(p, old, new, prefix=1, mode="google")
    swapped = right[:, 1:].unflatten(1, new).transpose(1, 2).flatten(1, 2)
    return torch.cat([right[:, :1], swapped], dim=1)


def drawn_anew(p: Tensor, old: Size, new: Size, seed: int) -> Tensor:
    """Normal, deviation 0.02, as in a new model; the CLS row kept."""
    generator = torch.Generator().manual_seed(derive(seed, "positions"))
    fresh = 0.02 * torch.randn(1, new[0] * new[1], p.shape[2], generator=generator)
    return torch.cat([p[:, :1], fresh], dim=1)


WRONG = {
    "stretched as a sequence": along_the_sequence,
    "tiled": tiled,
    "rows and columns swapped": transposed,
    "drawn anew": drawn_anew,
}
WAYS = {f"resized: {mode}": resized(mode) for mode in MODES} | WRONG


def at_size(model: VisionTransformer, size: int, way: str, seed: int) -> VisionTransformer:
    """A copy of the model for pictures of another size, its positions brought there in one way."""
    made = copy.deepcopy(model)
    config = made.config.replace(image_size=size)
    positions = WAYS[way](made.position_embedding.data, made.config.grid, config.grid, seed)
    made.position_embedding, made.config = nn.Parameter(positions), config
    return made
