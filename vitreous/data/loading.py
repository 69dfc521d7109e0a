"""Batches of pictures: for training as a function of the position in the run, for evaluation each once."""

import os
import signal
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitreous.data.augment import Augmentation
from vitreous.data.source import Split
from vitreous.errors import ImageError, VitreousError
from vitreous.images import read_image
from vitreous.preprocess import Preprocess
from vitreous.seeds import derive, seeded

Item = tuple[Tensor, int] | VitreousError  # an error travels as a value: workers would wrap it beyond reading
Batch = tuple[Tensor, Tensor]  # (B, C, H, W) float32 and (B,) int64


class TrainingPictures(Dataset[Item]):
    """The endless stream of augmented pictures, addressed by position.

    Position p belongs to epoch p // n, and within it to place p % n of that epoch's order,
    which is a permutation drawn from (seed, epoch). Crop, flip and the rest are drawn from
    (seed, p). So any part of the stream can be had from anywhere, by any number of workers.
    """

    def __init__(self, split: Split, augmentation: Augmentation, preprocess: Preprocess, seed: int) -> None:
        self.split, self.augmentation, self.preprocess, self.seed = split, augmentation, preprocess, seed

    def __getitem__(self, position: int) -> Item:
        epoch, place = divmod(position, len(self.split))
        index = int(_order(len(self.split), self.seed, epoch)[place])
        try:
            image = read_image(self.split.open(index), at_least=self.augmentation.needed())  # (3, H, W)
        except VitreousError as error:
            return _located(error, self.split, index)
        with seeded(derive(self.seed, "augment", position)):
            image = self.augmentation(image)  # (3, h, w)
        return self.preprocess.normalise(image), int(self.split.labels[index])


@lru_cache(maxsize=4)
def _order(n: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(derive(seed, "order", epoch)))


class EvaluationPictures(Dataset[Item]):
    """Every picture of a split once, in order, prepared as for prediction."""

    def __init__(self, split: Split, preprocess: Preprocess) -> None:
        self.split, self.preprocess = split, preprocess

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Item:
        try:
            return self.preprocess.load(self.split.open(index)), int(self.split.labels[index])
        except VitreousError as error:
            return _located(error, self.split, index)


def _located(error: VitreousError, split: Split, index: int) -> VitreousError:
    where = split.location(index)
    return error if where in str(error) else ImageError(f"{where}: {error}")


def batches(
    dataset: Dataset[Item], positions: Sequence[int], batch_size: int, num_workers: int | None = None
) -> Iterator[Batch]:
    """Batches over the given positions of a data set, in order; the last may be smaller.

    Raises:
        VitreousError: the first picture that could not be read, by name.
    """
    workers = default_workers() if num_workers is None else num_workers
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=positions,
        num_workers=workers,
        collate_fn=_collate,
        generator=torch.Generator(),  # for what the loader draws for itself, so that it leaves torch's own alone
        prefetch_factor=4 if workers else None,
        worker_init_fn=_leave_signals_to_parent,
    )
    for batch in loader:
        if isinstance(batch, VitreousError):
            raise batch
        yield batch


def _collate(items: list[Item]) -> Batch | VitreousError:
    for item in items:
        if isinstance(item, VitreousError):
            return item
    return torch.stack([item[0] for item in items]), torch.tensor([item[1] for item in items])  # type: ignore[index]


def _leave_signals_to_parent(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal: the parent decides when to stop, and ends the workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def default_workers() -> int:
    """Processes that decode while this one computes: half of the cores, at most 8; none on one or two cores.

    There, a worker would take turns with the threads of every matrix product, which wait for each other.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores // 2, 8) if cores > 2 else 0
