"""Accuracy, loss, confusion and per-class figures; every picture counted once."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitreous.base import processes
from vitreous.base.errors import DataError
from vitreous.base.progress import progress as progress_bar
from vitreous.base.statistics import wilson
from vitreous.classifier import Classifier
from vitreous.data.dataset import DataSet, Split
from vitreous.data.loading import Broken, EvaluationPictures, batches
from vitreous.data.open import open_data

logger = logging.getLogger("vitreous")
MOST_CLASSES_OF_A_CONFUSION = 2000


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


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measured.

    Args:
        n: pictures.
        loss: mean cross-entropy, nats.
        top1, top5: share of pictures whose class is the first, or among the first five.
        classes: one result a class, in the model's order.
        confusion: (K, K) counts, true class by predicted class; None for more than 2,000 classes.
        split: (n) the pictures measured.
        guesses: (n, k) the k <= 5 most probable classes, best first.
        probabilities: (n, k) of the guesses.
        data: which data and split.
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
    skipped: tuple[str, ...] = ()

    @property
    def names(self) -> Sequence[str]:
        """(n) of the pictures."""
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


def evaluate(
    clf: Classifier,
    data: str | Path | DataSet,
    split: str | None = None,
    *,
    batch_size: int = 32,
    num_workers: int | None = None,
    progress: bool = True,
    on_broken: str = "stop",
) -> Evaluation:
    """Measure a classifier on a data set whose folders are named as the model's classes.

    Args:
        clf: what to measure.
        data: a folder or zip of class folders.
        split: `"train"`, `"val"`, `"test"` or `"all"`. None takes val, or else test, or else all;
            of a flat folder that the model was trained on, the pictures held out then.
        batch_size: pictures computed at once; the result does not depend on it beyond rounding.
        num_workers: processes that decode.
        on_broken: `"stop"` at a picture that cannot be read, or `"skip"` it: it is then not among the n
            pictures, but listed.

    Raises:
        DataError: a class that the model does not know, or a split that the data has not.
        ImageError: a picture that cannot be read, by name.
        WeightsError: a model without a trained head.
    """
    dataset = open_data(data)
    chosen, name = measured_split(clf, dataset, split)
    return evaluate_split(
        clf, chosen, name, batch_size=batch_size, num_workers=num_workers, progress=progress, on_broken=on_broken
    )


def measured_split(clf: Classifier, dataset: DataSet, split: str | None = None) -> tuple[Split, str]:
    """The pictures that `evaluate` measures, numbered by the model's classes, and what to call them."""
    chosen, name = _choose(clf, dataset, split)
    if clf.labels is None:
        if len(chosen.classes) != clf.model.config.num_classes:
            raise DataError(
                f"{dataset.root} has {len(chosen.classes)} classes, and the model has "
                f"{clf.model.config.num_classes} without names: there is no telling which is which"
            )
        return chosen, name
    return chosen.with_classes(clf.labels), name


def evaluate_split(
    clf: Classifier,
    split: Split,
    name: str = "val",
    *,
    batch_size: int = 32,
    num_workers: int | None = None,
    progress: bool = True,
    on_broken: str = "stop",
) -> Evaluation:
    """`evaluate` on pictures whose classes are numbered as the model's.

    Under `torchrun` each process computes a share of the pictures, each of them once, and all
    return the same.
    """
    clf.check_head()
    classes = clf.model.config.num_classes
    k = min(5, classes)
    loss, guesses, probabilities = 0.0, [torch.empty(0, k, dtype=torch.int64)], [torch.empty(0, k)]
    dtype, training = clf.model.position_embedding.dtype, clf.model.training
    clf.model.eval()
    pictures = EvaluationPictures(split, clf.preprocess)
    broken: list[Broken] = []
    skipped, own, show = broken if on_broken == "skip" else None, processes.share(len(split)), processes.is_first()
    with torch.inference_mode(), progress_bar("evaluating", len(own), show=progress and show) as advance:
        for images, labels in batches(pictures, own, batch_size, num_workers, skipped):
            if not len(images):
                continue  # none of them can be read
            logits = clf.model(images.to(clf.device, dtype)).float().cpu()  # (B, K)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            top = logits.softmax(dim=-1).topk(k, dim=-1)  # (B, k)
            guesses.append(top.indices)
            probabilities.append(top.values)
            advance(len(labels))
    clf.model.train(training)
    parts = processes.gather((loss, torch.cat(guesses), torch.cat(probabilities), broken))
    loss = sum(part[0] for part in parts)
    broken = [gap for part in parts for gap in part[3]]
    for gap in broken if processes.is_first() else ():
        logger.warning("skipped %s", gap.error)
    whole = np.delete(np.arange(len(split)), [b.index for b in broken])
    if not len(whole):
        raise DataError(f"none of the {len(split)} pictures of {split.root} ({name}) can be read")
    skipped_names = tuple(split.names[b.index] for b in broken)
    split = split.select(whole)
    ranked = torch.cat([part[1] for part in parts]).numpy()  # (n, k)
    hits = ranked == split.labels[:, None]  # (n, k)
    counts = np.bincount(split.labels, minlength=classes).tolist()
    correct = np.bincount(split.labels[hits[:, 0]], minlength=classes).tolist()
    return Evaluation(
        n=len(split),
        loss=loss / len(split),
        top1=float(hits[:, 0].mean()),
        top5=float(hits.any(axis=1).mean()),
        classes=tuple(ClassResult(clf.label(i), counts[i], correct[i]) for i in range(classes)),
        confusion=_confusion(ranked[:, 0], split.labels, classes),
        split=split,
        guesses=ranked,
        probabilities=torch.cat([part[2] for part in parts]).numpy(),
        data=f"{split.root.name} ({name})",
        skipped=skipped_names,
    )


def _confusion(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray | None:
    if classes > MOST_CLASSES_OF_A_CONFUSION:
        return None
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    return multiclass_confusion_matrix(torch.from_numpy(predicted), torch.from_numpy(true), classes).numpy()


def _choose(clf: Classifier, dataset: DataSet, split: str | None) -> tuple[Split, str]:
    trained_on = clf.provenance.get("data") or {}
    held_out = trained_on.get("held_out")
    whole = dataset.unsplit()
    if whole is not None and held_out and whole.fingerprint() == trained_on["fingerprint"] and split != "all":
        train, val = whole.hold_out(held_out["fraction"], held_out["seed"])
        return (train, "trained on") if split == "train" else (val, "held out in training")
    name = split or next(name for name in ("val", "test", "all", "train") if name in dataset.splits)
    return dataset.split(name), name
