"""The measures of one map under one way of removing: areas, the effect of its first patches, SaCo, rank correlation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.base.statistics import quantiles, spearman
from vitreous.explain.question import Question, probability
from vitreous.explain.verification.curves import Curves, curves, first, order
from vitreous.explain.verification.ground import REFERENCES, SACO_GROUPS, Ground
from vitreous.explain.verification.verdict import Band, Test

FEWEST = 8  # patches above the noise floor that a rank correlation needs


@dataclass(frozen=True, eq=False)
class Measured:
    """A map's tests under one operator, and the curves behind them; one of each a picture."""

    tests: list[Test]
    curves: list[dict[str, list[float]]]


def measure(question: Question, values: Tensor, ground: Ground, floor: Tensor, seed: int) -> Measured:
    """All measures of a map under one operator.

    Args:
        question: the pictures, the class and the score.
        values: (B, N), the map.
        ground: what it is compared with.
        floor: (B,) nats below which the effect of a patch is noise.
        seed: the seed of ties.
    """
    orders = order(values, seed)  # (B, N)
    own = curves(question, orders[:, None], ground.remove, ground.counts)
    faithful = saco(question, values, orders, ground)  # (B,)
    tests = []
    for i in range(len(values)):
        deletion, insertion, band, best = areas(own, ground, i)
        share, chance, quarter = group_effects(own, ground, i)
        references = ground.references.deletion_area[i].tolist(), ground.references.insertion_area[i].tolist()
        falls = ground.falls[i]  # (N,)
        test = Test(
            operator=ground.operator,
            deletion=deletion,
            insertion=insertion,
            random=band,
            edges=(references[0][0], references[1][0]),
            centre=(references[0][1], references[1][1]),
            best_deletion=best[0],
            best_insertion=best[1],
            top_fall=float(falls[orders[i, 0]]),
            largest_fall=float(falls.max()),
            group_effects=share,
            group_random=chance,
            saco=float(faithful[i]),
            correlation=correlation(values[i], falls, float(floor[i])),
            quarter_fall=quarter,
            spread=float(falls.max() - falls.min()),
        )
        tests.append(test)
    return Measured(tests, [drawn(own, ground, i) for i in range(len(values))])


def areas(own: Curves, ground: Ground, i: int) -> tuple[float, float, Band, tuple[float, float]]:
    """D and I of picture i, the band of random orders, and the best D and I of all orders that were tried."""
    chance = ground.random.deletion_area[i]  # (R,)
    low, high = quantiles(chance, 0.05, 0.95)
    deletion, insertion = float(own.deletion_area[i, 0]), float(own.insertion_area[i, 0])
    best_deletion = min(deletion, float(ground.references.deletion_area[i].min()), float(chance.min()))
    best_insertion = max(insertion, float(ground.references.insertion_area[i].max()), float(chance.max()))
    return deletion, insertion, Band(low=low, mean=float(chance.mean()), high=high), (best_deletion, best_insertion)


def group_effects(own: Curves, ground: Ground, i: int) -> tuple[dict[int, float], dict[int, float], float]:
    """k -> the fall without the map's first k patches, as a share of the largest fall known for k patches.

    Returns:
        The shares of the map; the mean of random groups likewise; the largest fall known without a quarter, in nats.
    """
    columns = [ground.counts.index(k) for k in ground.groups]
    known = torch.cat([own.fall[i], ground.references.fall[i], ground.random.fall[i]])[:, columns]  # (R, groups)
    best = known.max(dim=0).values.clamp(min=1e-9)  # (groups,)
    best[0] = ground.falls[i].max().clamp(min=1e-9)  # of single patches all are known
    share = (own.fall[i, 0, columns] / best).tolist()
    chance = (ground.random.fall[i][:, columns].mean(dim=0) / best).tolist()
    sizes = ground.groups[:3]
    return dict(zip(sizes, share, strict=False)), dict(zip(sizes, chance, strict=False)), float(known[:, -1].max())


def correlation(values: Tensor, falls: Tensor, floor: float) -> float:
    """Spearman's correlation with occlusion, of the patches above the noise floor; NaN where there are few.

    Args:
        values: (N,) the map.
        falls: (N,) nats without each patch.
        floor: nats.
    """
    loud = falls.abs() > floor
    return spearman(values[loud], falls[loud]) if int(loud.sum()) >= FEWEST else float("nan")


def saco(question: Question, values: Tensor, orders: Tensor, ground: Ground) -> Tensor:
    """SaCo (B,), -1 to 1: do groups of patches with more salience have more effect? Weighted by the difference.

    Source: Wu et al. 2024 ("On the Faithfulness of Vision Transformer Explanations"), with 10 groups.
    """
    images, patches = values.shape
    groups = min(SACO_GROUPS, patches)
    edges = [round(i * patches / groups) for i in range(groups + 1)]
    prefixes = first(orders, edges)  # (B, groups + 1, N)
    members = prefixes[:, 1:] & ~prefixes[:, :-1]  # (B, groups, N)
    which = torch.arange(images, device=values.device).repeat_interleave(groups)
    p = probability(ground.remove(which, members.flatten(0, 1)), question.asked()[which]).view(images, groups)
    effect = question.probability[:, None] - p  # (B, groups)
    salience = (members * values[:, None]).sum(dim=2)  # (B, groups)
    gap = salience[:, :, None] - salience[:, None]  # (B, groups, groups)
    upper = torch.triu(torch.ones(groups, groups, device=values.device), 1)
    right = torch.where(effect[:, :, None] >= effect[:, None], gap, -gap) * upper
    return right.sum(dim=(1, 2)) / (gap.abs() * upper).sum(dim=(1, 2))


def drawn(own: Curves, ground: Ground, i: int) -> dict[str, list[float]]:
    """The curves of picture i, for a figure."""
    bands = ground.random.deletion[i].quantile(torch.tensor([0.05, 0.5, 0.95], device=own.deletion.device), dim=0)
    made = {
        "fractions": own.fractions,
        "deletion": own.deletion[i, 0],
        "insertion": own.insertion[i, 0],
        "random_low": bands[0],
        "random_middle": bands[1],
        "random_high": bands[2],
    }
    for j, name in enumerate(REFERENCES):
        made[f"{name}_deletion"] = ground.references.deletion[i, j]
        made[f"{name}_insertion"] = ground.references.insertion[i, j]
    return {name: values.tolist() for name, values in made.items()}
