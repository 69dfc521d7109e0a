"""What another precision does to a classifier's accuracy, measured on data."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch

from vitreous.classifier import Classifier
from vitreous.data.dataset import DataSet
from vitreous.data.loading import EvaluationPictures, batches
from vitreous.data.open import open_data
from vitreous.engine.runtimes import Run
from vitreous.evaluation.evaluate import measured_split


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
    dataset = open_data(data)
    split, name = measured_split(clf, dataset)
    before = after = same = n = 0
    for images, labels in batches(EvaluationPictures(split, clf.preprocess), range(len(split)), batch_size):
        ours, theirs = clf.compute(images).cpu().argmax(-1), run(images).argmax(-1)  # (B,) each
        n += len(labels)
        before += int((ours == labels).sum())
        after += int((theirs == labels).sum())
        same += int((ours == theirs).sum())
    return Accuracy(n, before / n, after / n, same / n, f"{split.root.name} ({name})")


def in_float32(clf: Classifier) -> Classifier:
    """The same classifier in float32 on the CPU, what every runtime is compared with."""
    if clf.model.position_embedding.dtype == torch.float32 and clf.device.type == "cpu":
        return clf
    model = copy.deepcopy(clf.model).to("cpu", torch.float32)
    return Classifier(model, clf.preprocess, clf.labels, clf.provenance)
