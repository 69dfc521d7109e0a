"""What measuring a classifier gives: its figures, class by class, and what it said of every picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitreous.base.statistics import wilson
from vitreous.data.dataset import Split
from vitreous.prediction import Predictor


@dataclass(frozen=True)
class ClassResult:
    """One class: how many pictures it has, and how many of them were put into it."""

    label: str
    n: int
    correct: int

    @property
    def accuracy(self) -> float | None:
        """The share put right, or None for a class without pictures."""
        return self.correct / self.n if self.n else None


@dataclass(frozen=True, eq=False)
class Scores:
    """The figures of one measurement.

    Args:
        n: number of pictures.
        loss: mean cross-entropy, nats.
        top1, top5: share of pictures whose class is the first, or among the first five.
        classes: one result a class, in the model's order.
        confusion: (K, K) counts, true class by predicted class; None for more than 2,000 classes.
        split: (n) the pictures measured.
        guesses: (n, k) the k <= 5 most probable classes, best first.
        probabilities: (n, k) the probabilities of the guesses.
        data: which data and split.
        predictor: what was measured.
        skipped: names of those that could not be read; they are not among the n.
    """

    n: int
    loss: float
    top1: float
    top5: float
    classes: tuple[ClassResult, ...]
    confusion: np.ndarray | None
    split: Split
    guesses: np.ndarray
    probabilities: np.ndarray
    data: str
    predictor: Predictor = field(repr=False)
    skipped: tuple[str, ...] = ()

    @property
    def names(self) -> Sequence[str]:
        """(n) the names of the pictures."""
        return self.split.names

    @property
    def labels(self) -> np.ndarray:
        """(n,) the true classes."""
        return self.split.labels

    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of `top1`, for pictures drawn independently."""
        return wilson(round(self.top1 * self.n), self.n)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without the single pictures."""
        return {
            "data": self.data,
            "n": self.n,
            "top1": self.top1,
            "top1_interval": self.interval(),
            "top5": self.top5,
            "loss": self.loss,
            "skipped": list(self.skipped),
            "classes": [
                {"label": c.label, "n": c.n, "correct": c.correct, "accuracy": c.accuracy} for c in self.classes
            ],
            "confusion": None if self.confusion is None else self.confusion.tolist(),
        }
