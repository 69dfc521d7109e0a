"""Maps that never saw the model, as tensors: whatever does no better than these says nothing about it."""

import torch
from torch import Tensor

from vitreous.explain.question import Question
from vitreous.model import patchify

LUMINANCE = (0.299, 0.587, 0.114)  # of R, G and B: ITU-R BT.601


def noise(question: Question, seed: int) -> Tensor:
    """Uniform noise, another for every picture: (B, h, w)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(question.images), *question.grid, generator=generator).to(question.images)


def centre(question: Question) -> Tensor:
    """Minus the squared distance from the middle, in patches: (B, h, w)."""
    rows, columns = (torch.arange(n) - (n - 1) / 2 for n in question.grid)
    values = -(rows[:, None].square() + columns.square())  # (h, w)
    return values.to(question.images).expand(len(question.images), -1, -1)


def edges(question: Question) -> Tensor:
    """The standard deviation of luminance within each patch: (B, h, w)."""
    x = question.images  # (B, C, H, W)
    if question.preprocess is not None:
        x = question.preprocess.denormalise(x)
    weight = x.new_tensor(LUMINANCE) if x.shape[1] == 3 else x.new_full((x.shape[1],), 1 / x.shape[1])
    luminance = torch.einsum("bchw,c->bhw", x, weight)[:, None]  # (B, 1, H, W)
    values = patchify(luminance, question.model.config.stride).std(dim=-1, correction=0)  # (B, N)
    return values.unflatten(1, question.grid)
