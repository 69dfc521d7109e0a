"""The verdict on a map: a rule, printed with its reasons and its thresholds."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitreous.explain.verification.randomisation import Randomisation


class Verdict(str, enum.Enum):
    """What the tests say about one map of one picture."""

    REFUTED = "REFUTED"
    CONSISTENT = "CONSISTENT WITH THE MODEL"  # this picture, this class, these operators
    WEAK = "WEAK"
    BASELINE_DEPENDENT = "BASELINE-DEPENDENT"
    NOTHING_TO_EXPLAIN = "NOTHING TO EXPLAIN"
    UNTESTED = "UNTESTED"


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """This project's choice, calibrated on models with planted evidence; to be changed where there is reason to.

    Args:
        low_effect: a map whose top patch has at most this share of the largest effect is refuted.
        high_effect: above this share of the largest effect, the top patch or group counts as found.
        single_patch: nats from which on a single patch matters.
        correlation: with random weights, above which a method fails.
        probability: of the class, below which there is nothing to explain.
        spread: nats between the largest and the smallest effect of a patch, likewise.
        area: between random and the best deletion curve, below which deletion says nothing.
    """

    low_effect: float = 0.25
    high_effect: float = 0.5
    single_patch: float = 0.5
    correlation: float = 0.3
    probability: float = 0.1
    spread: float = 0.05
    area: float = 0.05


@dataclass(frozen=True, kw_only=True)
class Band:
    """An area under random orders of this picture: its mean, and where 90 % of them lie."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Test:
    """What removal by one operator says about one map of one picture.

    Args:
        operator: how patches were removed.
        deletion: D, area under the deletion curve; lower is better.
        insertion: I, area under the insertion curve; higher is better.
        random: the band of both for random orders.
        edges: (D, I) of the map of contrast within patches, which never saw the model.
        centre: (D, I) of the centre map.
        best_deletion: the lowest D among all orders tried; no optimum is claimed.
        best_insertion: the highest I likewise.
        top_fall: nats that the score falls without the map's top patch.
        largest_fall: nats that it falls without the patch that matters most.
        group_effects: k -> fall without the map's top k, as a share of the largest known for k patches.
        group_random: k -> the same for random groups, in the mean.
        saco: salience-guided faithfulness coefficient, -1 to 1.
        correlation: Spearman's, with the occlusion map, of the patches above the noise floor; NaN if few.
        quarter_fall: the largest known fall without a quarter of the patches.
        spread: nats between the largest and the smallest fall without one patch.
    """

    __test__ = False  # not for pytest

    operator: str
    deletion: float
    insertion: float
    random: Band
    edges: tuple[float, float]
    centre: tuple[float, float]
    best_deletion: float
    best_insertion: float
    top_fall: float
    largest_fall: float
    group_effects: dict[int, float]
    group_random: dict[int, float]
    saco: float
    correlation: float
    quarter_fall: float
    spread: float

    @property
    def separation(self) -> float:
        """Deletion from the least relevant end minus D, which with one operator is I - D; -1 to 1."""
        return self.insertion - self.deletion

    @property
    def top_effect(self) -> float:
        """T: the top patch's share of the largest effect of any patch; NaN where no patch has one."""
        return self.top_fall / self.largest_fall if self.largest_fall > 0 else float("nan")

    @property
    def deletion_skill(self) -> float:
        """1 for the best known order, 0 for the mean of random ones."""
        return _skill(self.random.mean - self.deletion, self.random.mean - self.best_deletion)

    @property
    def insertion_skill(self) -> float:
        """The same for insertion."""
        return _skill(self.insertion - self.random.mean, self.best_insertion - self.random.mean)

    @property
    def five_percent(self) -> float:
        """E of the group nearest to a twentieth of the patches, the second of the three."""
        return list(self.group_effects.values())[min(1, len(self.group_effects) - 1)]


