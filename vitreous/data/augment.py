"""What training does to a single picture before the model sees it: crop, flip, and more by name.

All of it is torchvision's, drawing from torch's generator, which the caller seeds by the
position in the run.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL import Image
from torch import Tensor

from vitreous.config import Size
from vitreous.pictures.preprocess import Preprocess

# AugReg's levels: RandAugment's layers and magnitude, and the alpha of Mixup. "none" is the recipe's as well.
# Source: Steiner et al. 2022, section 3.4; big_vision `configs/vit_i21k.py`.
AUGREG = {
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}
AUGMENTS = ("none", "trivial", "rand", *AUGREG)
MAX_MAGNITUDE = 30  # of RandAugment: Cubuk et al. 2020, section 4.1
_GREY = 128  # where a rotated picture leaves a corner empty; the middle of the range, as in AugReg


@dataclass(frozen=True)
class Augmentation:
    """A random crop brought to the model's size, a mirror image half of the time, extras by name; then normalised.

    RandAugment is torchvision's: 14 operations, of which the magnitude scales those that have one
    up to its end at 30. The official code of AugReg has 16, on a scale that ends at 10 and is
    exceeded, so its pictures are rotated and sheared further at the same number.

    Args:
        preprocess: gives the size, the interpolation, mean and std.
        crop_area: least and greatest share of the picture's area; the official "inception crop"
            is (0.05, 1), with an aspect ratio between 3:4 and 4:3. None squashes the whole picture.
        flip: mirror left and right with probability 1/2. Off where left and right mean something.
        augment: `"none"`, `"trivial"` (TrivialAugmentWide), `"rand"` (RandAugment), or an AugReg
            level, which is RandAugment with the level's numbers.
        layers: operations of `"rand"`, one after the other.
        magnitude: their strength, 0 to 30.
        erasing: probability that a rectangle of 2 to 33 % of the area becomes noise (random erasing).

    Source: vit_jax `input_pipeline.py`; Szegedy et al. 2015; Müller & Hutter 2021; Cubuk et al. 2020;
        Zhong et al. 2020; Steiner et al. 2022.
    """

    preprocess: Preprocess
    crop_area: tuple[float, float] | None = (0.05, 1.0)
    flip: bool = True
    augment: str = "none"
    layers: int = 2
    magnitude: int = 15
    erasing: float = 0.0

    def __call__(self, picture: Image.Image) -> Tensor:
        """An upright RGB picture -> (C, h, w) float32 as the model takes it, drawn from torch's generator."""
        image = self.preprocess.normalise(self._transform(picture))  # (C, h, w)
        return self._erase(image) if self.erasing else image

    def needed(self) -> Size | None:
        """The least (H, W) at which the smallest crop still has the pixels it needs; None where fewer change others."""
        if not self.preprocess.antialias:
            return None
        zoom = 1 / math.sqrt(self.crop_area[0]) if self.crop_area else 1.0
        return math.ceil(self.preprocess.size[0] * zoom), math.ceil(self.preprocess.size[1] * zoom)

    @cached_property
    def _transform(self) -> Any:
        from torchvision.transforms import InterpolationMode, v2

        how: dict[str, Any] = {
            "interpolation": InterpolationMode(self.preprocess.interpolation),
            "antialias": self.preprocess.antialias,
        }
        size, crop = self.preprocess.size, self.crop_area
        resize = v2.RandomResizedCrop(size, scale=crop, **how) if crop else v2.Resize(size, **how)
        # Pillow always resizes with antialiasing, and in all ways that evaluation may; tensors can do without.
        steps = [resize, v2.PILToTensor()] if self.preprocess.antialias else [v2.PILToTensor(), resize]
        if self.flip:
            steps.append(v2.RandomHorizontalFlip())
        if self.augment == "trivial":
            steps.append(v2.TrivialAugmentWide(fill=_GREY))
        elif self.augment != "none":
            layers, magnitude = AUGREG[self.augment][:2] if self.augment in AUGREG else (self.layers, self.magnitude)
            steps.append(v2.RandAugment(num_ops=layers, magnitude=magnitude, fill=_GREY))
        return v2.Compose(steps)

    @cached_property
    def _erase(self) -> Any:
        from torchvision.transforms import v2

        return v2.RandomErasing(p=self.erasing, value="random")  # normal noise, as pixels are normal about now
