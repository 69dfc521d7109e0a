"""Which pictures of the run's stream a process computes at every step, and their batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from torch import Tensor

from vitreous.base import processes
from vitreous.base.errors import ConfigError
from vitreous.data.augment import Augmentation
from vitreous.data.dataset import Split
from vitreous.data.loading import Broken, TrainingPictures, batches
from vitreous.data.mixing import Mixing
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.recipe import Recipe


@dataclass(frozen=True)
class Positions(Sequence[int]):
    """The positions of one process, in order.

    Each batch is cut into `accum_steps` parts, and each part into equal shares, one a process.
    So position p belongs to step p // batch_size however many parts and processes there are.

    Args:
        first, last: steps of the run, from the first to before the last.
        batch_size: pictures of a step, over all parts and processes.
        accum_steps: parts of a step.
        rank, ranks: which process of how many.

    Raises:
        ConfigError: a batch that cannot be cut so.
    """

    first: int
    last: int
    batch_size: int
    accum_steps: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % (self.accum_steps * self.ranks):
            raise ConfigError(
                f"batch_size {self.batch_size} cannot be cut into accum_steps {self.accum_steps} parts for each of "
                f"{self.ranks} processes: make it a multiple of {self.accum_steps * self.ranks}"
            )

    @property
    def size(self) -> int:
        """Pictures of one part for one process."""
        return self.batch_size // (self.accum_steps * self.ranks)

    def __len__(self) -> int:
        return (self.last - self.first) * self.accum_steps * self.size

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [self[i] for i in range(len(self))[place]]
        if not 0 <= place < len(self):
            raise IndexError(place)
        part, within = divmod(place, self.size)
        return self.first * self.batch_size + (part * self.ranks + self.rank) * self.size + within


@dataclass(frozen=True)
class Part:
    """What a process computes at once: images (b, C, H, W), targets (b,) or (b, K), positions of the b pictures."""

    images: Tensor
    targets: Tensor
    positions: list[int]
    gaps: list[Broken]


def parts(
    split: Split, preprocess: Preprocess, recipe: Recipe, first: int, num_workers: int | None = None
) -> Iterator[Part]:
    """All parts of this process from step `first` on; a picture that cannot be read leaves a gap.

    Raises:
        VitreousError: the first picture that cannot be read, unless the recipe skips those.
    """
    augmentation = Augmentation(
        preprocess,
        recipe.crop_area,
        recipe.flip,
        recipe.augment,
        recipe.augment_layers,
        recipe.augment_magnitude,
        recipe.erasing,
    )
    mixing = None
    if recipe.mixup or recipe.cutmix_alpha:
        mixing = Mixing(recipe.batch_size, len(split.classes), recipe.mixup, recipe.cutmix_alpha, recipe.seed)
    pictures = TrainingPictures(split, augmentation, recipe.seed, mixing)
    positions = Positions(
        first, recipe.steps, recipe.batch_size, recipe.accum_steps, processes.rank(), processes.count()
    )
    gaps: list[Broken] = []
    skipped = gaps if recipe.on_broken == "skip" else None
    for number, (images, targets) in enumerate(batches(pictures, positions, positions.size, num_workers, skipped)):
        assert isinstance(images, Tensor)  # augmentation brings all to one size
        if not len(images):
            images = images.new_empty(0, len(preprocess.mean), *preprocess.size)
        own = positions[number * positions.size : (number + 1) * positions.size]
        broken = {gap.index for gap in gaps}
        yield Part(images, targets, [p for p in own if pictures.index(p) not in broken] if gaps else own, gaps[:])
        gaps.clear()
