"""What testing a map found: one `MapCheck` a picture, a `Report` for several."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from vitreous.base.errors import ConfigError
from vitreous.explain.verification.randomisation import Randomisation
from vitreous.explain.verification.verdict import Test, Thresholds, Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class MapCheck:
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
        thresholds: the rule's limits that it was judged by.
        reasons: why this verdict, a sentence each.
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
    thresholds: Thresholds
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
        made = dict(self.__dict__) | {
            "verdict": self.verdict.value,
            "thresholds": asdict(self.thresholds),
            "tests": tests,
            "randomised": randomised,
        }
        return json.loads(json.dumps(made), parse_constant=lambda _: None)  # NaN is no JSON

    def __str__(self) -> str:
        lines = [f"{self.method}, {self.label} (p = {self.probability:.3f}), n = 1: {self.verdict.value}"]
        lines += [f"  {reason}" for reason in (*self.reasons, *self.remarks)]
        names = f"{'':10} {'D':>6} {'I':>6} {'I - D':>6} {'random':>13} {'T':>6} {'E 5 %':>6} {'SaCo':>6} {'rho':>6}"
        lines.append(f"  {names}")
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

    checks: tuple[MapCheck, ...]

    def __len__(self) -> int:
        return len(self.checks)

    def __iter__(self) -> Iterator[MapCheck]:
        return iter(self.checks)

    def __getitem__(self, image: int) -> MapCheck:
        return self.checks[image]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the map of the only picture.

        Raises:
            ConfigError: there are several: ask `report[i].verdict`.
        """
        return self._only("verdict").verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, for the only picture.

        Raises:
            ConfigError: there are several: ask `report[i].reasons`.
        """
        return self._only("reasons").reasons

    def _only(self, wanted: str) -> MapCheck:
        if len(self.checks) != 1:
            raise ConfigError(f"each of {len(self.checks)} pictures has its own: report[i].{wanted}")
        return self.checks[0]

    def __str__(self) -> str:
        return "\n".join(str(check) for check in self.checks)
