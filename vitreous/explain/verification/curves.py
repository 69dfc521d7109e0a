"""Deletion and insertion: the target's probability as patches go, or come, in the order of a map.

One set of forward passes serves three curves, for with one removal operator "remove the least
relevant k first" is "keep only the most relevant N - k": the LeRF curve is the insertion curve
read backwards, and so the separation of MoRF and LeRF deletion is insertion minus deletion. For
the same reason random orders have one distribution of areas for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.explain.question import Question, probability
from vitreous.explain.removal import Remover


@dataclass(frozen=True, eq=False)
class Curves:
    """Curves of R orders each of B pictures.

    Args:
        fractions: (T,) share of the patches removed, or kept.
        deletion: (B, R, T) probability of the target with that share of the first patches removed.
        insertion: (B, R, T) with only that share kept.
        fall: (B, R, T) by how much the score fell along the deletion curve.
    """

    fractions: Tensor
    deletion: Tensor
    insertion: Tensor
    fall: Tensor

    @property
    def deletion_area(self) -> Tensor:
        """(B, R) area under the deletion curve; lower is better."""
        return area(self.fractions, self.deletion)

    @property
    def insertion_area(self) -> Tensor:
        """(B, R) area under the insertion curve; higher is better."""
        return area(self.fractions, self.insertion)


def area(fractions: Tensor, curve: Tensor) -> Tensor:
    """Mean height of a curve by the trapezoid rule: (..., T) -> (...,)."""
    return torch.trapezoid(curve, fractions, dim=-1) / (fractions[-1] - fractions[0])


def steps(patches: int, count: int = 21) -> list[int]:
    """How many patches are gone at each step: 0, 1, 2, 4, 8, ..., and `count` evenly spaced shares with both ends."""
    even = {round(i * patches / (count - 1)) for i in range(count)}
    return sorted(even | {2**i for i in range(patches.bit_length()) if 2**i < patches})


def order(values: Tensor, seed: int = 0) -> Tensor:
    """Patches (..., N) from the highest value down; equal ones in random order, never by place."""
    shuffled = torch.randperm(values.shape[-1], generator=torch.Generator().manual_seed(seed)).to(values.device)
    return shuffled[values[..., shuffled].argsort(dim=-1, descending=True, stable=True)]


def random_orders(images: int, patches: int, count: int, seed: int = 0) -> Tensor:
    """(B, count, N) random orders of the patches."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(images, count, patches, generator=generator).argsort(dim=-1)


def first(orders: Tensor, counts: Sequence[int]) -> Tensor:
    """Masks of the first k patches of each order: (..., N) -> (..., len(counts), N) bool."""
    rank = orders.argsort(dim=-1)  # (..., N)
    return rank[..., None, :] < torch.tensor(counts, device=orders.device)[:, None]


def curves(
    question: Question, orders: Tensor, remove: Remover, counts: Sequence[int], *, insertion: bool = True
) -> Curves:
    """Follow the target's probability along orders of the patches.

    Args:
        question: the pictures and their targets.
        orders: (B, R, N), the patch removed first in front.
        remove: how patches are removed; see `Remover`.
        counts: how many patches are gone at each step; see `steps`.
        insertion: whether to follow the insertion curve as well; else it is the deletion curve of the
            reversed order, which is right for the mean over random orders.
    """
    (images, number, patches), config = orders.shape, question.model.config
    if config.classifier == "gap":
        counts = [min(k, patches - 1) for k in counts]  # the mean over no patch at all is not defined
        counts = sorted(set(counts))
    removed = first(orders, counts)  # (B, R, T, N)
    masks = [removed]
    if insertion:
        kept = [max(k, 1) for k in counts] if config.classifier == "gap" else counts
        masks.append(~first(orders, kept))
    which = torch.arange(images).repeat_interleave(len(masks) * number * len(counts))
    logits = remove(which, torch.stack(masks, dim=1).flatten(0, 3))  # (B * 2 * R * T, K)
    which = which.to(logits.device)
    shape = (images, len(masks), number, len(counts))
    y = probability(logits, question.asked()[which]).view(shape)
    fall = (question.value[which] - question.score_of(logits, which)).view(shape)[:, 0]  # (B, R, T)
    fractions = torch.tensor(counts, device=y.device, dtype=y.dtype) / patches  # (T,)
    return Curves(fractions, y[:, 0], y[:, 1] if insertion else y[:, 0].flip(-1), fall)
