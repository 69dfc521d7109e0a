"""What another precision does to a classifier's accuracy, measured on data."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitreous.classifier import Classifier
from vitreous.config import ViTConfig
from vitreous.data.dataset import DataSet
from vitreous.data.open import open_data
from vitreous.engine.runtimes import Run
from vitreous.evaluation.evaluate import measured_split
from vitreous.evaluation.outputs import outputs
from vitreous.prediction import Predictor


@dataclass(frozen=True)
class Accuracy:
    """Top-1 of the same pictures before and after.

    Args:
        n: pictures.
        before: share put right in float32.
        after: share put right in the other precision.
        same: share given the same class by both.
        data: which data and split.
    """

    n: int
    before: float
    after: float
    same: float
    data: str

    def __str__(self) -> str:
        before, after = 100 * self.before, 100 * self.after
        return (
            f"top-1 {before:.1f} % -> {after:.1f} % ({after - before:+.1f} points) "
            f"on {self.n} pictures of {self.data}; {100 * self.same:.1f} % get the same class"
        )


def compare(clf: Classifier, run: Run, data: str | Path | DataSet, batch_size: int = 16) -> Accuracy:
    """Both on the pictures that `evaluate` would measure.

    Raises:
        DataError: as `evaluate`.
        ImageError: a picture that cannot be read, by name.
    """
    split, name = measured_split(clf, open_data(data))
    found = outputs(_Beside(clf, run), split, batch_size=batch_size, progress=False)
    ours, theirs = (logits.argmax(dim=1) for logits in found.logits.chunk(2, dim=1))  # (n,) each
    before, after, same = (float(hits.double().mean()) for hits in (ours == found.labels, theirs == found.labels,
                                                                     ours == theirs))  # fmt: skip
    return Accuracy(len(found.split), before, after, same, f"{split.root.name} ({name})")


class _Beside(Predictor):
    """The logits of a classifier and of another runtime side by side, (B, 2 K): each picture is decoded once."""

    def __init__(self, clf: Classifier, run: Run) -> None:
        super().__init__(clf.preprocess, clf.labels)
        self.clf, self.run = clf, run

    @property
    def config(self) -> ViTConfig:
        return self.clf.config

    def compute(self, images: Tensor) -> Tensor:
        return torch.cat([self.clf.compute(images).cpu(), self.run(images)], dim=1)  # (B, 2 K)

    def check_head(self) -> None:
        self.clf.check_head()


def in_float32(clf: Classifier) -> Classifier:
    """The same classifier in float32 on the CPU, what every runtime is compared with."""
    if clf.model.position_embedding.dtype == torch.float32 and clf.device.type == "cpu":
        return clf
    model = copy.deepcopy(clf.model).to("cpu", torch.float32)
    return Classifier(model, clf.preprocess, clf.labels, clf.provenance)
