"""Testing a map: what the model says when the patches it names are taken out, beside controls."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, did_you_mean
from vitreous.base.progress import Advance
from vitreous.base.statistics import quantiles, spearman
from vitreous.explain.explanation import Explanation, Kind
from vitreous.explain.methods.controls import centre, contrast
from vitreous.explain.question import Question, probability
from vitreous.explain.removal import BATCH, Operator, remover, single_effects
from vitreous.explain.verification.curves import Curves, curves, first, order, random_orders, steps
from vitreous.explain.verification.randomisation import Randomisation, randomisation
from vitreous.explain.verification.verdict import Band, Test, Thresholds, Verdict, judge, remarks

SACO_GROUPS = 10
REFERENCES = ("contrast", "centre", "occlusion")


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """What depends on the picture, the class and the operator alone; shared by all maps that are tested."""

    operator: Operator
    counts: list[int]
    groups: list[int]
    remove: Any = field(repr=False)
    random: Curves
    references: Curves  # in the order of REFERENCES
    falls: Tensor  # (B, N) nats without each patch
    floor: Tensor  # (B,) noise of these


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """All tests of one map of one picture.

    Args:
        method: whose map it is.
        label: the class in question.
        probability: of the class on the whole picture.
        tests: one for each removal operator.
        randomised: with random weights; None when not run.
        target_swap: Spearman's correlation with the map of the second class; 1 by construction for maps
            that do not know the class; NaN when not run.
        verdict: by the rule of `verdict.judge`.
        reasons: for it.
        remarks: what a reader should know besides.
        curves: operator -> the curves behind it, for drawing.
    """

    method: str
    label: str
    probability: float
    tests: tuple[Test, ...]
    randomised: Randomisation | None
    target_swap: float
    verdict: Verdict
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    curves: dict[str, dict[str, list[float]]] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, curves included."""
        tests = [
            asdict(t)
            | {
                "separation": t.separation,
                "top_effect": t.top_effect,
                "deletion_skill": t.deletion_skill,
                "insertion_skill": t.insertion_skill,
            }
            for t in self.tests
        ]
        randomised = None if self.randomised is None else asdict(self.randomised)
        made = dict(self.__dict__) | {"verdict": self.verdict.value, "tests": tests, "randomised": randomised}
        return json.loads(json.dumps(made), parse_constant=lambda _: None)  # NaN is no JSON

    def __str__(self) -> str:
        lines = [f"{self.method}, {self.label} (p = {self.probability:.3f}), n = 1: {self.verdict.value}"]
        lines += [f"  {reason}" for reason in (*self.reasons, *self.remarks)]
        lines.append(
            f"  {'':10} {'D':>6} {'I':>6} {'I - D':>6} {'random':>13} {'T':>6} {'E 5 %':>6} {'SaCo':>6} {'rho':>6}"
        )
        for t in self.tests:
            band = f"{t.random.low:.2f} to {t.random.high:.2f}"
            numbers = (t.top_effect, t.five_percent, t.saco, t.correlation)
            cells = " ".join(f"{value:6.2f}" for value in numbers)
            lines.append(
                f"  {t.operator:10} {t.deletion:6.2f} {t.insertion:6.2f} {t.separation:6.2f} {band:>13} {cells}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Report:
    """The checks of one method's maps, a picture each."""

    checks: tuple[Check, ...]

    def __len__(self) -> int:
        return len(self.checks)

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __getitem__(self, image: int) -> Check:
        return self.checks[image]

    @property
    def verdict(self) -> Verdict:
        """Of the only picture.

        Raises:
            ConfigError: there are several: ask `report[i].verdict`.
        """
        if len(self.checks) != 1:
            raise ConfigError(f"{len(self.checks)} pictures have a verdict each: report[i].verdict")
        return self.checks[0].verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """For the verdict of the only picture."""
        return self.checks[0].reasons if self.verdict else ()

    def __str__(self) -> str:
        return "\n".join(str(check) for check in self.checks)


def verify(
    explanation: Explanation,
    *,
    budget: str | Budget = "full",
    operators: tuple[Operator, ...] | None = None,
    randomised: Randomisation | None = None,
    thresholds: Thresholds | None = None,
    batch_size: int = BATCH,
    seed: int = 0,
    advance: Advance | None = None,
) -> Report:
    """Test the maps of one method by removal, against random orders and maps that never saw the model.

    With the full budget also against the maps of models with random weights, and of the second class.
    That test is one of a method, not of a picture: with fewer than 8 pictures give `randomised`, measured
    on more; without it the verdict stays UNTESTED unless the map is refuted.

    Args:
        explanation: the maps.
        budget: `"quick"` (one operator, 8 random orders), `"full"`, or one's own.
        operators: ways to remove, instead of the budget's.
        randomised: the test with random weights, where it was run already.
        thresholds: of the verdict.
        batch_size: forward passes at once.
        seed: of random orders and ties.
        advance: called with the number of forward passes done.

    Returns:
        One check for each picture; on one picture it is an anecdote (see `evaluate_maps` for sets).
    """
    if isinstance(budget, str) and budget not in BUDGETS:
        raise ConfigError(f"unknown budget {budget!r}{did_you_mean(budget, BUDGETS)}: one of {', '.join(BUDGETS)}")
    chosen = BUDGETS[budget] if isinstance(budget, str) else budget
    question = explanation.question.effect()
    rows: list[list[tuple[Test, dict[str, list[float]]]]] = []
    for operator in operators or chosen.operators:
        ground = ground_of(question, operator, chosen, batch_size=batch_size, seed=seed, advance=advance)
        rows.append(_test(explanation, question, ground, seed))
    if randomised is None and chosen.weights and len(explanation) >= 8 and explanation.compute is not None:
        randomised = randomisation(explanation)
    swaps = _target_swap(explanation) if chosen.weights else [float("nan")] * len(explanation)
    limits = thresholds or Thresholds()
    checks = []
    for i in range(len(explanation)):
        tests = tuple(row[i][0] for row in rows)
        p = float(explanation.probability[i])
        verdict, reasons = judge(tests, randomised, p, operators_needed=2, thresholds=limits)
        checks.append(
            Check(
                method=explanation.method,
                label=question.label(i),
                probability=p,
                tests=tests,
                randomised=randomised,
                target_swap=swaps[i],
                verdict=verdict,
                reasons=reasons,
                remarks=remarks(tests, limits),
                curves={test.operator: row[i][1] for test, row in zip(tests, rows, strict=True)},
            )
        )
    return Report(tuple(checks))


def passes(question: Question, budget: str | Budget, maps: int = 1) -> int:
    """Forward passes that verifying `maps` maps of each picture takes, without the tests of weights."""
    chosen = BUDGETS[budget] if isinstance(budget, str) else budget
    patches = question.grid[0] * question.grid[1]
    points = len(_counts(patches, chosen)[0])
    each = patches + points * (chosen.orders + 2 * len(REFERENCES)) + maps * (2 * points + SACO_GROUPS)
    return len(question.images) * len(chosen.operators) * each


def ground_of(
    question: Question,
    operator: Operator,
    budget: Budget,
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    advance: Advance | None = None,
) -> Ground:
    """Occlusion, random orders and reference maps of the pictures under one operator; computed once for a question."""
    key = ("ground", operator, budget, seed, question.score, *question.asked().tolist())
    if key in question.found:
        return question.found[key]
    images, patches = len(question.images), question.grid[0] * question.grid[1]
    counts, groups = _counts(patches, budget)
    how: dict[str, Any] = dict(batch_size=batch_size, advance=advance)
    remove = remover(question, operator, **how)
    falls = single_effects(question, operator, **how)  # (B, N)
    maps = [contrast(question).map.flatten(1), centre(question).map.flatten(1), falls]
    references = order(torch.stack(maps, dim=1), seed)  # (B, 3, N)
    made = Ground(
        operator=operator,
        counts=counts,
        groups=groups,
        remove=remove,
        random=curves(question, random_orders(images, patches, budget.orders, seed), remove, counts, insertion=False),
        references=curves(question, references, remove, counts),
        falls=falls,
        floor=_floor(question, operator, falls),
    )
    question.found[key] = made
    return made


def _counts(patches: int, budget: Budget) -> tuple[list[int], list[int]]:
    """Points of the curves, and the sizes of the groups that are tested: 1, 5 % and 10 % of the patches."""
    groups = sorted({1, max(round(0.05 * patches), 1), max(round(0.1 * patches), 1), max(patches // 4, 1)})
    points = steps(patches, budget.steps)
    if not budget.dense:
        points = sorted({round(i * patches / (budget.steps - 1)) for i in range(budget.steps)})
    return sorted({*points, *groups}), groups


def _floor(question: Question, operator: Operator, falls: Tensor) -> Tensor:
    """(B,) nats: how far two operators differ on most patches; 0 until a second one was run."""
    others = [v for (k, *rest), v in question.found.items() if k == "ground" and rest[0] != operator]
    if not others:
        return falls.new_zeros(len(falls))
    return (falls - others[0].falls).abs().median(dim=1).values


def _test(
    explanation: Explanation, question: Question, ground: Ground, seed: int
) -> list[tuple[Test, dict[str, list[float]]]]:
    values = explanation.map.flatten(1)  # (B, N)
    orders = order(values, seed)  # (B, N)
    own = curves(question, orders[:, None], ground.remove, ground.counts)
    saco = _saco(question, values, orders, ground)
    found = []
    for i in range(len(values)):
        areas = ground.random.deletion_area[i]  # (R,)
        low, high = quantiles(areas, 0.05, 0.95)
        falls, top = ground.falls[i], int(orders[i, 0])
        deletion, insertion = float(own.deletion_area[i, 0]), float(own.insertion_area[i, 0])
        d, ins = ground.references.deletion_area[i].tolist(), ground.references.insertion_area[i].tolist()
        columns = [ground.counts.index(k) for k in ground.groups]
        known = torch.cat([own.fall[i], ground.references.fall[i], ground.random.fall[i]])[:, columns]  # (R, groups)
        best = known.max(dim=0).values.clamp(min=1e-9)
        best[0] = falls.max().clamp(min=1e-9)  # of single patches all are known
        share = (own.fall[i, 0, columns] / best).tolist()
        chance = (ground.random.fall[i][:, columns].mean(dim=0) / best).tolist()
        loud = falls.abs() > ground.floor[i]
        test = Test(
            operator=ground.operator,
            deletion=deletion,
            insertion=insertion,
            random=Band(low=low, mean=float(areas.mean()), high=high),
            contrast=(d[0], ins[0]),
            centre=(d[1], ins[1]),
            best_deletion=min(deletion, *d, float(areas.min())),
            best_insertion=max(insertion, *ins, float(areas.max())),
            top_fall=float(falls[top]),
            largest_fall=float(falls.max()),
            group_effects=dict(zip(ground.groups[:3], share[:3], strict=True)),
            group_random=dict(zip(ground.groups[:3], chance[:3], strict=True)),
            saco=float(saco[i]),
            correlation=spearman(values[i][loud], falls[loud]) if int(loud.sum()) >= 8 else float("nan"),
            quarter_fall=float(known[:, -1].max()),
            range=float(falls.max() - falls.min()),
        )
        found.append((test, _drawn(own, ground, i)))
    return found


def _drawn(own: Curves, ground: Ground, i: int) -> dict[str, list[float]]:
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


def _saco(question: Question, values: Tensor, orders: Tensor, ground: Ground) -> Tensor:
    """(B,): do groups of patches with more salience have more effect? Weighted by the difference of salience.

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


def _target_swap(explanation: Explanation) -> list[float]:
    """Correlation with the map of the second most probable class."""
    count, question = len(explanation), explanation.question
    if explanation.compute is None or question.logits.shape[1] < 2:
        return [float("nan")] * count
    if explanation.kind in (Kind.DESCRIPTIVE, Kind.CONTROL):
        return [1.0] * count  # by construction: it does not know the class
    others = question.logits.scatter(1, question.asked()[:, None], float("-inf")).argmax(dim=1)
    maps, _ = explanation.compute(question.about(target=others))
    return [spearman(a, b) for a, b in zip(explanation.map, maps, strict=True)]
