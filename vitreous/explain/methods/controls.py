"""Maps that never saw the model. One that does no better than these says nothing about it."""

from typing import Any

import torch
from torch import Tensor

from vitreous.explain.explanation import Details, Explanation, Kind, explain
from vitreous.explain.question import Question, Subject, ask
from vitreous.model import patchify


def random(subject: Subject | Question, images: Any = None, *, seed: int = 0, target: Any = None) -> Explanation:
    """Uniform noise, another for every picture."""
    question = ask(subject, images, target=target)

    def compute(question: Question) -> tuple[Tensor, Details]:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(len(question.images), *question.grid, generator=generator).to(question.images), {}

    return _control(question, compute, "random", "Noise: a control that saw neither picture nor model", seed=seed)


def centre(subject: Subject | Question, images: Any = None, *, target: Any = None) -> Explanation:
    """Minus the squared distance from the middle, in patches."""
    question = ask(subject, images, target=target)

    def compute(question: Question) -> tuple[Tensor, Details]:
        rows, columns = (torch.arange(n) - (n - 1) / 2 for n in question.grid)
        values = -(rows[:, None].square() + columns.square())  # (h, w)
        return values.to(question.images).expand(len(question.images), -1, -1), {}

    return _control(question, compute, "centre", "Nearness to the middle: a control that saw neither picture nor model")


def contrast(subject: Subject | Question, images: Any = None, *, target: Any = None) -> Explanation:
    """The standard deviation of luminance within each patch: finds edges, and never sees the model."""
    question = ask(subject, images, target=target)

    def compute(question: Question) -> tuple[Tensor, Details]:
        x = question.images
        if question.preprocess is not None:  # back to pixels from 0 to 1
            mean, std = torch.tensor(question.preprocess.mean), torch.tensor(question.preprocess.std)
            x = x * std.to(x)[:, None, None] + mean.to(x)[:, None, None]
        weight = x.new_tensor((0.299, 0.587, 0.114)) if x.shape[1] == 3 else x.new_full((x.shape[1],), 1 / x.shape[1])
        luminance = torch.einsum("bchw,c->bhw", x, weight)[:, None]  # (B, 1, H, W)
        values = patchify(luminance, question.model.config.stride).std(dim=-1, correction=0)  # (B, N)
        return values.unflatten(1, question.grid), {}

    return _control(question, compute, "contrast", "Contrast within each patch: a control that never saw the model")


def _control(question: Question, compute: Any, method: str, caption: str, **settings: Any) -> Explanation:
    return explain(question, compute, method=method, kind=Kind.CONTROL, caption=caption, unit="no unit", **settings)
