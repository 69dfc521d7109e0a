"""Batches of pictures: for training as a function of the position in the run, for evaluation each once."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vitreous.base.errors import ImageError, VitreousError
from vitreous.base.machine import cores
from vitreous.base.seeds import derive, seeded
from vitreous.data.augment import Augmentation
from vitreous.data.dataset import Split
from vitreous.data.mixing import Labelled, Mixing
from vitreous.pictures.images import open_rgb


@dataclass(frozen=True)
class Broken:
    """A picture that cannot be read, and why. It travels as a value: workers would wrap an error beyond reading."""

    index: int
    error: VitreousError


Item = Labelled | tuple[Tensor, Tensor] | Broken  # (C, h, w) float32, and a class or (K,) how much of each class
Images = Tensor | list[Tensor]  # (B, C, h, w), or (C, h, w) each where they are not of one size
Batch = tuple[Images, Tensor]  # and (B,) int64 or (B, K) float32


class Pictures(Protocol):
    """What `batches` draws from."""

    def __getitem__(self, position: int) -> Item: ...


class TrainingPictures:
    """The endless stream of augmented pictures, addressed by position.

    Position p belongs to epoch p // n, and within it to place p % n of that epoch's order,
    which is a permutation drawn from (seed, epoch). Crop, flip and the rest are drawn from
    (seed, p), the strength of mixing from (seed, step). So any part of the stream can be had
    from anywhere, by any number of workers.

    A picture that cannot be read leaves a gap: nothing takes its place, and the picture that it
    would have been mixed into stays unmixed.
    """

    def __init__(self, split: Split, augmentation: Augmentation, seed: int, mixing: Mixing | None = None) -> None:
        self.split, self.augmentation, self.seed, self.mixing = split, augmentation, seed, mixing

    def __getitem__(self, position: int) -> Item:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Item]:
        """Several at once, as the loader asks: a picture that is mixed into another is then decoded once."""
        if self.mixing is None:
            return [self.single(position) for position in positions]
        wanted = {place for position in positions for place in (position, self.mixing.partner(position))}
        single = {position: self.single(position) for position in sorted(wanted)}
        items: list[Item] = []
        for position in positions:
            own, other = single[position], single[self.mixing.partner(position)]
            if not isinstance(own, Broken):
                items.append(self.mixing(position, own, None if isinstance(other, Broken) else other))
            else:
                items.append(own)
        return items

    def index(self, position: int) -> int:
        """Which picture of the split stands at a position."""
        epoch, place = divmod(position, len(self.split))
        return int(_order(len(self.split), self.seed, epoch)[place])

    def single(self, position: int) -> Labelled | Broken:
        """One picture before it is mixed with another."""
        index = self.index(position)
        try:
            picture = open_rgb(self.split.open(index), at_least=self.augmentation.needed())
        except VitreousError as error:
            return Broken(index, _located(error, self.split, index))
        with seeded(derive(self.seed, "augment", position)):
            return self.augmentation(picture), int(self.split.labels[index])


@lru_cache(maxsize=2)
def _order(n: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(derive(seed, "order", epoch)))


class EvaluationPictures:
    """Every picture of a split once, in order, prepared as for prediction.

    Args:
        split: the pictures.
        load: what prepares one of them: `Predictor.load`.
    """

    def __init__(self, split: Split, load: Callable[[Any], Tensor]) -> None:
        self.split, self.load = split, load

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Item:
        try:
            return self.load(self.split.open(index)), int(self.split.labels[index])
        except VitreousError as error:
            return Broken(index, _located(error, self.split, index))


def _located(error: VitreousError, split: Split, index: int) -> VitreousError:
    where = split.location(index)
    return error if where in str(error) else ImageError(f"{where}: {error}")


def batches(
    pictures: Pictures,
    positions: Sequence[int],
    batch_size: int,
    num_workers: int | None = None,
    skipped: list[Broken] | None = None,
) -> Iterator[Batch]:
    """Batches over the given positions, in order; the last may be smaller.

    Args:
        pictures: addressed by position.
        positions: which of them.
        batch_size: positions of a batch.
        num_workers: processes that decode; None for `default_workers`.
        skipped: None to stop at the first picture that cannot be read. A list to leave such
            pictures out of their batch, which gets smaller, down to none at all, and to put them
            into the list when that batch is handed out.

    Raises:
        VitreousError: the first picture that could not be read, by name.
    """
    workers = default_workers() if num_workers is None else num_workers
    loader: DataLoader[Any] = DataLoader(
        pictures,  # type: ignore[arg-type]
        batch_size=batch_size,
        sampler=positions,
        num_workers=workers,
        collate_fn=_collate,
        generator=torch.Generator(),  # for what the loader draws for itself, so that it leaves torch's own alone
        prefetch_factor=4 if workers else None,
        worker_init_fn=leave_signals_to_parent,
    )
    for images, targets, broken in loader:
        if broken and skipped is None:
            raise broken[0].error
        if skipped is not None:
            skipped += broken
        yield images, targets


def _collate(items: list[Item]) -> tuple[Images, Tensor, list[Broken]]:
    broken = [item for item in items if isinstance(item, Broken)]
    whole = [item for item in items if not isinstance(item, Broken)]
    one_size = len({item[0].shape for item in whole}) <= 1
    images: Images = [item[0] for item in whole]
    if one_size:
        images = torch.stack([item[0] for item in whole]) if whole else torch.empty(0)
    if whole and isinstance(whole[0][1], Tensor):
        return images, torch.stack([item[1] for item in whole]), broken  # type: ignore[misc]
    return images, torch.tensor([item[1] for item in whole], dtype=torch.int64), broken


def leave_signals_to_parent(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal: the parent decides when to stop, and ends the workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def default_workers() -> int:
    """Processes that decode while this one computes: half of the cores, at most 8; none on one or two cores.

    There, a worker would take turns with the threads of every matrix product, which wait for each other.
    """
    here = cores()
    return min(here // 2, 8) if here > 2 else 0
