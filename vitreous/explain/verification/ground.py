"""What every map of the same pictures and class is tested against; computed once for all of them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, did_you_mean
from vitreous.base.progress import Advance
from vitreous.explain.question import Question
from vitreous.explain.removal import BATCH, Operator, Remover, single_effects
from vitreous.explain.verification import blind
from vitreous.explain.verification.curves import Curves, curves, order, random_orders, steps

SACO_GROUPS = 10
REFERENCES = ("edges", "centre", "occlusion")


@dataclass(frozen=True)
class Budget:
    """How much is run.

    Args:
        orders: random orders of each picture.
        steps: evenly spaced points of a curve.
        dense: whether 1, 2, 4, 8 ... patches are points too.
        operators: ways to remove.
        weights: whether maps are compared with those of random models, and of the second class.
    """

    orders: int
    steps: int
    dense: bool
    operators: tuple[Operator, ...]
    weights: bool


BUDGETS = {
    "quick": Budget(8, 11, False, ("drop",), False),
    "full": Budget(20, 21, True, ("drop", "blur"), True),
}


def as_budget(budget: str | Budget) -> Budget:
    """A budget by its name, or one's own as it is.

    Raises:
        ConfigError: an unknown name.
    """
    if isinstance(budget, Budget):
        return budget
    if budget not in BUDGETS:
        raise ConfigError(f"unknown budget {budget!r}{did_you_mean(budget, BUDGETS)}: one of {', '.join(BUDGETS)}")
    return BUDGETS[budget]


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """What depends on the pictures, the class and one operator alone.

    Args:
        operator: the way to remove.
        counts: how many patches are gone at each point of a curve.
        groups: sizes of the groups of patches whose effect is measured.
        remove: takes patches out by this operator.
        random: curves of random orders.
        references: curves of the maps in `REFERENCES`, in that order.
        falls: (B, N) nats that the score falls without each patch.
    """

    operator: Operator
    counts: list[int]
    groups: list[int]
    remove: Remover = field(repr=False)
    random: Curves
    references: Curves
    falls: Tensor


def ground_of(
    question: Question,
    operator: Operator,
    budget: Budget,
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    advance: Advance | None = None,
) -> Ground:
    """Occlusion, random orders and reference maps of the pictures under one operator.

    Args:
        question: the pictures, the class and the score.
        operator: the way to remove.
        budget: how much is run.
        batch_size: forward passes at once.
        seed: the seed of random orders and ties.
        advance: called with the number of forward passes done.
    """

    def compute() -> Ground:
        images, patches = len(question.images), question.grid[0] * question.grid[1]
        counts, groups = points_of(patches, budget)
        how: dict[str, Any] = dict(batch_size=batch_size, advance=advance)
        remove = Remover(question, operator, **how)
        falls = single_effects(question, operator, **how)  # (B, N)
        maps = [blind.edges(question).flatten(1), blind.centre(question).flatten(1), falls]
        references = order(torch.stack(maps, dim=1), seed)  # (B, 3, N)
        chance = random_orders(images, patches, budget.orders, seed)  # (B, R, N)
        return Ground(
            operator=operator,
            counts=counts,
            groups=groups,
            remove=remove,
            random=curves(question, chance, remove, counts, insertion=False),
            references=curves(question, references, remove, counts),
            falls=falls,
        )

    key = ("ground", operator, budget, seed, question.score, *question.asked().tolist())
    if question.instead_of is not None:
        key += tuple(question.instead_of.tolist())
    return question.memo.once(key, compute)


def noise_floor(grounds: list[Ground]) -> Tensor:
    """(B,) nats: the median over patches, and over pairs of operators, of how far two operators differ on one patch.

    Effects below it say more about the way of removing than about the picture. With a single operator nothing is
    known of it, and it is 0.
    """
    pairs = [(a.falls - b.falls).abs() for i, a in enumerate(grounds) for b in grounds[i + 1 :]]  # (B, N) each
    if not pairs:
        return grounds[0].falls.new_zeros(len(grounds[0].falls))
    return torch.cat(pairs, dim=1).median(dim=1).values


def passes(question: Question, budget: str | Budget, maps: int = 1) -> int:
    """Forward passes that verifying `maps` maps of each picture takes, without the tests of weights."""
    chosen = as_budget(budget)
    patches = question.grid[0] * question.grid[1]
    points = len(points_of(patches, chosen)[0])
    each = patches + points * (chosen.orders + 2 * len(REFERENCES)) + maps * (2 * points + SACO_GROUPS)
    return len(question.images) * len(chosen.operators) * each


def points_of(patches: int, budget: Budget) -> tuple[list[int], list[int]]:
    """Points of the curves, and the sizes of the groups that are tested: 1, 5 %, 10 % and 25 % of the patches."""
    groups = sorted({1, max(round(0.05 * patches), 1), max(round(0.1 * patches), 1), max(patches // 4, 1)})
    points = steps(patches, budget.steps)
    if not budget.dense:
        points = sorted({round(i * patches / (budget.steps - 1)) for i in range(budget.steps)})
    return sorted({*points, *groups}), groups
