"""Mixup and CutMix as functions of the position: each picture of a batch is mixed with the one before it.

The strength is drawn once a batch, from (seed, step). So a batch computed in parts, by any
number of workers or processes, is mixed as the whole batch would be.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitreous.base.seeds import derive, seeded

Labelled = tuple[Tensor, int]  # (C, h, w) and the index of the class


@dataclass(frozen=True)
class Mixing:
    """Blend pictures and their targets: x = a x_i + (1 - a) x_(i-1), y = a y_i + (1 - a) y_(i-1).

    Mixup draws a ~ Beta(alpha, alpha), and takes the larger of a and 1 - a; CutMix puts a
    rectangle of the other picture in, and a is the share of the area that stays. Where both are
    on, each batch has one of them, with equal chances.

    Args:
        batch_size: pictures of a step, over all parts and processes.
        num_classes: length of the targets.
        mixup_alpha: 0 for none.
        cutmix_alpha: 0 for none.
        seed: of the run.

    Source: Zhang et al. 2018; Yun et al. 2019; big_vision `utils.get_mixup` for the partner and the larger share.
    """

    batch_size: int
    num_classes: int
    mixup_alpha: float
    cutmix_alpha: float
    seed: int

    def partner(self, position: int) -> int:
        """The position mixed into this one: the one before it in its batch; the last into the first."""
        step, place = divmod(position, self.batch_size)
        return step * self.batch_size + (place - 1) % self.batch_size

    def __call__(self, position: int, own: Labelled, other: Labelled | None) -> tuple[Tensor, Tensor]:
        """The mixed picture (C, h, w) and its target (K,); without another, the picture as it is."""
        image, label = own
        target = torch.zeros(self.num_classes)
        if other is None:
            target[label] = 1.0
            return image, target
        with seeded(derive(self.seed, "mix", position // self.batch_size)):
            cut = self.cutmix_alpha > 0 and (self.mixup_alpha <= 0 or bool(torch.rand(()) < 0.5))
            if cut:
                params = self._cutmix.make_params([image])
                share, (left, top, right, bottom) = params["lam_adjusted"], params["box"]
                mixed = image.clone()
                mixed[:, top:bottom, left:right] = other[0][:, top:bottom, left:right]
            else:
                share = self._mixup.make_params([])["lam"]
                share = max(share, 1 - share)
                mixed = torch.lerp(other[0], image, share)
        target[label] += share
        target[other[1]] += 1 - share
        return mixed, target

    @cached_property
    def _mixup(self) -> Any:
        from torchvision.transforms import v2

        return v2.MixUp(alpha=self.mixup_alpha, num_classes=self.num_classes)

    @cached_property
    def _cutmix(self) -> Any:
        from torchvision.transforms import v2

        return v2.CutMix(alpha=self.cutmix_alpha, num_classes=self.num_classes)
