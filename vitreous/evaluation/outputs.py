"""What a model says of every picture of a split: the one loop behind accuracy, features and all that is measured."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.base import processes
from vitreous.base.errors import ConfigError, DataError
from vitreous.base.progress import progress as progress_bar
from vitreous.classifier import Classifier
from vitreous.data.dataset import Split
from vitreous.data.loading import Broken, EvaluationPictures, batches
from vitreous.prediction import Predictor

SPILL = 2**30  # bytes of one table that stay in memory; a larger one lies in a temporary file
BLOCK = 2**24  # numbers that are copied or sent to other processes at once


class Part(NamedTuple):
    """One batch: which pictures of the split, and what was computed of them."""

    rows: list[int]
    logits: Tensor  # (b, K) float32, on the CPU
    features: Tensor | None  # (b, D)


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model says of all pictures that can be read.

    Args:
        split: (n) these pictures, with their classes.
        logits: (n, K) float32, in memory or, if large, in a temporary file.
        features: (n, D) float32, y of equation 4; None unless asked for.
        broken: what could not be read, and why; not among the n.
    """

    split: Split
    logits: Tensor
    features: Tensor | None
    broken: tuple[Broken, ...]

    @property
    def labels(self) -> Tensor:
        """(n,) int64, the true classes."""
        return torch.from_numpy(self.split.labels)


def outputs(
    predictor: Predictor,
    split: Split,
    *,
    features: bool = False,
    batch_size: int = 32,
    num_workers: int | None = None,
    progress: bool = True,
    on_broken: str = "stop",
    what: str = "computing",
) -> Outputs:
    """Run all pictures of a split through a predictor, each once.

    Under `torchrun` each process computes a share of them, and all return the same.

    Args:
        predictor: a classifier, a compiled one, or an exported file.
        split: the pictures.
        features: whether y is kept beside the logits; of a classifier alone.
        batch_size: pictures computed at once.
        num_workers: processes that decode; None for half of the cores.
        progress: whether a bar on stderr shows how far it is.
        on_broken: `"stop"` at a picture that cannot be read, or `"skip"` it.
        what: the name of the bar.

    Raises:
        ConfigError: features of something else than a classifier.
        DataError: no picture can be read.
        ImageError: a picture that cannot be read, by name.
    """
    if on_broken not in ("stop", "skip"):
        raise ConfigError(f"on_broken must be stop or skip, got {on_broken!r}")
    own = processes.share(len(split))
    broken: list[Broken] = []
    logits: Table | None = None
    represented: Table | None = None
    skipped: list[Broken] | None = broken if on_broken == "skip" else None
    show = progress and processes.is_first()
    with progress_bar(what, len(own), show=show) as advance:
        for part in stream(predictor, split, own, features=features, batch_size=batch_size, num_workers=num_workers,
                           broken=skipped):  # fmt: skip
            logits = (logits or Table(len(own), part.logits.shape[1])).add(part.logits)
            if part.features is not None:
                represented = (represented or Table(len(own), part.features.shape[1])).add(part.features)
            advance(len(part.rows))
    everything = [gap for gaps in processes.gather(tuple(broken)) for gap in gaps]
    n = len(split) - len(everything)
    if not n:
        raise DataError(f"none of the {len(split)} pictures of {split.root} can be read")
    whole = np.delete(np.arange(len(split)), [gap.index for gap in everything])
    return Outputs(split.select(whole), _gathered(logits, n), _gathered(represented, n) if features else None,
                   tuple(everything))  # fmt: skip


def stream(
    predictor: Predictor,
    split: Split,
    rows: Sequence[int],
    *,
    features: bool = False,
    batch_size: int = 32,
    num_workers: int | None = None,
    broken: list[Broken] | None = None,
) -> Iterator[Part]:
    """`outputs`, batch by batch, of some pictures; nothing is kept.

    Args:
        predictor: what computes.
        split: the pictures.
        rows: which of them, in this order.
        features: as in `outputs`.
        batch_size: pictures computed at once; fewer where some cannot be read.
        num_workers: processes that decode.
        broken: a list that gets what cannot be read; None to stop at the first of those.
    """
    if features and not isinstance(predictor, Classifier):
        raise ConfigError(f"features are had of a classifier, not of {type(predictor).__name__}")
    pictures, start = EvaluationPictures(split, predictor.load), 0
    seen = 0  # of the broken
    for images, _ in batches(pictures, rows, batch_size, num_workers, broken):
        gone = {gap.index for gap in (broken or [])[seen:]}
        seen += len(gone)
        chunk, start = rows[start : start + batch_size], start + batch_size
        here = [row for row in chunk if row not in gone]
        if not here:
            continue
        if features:
            assert isinstance(predictor, Classifier)
            assert isinstance(images, Tensor)
            y, logits = predictor.represent(images)  # (b, D), (b, K)
            yield Part(here, logits.cpu(), y.cpu())
        else:
            logits = predictor.compute(images) if isinstance(images, Tensor) else predictor.compute_all(images)
            yield Part(here, logits.cpu(), None)


class Table:
    """Rows of numbers that come one batch after the other, in memory or in a temporary file.

    Args:
        rows: the most that will come.
        width: numbers of a row.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.values = _empty(rows, width)  # (rows, width)
        self.length = 0

    def __bool__(self) -> bool:
        return True

    def add(self, values: Tensor) -> "Table":
        """Put (b, width) at the end."""
        self.values[self.length : self.length + len(values)] = values
        self.length += len(values)
        return self

    def taken(self) -> Tensor:
        """(n, width), what has come so far."""
        return self.values[: self.length]


def _empty(rows: int, width: int) -> Tensor:
    if rows * width * 4 <= SPILL:
        return torch.empty(rows, width)
    with tempfile.TemporaryFile(prefix="vitreous-") as file:  # gone from the folder, and from the disk with the map
        return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=(rows, width)))


def _gathered(table: Table | None, n: int) -> Tensor:
    """The rows of all processes in their order, block by block, so that no more than one block is on the way."""
    own = table.taken() if table is not None else torch.empty(0, 0)
    if processes.count() == 1:
        return own
    shapes: list[Any] = processes.gather(tuple(own.shape))
    width = max(shape[1] for shape in shapes)
    made, step, first = _empty(n, width), max(BLOCK // width, 1), 0
    for sender, (length, _) in enumerate(shapes):
        for start in range(0, length, step):
            block = own[start : start + step].clone() if sender == processes.rank() else None
            values = processes.gather(block)[sender]
            assert values is not None
            made[first + start : first + start + len(values)] = values
        first += length
    return made