def under(test: Test, t: Thresholds) -> tuple[Verdict, list[str]]:
    """REFUTED, CONSISTENT or WEAK under one operator, with reasons."""
    d, i, band, name = test.deletion, test.insertion, test.random, test.operator
    removal = f"{name}: D {d:.2f}, I {i:.2f}; 90 % of random orders {band.low:.2f} to {band.high:.2f}"
    if d >= band.low and i <= band.high:
        return Verdict.REFUTED, [f"{removal}: no better than random either way"]
    effect = (
        f"{name}: its top patch takes {test.top_fall:.2f} nats, the most any patch takes is {test.largest_fall:.2f}"
    )
    if test.largest_fall >= t.single_patch and test.top_effect <= t.low_effect:
        return Verdict.REFUTED, [f"{effect}: it points at the wrong patch"]
    beyond = (d < band.low and i >= band.mean) or (i > band.high and d <= band.mean)
    found = test.top_effect > t.high_effect or test.five_percent > t.high_effect
    if beyond and found:
        return Verdict.CONSISTENT, [f"{removal}: better than random", effect]
    why = [removal if not beyond else effect]
    return Verdict.WEAK, [f"{why[0]}: neither refuted nor borne out"]


def judge(
    tests: Sequence[Test],
    randomised: Randomisation | None,
    probability: float,
    *,
    operators_needed: int = 2,
    thresholds: Thresholds | None = None,
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on a map of one picture.

    Args:
        tests: one for each removal operator.
        randomised: what randomising the weights does to the method's maps; None when not run.
        probability: of the class on the whole picture.
        operators_needed: removal operators that must agree.
        thresholds: of the rule.

    Returns:
        The verdict, and its reasons in words.
    """
    t = thresholds or Thresholds()
    if probability < t.probability:
        return Verdict.NOTHING_TO_EXPLAIN, (f"the class has p = {probability:.2f} only",)
    if tests and max(test.spread for test in tests) < t.spread:
        return Verdict.NOTHING_TO_EXPLAIN, (f"no patch changes the score by {t.spread} nats",)
    if randomised is not None and randomised.failed(t.correlation):
        return Verdict.REFUTED, (
            f"random weights give nearly the same map: rho {randomised.low:.2f} to {randomised.high:.2f}",
        )
    found = [under(test, t) for test in tests]
    reasons = [reason for _, several in found for reason in several]
    verdicts = {verdict for verdict, _ in found}
    if len(tests) < operators_needed:
        reasons.append(f"{len(tests)} of {operators_needed} removal operators tested")
        return Verdict.UNTESTED, tuple(reasons)
    if verdicts == {Verdict.REFUTED}:
        return Verdict.REFUTED, tuple(reasons)
    if randomised is None:
        return Verdict.UNTESTED, (*reasons, "not tested with random weights")
    reasons.append(f"random weights: not rejected, rho {randomised.end:+.2f}")
    if len(verdicts) > 1:
        return Verdict.BASELINE_DEPENDENT, (*reasons, "the removal operators disagree")
    return verdicts.pop(), tuple(reasons)


def remarks(tests: Sequence[Test], t: Thresholds) -> tuple[str, ...]:
    """What a reader should know besides; none of it changes the verdict."""
    said = []
    for test in tests:
        if test.random.mean - test.best_deletion < t.area:
            said.append(
                f"{test.operator}: deletion says nothing about this picture, no order does much better than random"
            )
        half = (test.random.high - test.random.low) / 2
        if abs(test.deletion - test.edges[0]) <= half and test.deletion < test.random.low:
            said.append(f"{test.operator}: its deletion curve is that of a map which never saw the model (edges)")
        if test.largest_fall < t.single_patch <= test.quarter_fall:
            said.append(
                f"{test.operator}: redundant evidence: no single patch matters, a quarter of them takes "
                f"{test.quarter_fall:.2f} nats"
            )
    return tuple(said)


def _skill(gain: float, best: float) -> float:
    return gain / best if best > 0 and math.isfinite(gain) else float("nan")
