"""Controls: maps that never saw the model. One that does no better than these says nothing about it."""

from typing import Any

from torch import Tensor

from vitreous.explain.explanation import Details, Explanation, Kind, explain
from vitreous.explain.question import Question, Subject, ask
from vitreous.explain.verification import blind


def noise(subject: Subject | Question, images: Any = None, *, seed: int = 0, target: Any = None) -> Explanation:
    """Uniform noise, another for every picture."""
    question = ask(subject, images, target=target)

    def compute(question: Question) -> tuple[Tensor, Details]:
        return blind.noise(question, seed), {}

    return _control(question, compute, "noise", "Noise: a control that saw neither picture nor model", seed=seed)


def centre(subject: Subject | Question, images: Any = None, *, target: Any = None) -> Explanation:
    """Minus the squared distance from the middle, in patches."""
    question = ask(subject, images, target=target)

    def compute(question: Question) -> tuple[Tensor, Details]:
        return blind.centre(question), {}

    return _control(question, compute, "centre", "Nearness to the middle: a control that saw neither picture nor model")


def edges(subject: Subject | Question, images: Any = None, *, target: Any = None) -> Explanation:
    """The standard deviation of luminance within each patch: finds edges, and never sees the model."""
    question = ask(subject, images, target=target)

    def compute(question: Question) -> tuple[Tensor, Details]:
        return blind.edges(question), {}

    return _control(question, compute, "edges", "Contrast within each patch: a control that never saw the model")


def _control(question: Question, compute: Any, method: str, caption: str, **settings: Any) -> Explanation:
    return explain(question, compute, method=method, kind=Kind.CONTROL, caption=caption, unit="no unit", **settings)
