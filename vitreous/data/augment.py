"""What training does to a picture before the model sees it: crop, flip, and more by name.

All of it is torchvision's, drawing from torch's generator, which the caller seeds by the
position in the run.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from vitreous.config import Size
from vitreous.preprocess import Preprocess

AUGMENTS = ("none", "trivial", "rand")


@dataclass(frozen=True)
class Augmentation:
    """A random crop brought to the model's size, a mirror image half of the time, and an extra by name.

    Args:
        preprocess: gives the size and the interpolation.
        crop_area: least and greatest share of the picture's area; the official "inception crop"
            is (0.05, 1), with an aspect ratio between 3:4 and 4:3. None squashes the whole picture.
        flip: mirror left and right with probability 1/2. Off where left and right mean something.
        augment: `"none"`, `"trivial"` (TrivialAugmentWide) or `"rand"` (RandAugment, 2 operations of strength 15).

    Source: vit_jax `input_pipeline.py`; Szegedy et al. 2015; Müller & Hutter 2021; Steiner et al. 2022.
    """

    preprocess: Preprocess
    crop_area: tuple[float, float] | None = (0.05, 1.0)
    flip: bool = True
    augment: str = "none"

    def __call__(self, image: Tensor) -> Tensor:
        """(3, H, W) uint8 -> (3, h, w) uint8 of the model's size, drawn from torch's generator."""
        return self._transform(image)

    def needed(self) -> Size:
        """The least size at which the smallest crop still has the pixels it needs."""
        zoom = 1 / math.sqrt(self.crop_area[0]) if self.crop_area else 1.0
        return math.ceil(self.preprocess.size[0] * zoom), math.ceil(self.preprocess.size[1] * zoom)

    @cached_property
    def _transform(self) -> Any:
        from torchvision.transforms import InterpolationMode, v2

        how: dict[str, Any] = {
            "interpolation": InterpolationMode(self.preprocess.interpolation),
            "antialias": self.preprocess.antialias,
        }
        size = self.preprocess.size
        steps: list[Any] = [
            v2.RandomResizedCrop(size, scale=self.crop_area, **how) if self.crop_area else v2.Resize(size, **how)
        ]
        if self.flip:
            steps.append(v2.RandomHorizontalFlip())
        if self.augment == "trivial":
            steps.append(v2.TrivialAugmentWide())
        elif self.augment == "rand":
            steps.append(v2.RandAugment(num_ops=2, magnitude=15))
        return v2.Compose(steps)
