"""Measuring a classifier on labelled pictures: accuracy, loss, confusion and per-class figures; each picture once."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.base import processes
from vitreous.base.errors import DataError
from vitreous.base.files import write_text
from vitreous.data.dataset import DataSet, Split
from vitreous.data.open import open_data
from vitreous.evaluation import metrics
from vitreous.evaluation.outputs import outputs
from vitreous.evaluation.report import Story, write_report
from vitreous.evaluation.scores import ClassResult, Scores
from vitreous.prediction import Predictor

logger = logging.getLogger("vitreous")


class Evaluation(Scores):
    """What `evaluate` measured."""

    def save(self, out: str | Path, story: Story | None = None, more: dict[str, Any] | None = None) -> None:
        """Write `metrics.json` and `report.html` into a folder.

        Args:
            out: the folder.
            story: what the page says besides what was measured.
            more: further entries of `metrics.json`.
        """
        write_text(Path(out) / "metrics.json", json.dumps({**self.to_dict(), **(more or {})}, indent=1))
        write_report(Path(out) / "report.html", self, story)


def evaluate(
    predictor: Predictor,
    data: str | Path | DataSet,
    split: str | None = None,
    *,
    batch_size: int = 32,
    num_workers: int | None = None,
    progress: bool = True,
    on_broken: str = "stop",
) -> Evaluation:
    """Measure a classifier, a compiled one or an exported file on a data set with the model's classes.

    Args:
        predictor: what to measure.
        data: a data set, or its place: see `open_data`.
        split: `"train"`, `"val"`, `"test"` or `"all"`. None takes val, or else test, or else all;
            of a data set without splits that the model was trained on, the pictures held out then.
        batch_size: pictures computed at once; the result does not depend on it beyond rounding.
        num_workers: processes that decode; None for half of the cores.
        progress: whether a bar on stderr shows how far it is.
        on_broken: `"stop"` at a picture that cannot be read, or `"skip"` it: it is then not among the n
            pictures, but listed.

    Raises:
        DataError: a class that the model does not know, or a split that the data has not.
        ImageError: a picture that cannot be read, by name.
        WeightsError: a model without a trained head.
    """
    chosen, name = measured_split(predictor, open_data(data), split)
    return evaluate_split(
        predictor, chosen, name, batch_size=batch_size, num_workers=num_workers, progress=progress, on_broken=on_broken
    )


def measured_split(predictor: Predictor, dataset: DataSet, split: str | None = None) -> tuple[Split, str]:
    """The pictures that `evaluate` measures, numbered by the model's classes, and what to call them."""
    chosen, name = _choose(predictor, dataset, split)
    if predictor.labels is None:
        classes = predictor.config.num_classes
        if len(chosen.classes) != classes:
            raise DataError(
                f"{dataset.root} has {len(chosen.classes)} classes, and the model has "
                f"{classes} without names: there is no telling which is which"
            )
        return chosen, name
    return chosen.with_classes(predictor.labels), name


def evaluate_split(
    predictor: Predictor,
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
    predictor.check_head()
    found = outputs(
        predictor, split, batch_size=batch_size, num_workers=num_workers, progress=progress, on_broken=on_broken,
        what="evaluating",
    )  # fmt: skip
    for gap in found.broken if processes.is_first() else ():
        logger.warning("skipped %s", gap.error)
    skipped = tuple(split.names[gap.index] for gap in found.broken)
    classes, split = found.logits.shape[1], found.split
    guesses, probabilities = metrics.guesses(found.logits)  # (n, k) each
    hits = guesses == split.labels[:, None]  # (n, k)
    counts = np.bincount(split.labels, minlength=classes).tolist()
    correct = np.bincount(split.labels[hits[:, 0]], minlength=classes).tolist()
    return Evaluation(
        n=len(split),
        loss=metrics.cross_entropy(found.logits, found.labels),
        top1=float(hits[:, 0].mean()),
        top5=float(hits.any(axis=1).mean()),
        classes=tuple(ClassResult(predictor.label(i), counts[i], correct[i]) for i in range(classes)),
        confusion=metrics.confusion(guesses[:, 0], split.labels, classes),
        split=split,
        guesses=guesses,
        probabilities=probabilities,
        data=f"{split.root.name} ({name})",
        predictor=predictor,
        skipped=skipped,
    )


def _choose(predictor: Predictor, dataset: DataSet, split: str | None) -> tuple[Split, str]:
    trained_on = predictor.provenance.get("data") or {}
    held_out = trained_on.get("held_out")
    whole = dataset.unsplit()
    if whole is not None and held_out and whole.fingerprint() == trained_on["fingerprint"] and split != "all":
        train, val = whole.hold_out(held_out["fraction"], held_out["seed"])
        return (train, "trained on") if split == "train" else (val, "held out in training")
    name = split or next(name for name in ("val", "test", "all", "train") if name in dataset.splits)
    return dataset.split(name), name
