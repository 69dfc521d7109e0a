"""Methods measured over a set of pictures: means with intervals, and paired tests between methods."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.base.progress import progress
from vitreous.base.statistics import bootstrap, paired_test
from vitreous.explain.explanation import Explanation
from vitreous.explain.methods.table import Method, method
from vitreous.explain.question import Question, ScoreName, Subject, Target, ask
from vitreous.explain.removal import Operator
from vitreous.explain.verification.check import MapCheck
from vitreous.explain.verification.ground import BUDGETS, Budget
from vitreous.explain.verification.randomisation import Randomisation, randomisation
from vitreous.explain.verification.verify import verify
from vitreous.prediction import as_list

MEASURES = ("deletion", "insertion", "separation", "top_effect", "five_percent", "saco", "correlation")
FEWEST = 8  # pictures for a judgement with random weights


@dataclass(frozen=True, kw_only=True, eq=False)
class MapEvaluation:
    """Methods over a set of pictures.

    Args:
        n: pictures.
        operators: ways to remove; the measures are of the first, the verdicts of all.
        measures: method -> measure -> (n,) values, NaN where undefined.
        verdicts: method -> verdict -> how many pictures.
        randomised: method -> the test with random weights.
        checks: method -> every picture's check.
        maps: method -> (n, h, w).
    """

    n: int
    operators: tuple[str, ...]
    measures: dict[str, dict[str, Tensor]]
    verdicts: dict[str, dict[str, int]]
    randomised: dict[str, Randomisation | None]
    checks: dict[str, list[MapCheck]]
    maps: dict[str, Tensor]

    def interval(self, method: str, measure: str) -> tuple[float, float, float]:
        """Mean over the pictures where it is defined, and its 95 % bootstrap interval."""
        return bootstrap(self.measures[method][measure])

    def difference(self, first: str, second: str, measure: str) -> tuple[float, float]:
        """Mean difference of two methods on the same pictures, and its p-value by random changes of sign."""
        a, b = self.measures[first][measure], self.measures[second][measure]
        return float((a - b).nanmean()), paired_test(a, b)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: means, intervals, verdicts, and every pair of methods."""
        names = list(self.measures)
        keys = list(next(iter(self.measures.values())))
        return {
            "n": self.n,
            "operators": list(self.operators),
            "methods": {
                name: {
                    "measures": {key: [_number(v) for v in self.interval(name, key)] for key in keys},
                    "verdicts": self.verdicts[name],
                    "random_weights": None if (r := self.randomised[name]) is None else dataclasses.asdict(r),
                }
                for name in names
            },
            "differences": [
                {"first": a, "second": b, "measure": key, "mean": _number(mean), "p": p}
                for i, a in enumerate(names)
                for b in names[i + 1 :]
                for key in keys
                for mean, p in [self.difference(a, b, key)]
            ],
        }

    def __str__(self) -> str:
        keys = list(next(iter(self.measures.values())))
        lines = [f"{'n = ' + str(self.n):22}" + "".join(f"{key:>21}" for key in keys)]
        for name in self.measures:
            cells = ["{:.2f} ({:.2f} to {:.2f})".format(*self.interval(name, key)) for key in keys]
            lines.append(f"{name:22}" + "".join(f"{cell:>21}" for cell in cells))
        return "\n".join(lines)


def evaluate_maps(
    subject: Subject,
    images: Any,
    methods: Sequence[str] | Mapping[str, Method] = ("attention", "rollout", "occlusion"),
    *,
    target: Target = None,
    score: ScoreName = "log_odds",
    evidence: Tensor | None = None,
    budget: str | Budget = "full",
    operators: tuple[Operator, ...] | None = None,
    random_weights: int = 16,
    chunk: int = 16,
    batch_size: int = 64,
    seed: int = 0,
    show_progress: bool = False,
) -> MapEvaluation:
    """Verify several methods on many pictures; a hundred or more make a statement.

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask`.
        methods: names, or name -> function of a question.
        target: one class for all, or one each; None for the most probable.
        score: what is explained.
        evidence: (n, h, w) bool, where the evidence is known: then `pointing` is measured too.
        budget: of `verify`.
        operators: ways to remove, instead of the budget's.
        random_weights: pictures for the test with random weights; 0 for none.
        chunk: pictures worked on together.
        batch_size: forward passes at once.
        seed: of random orders.
        show_progress: on stderr.

    Returns:
        Per-picture values of every method on the same pictures.
    """
    pictures = images if isinstance(images, Tensor) else as_list(images)
    count = len(pictures)
    if not count:
        raise ConfigError("no pictures to evaluate on")
    named = methods if isinstance(methods, Mapping) else {name: method(name) for name in methods}
    targets = list(target) if isinstance(target, (list, tuple, Tensor)) else [target] * count
    chosen = BUDGETS[budget] if isinstance(budget, str) else budget
    plain = dataclasses.replace(chosen, weights=False)
    randomised = _random_weights(subject, pictures, targets, named, score, random_weights)
    checks: dict[str, list[MapCheck]] = {name: [] for name in named}
    maps: dict[str, list[Tensor]] = {name: [] for name in named}
    with progress("verifying maps", count * len(named), unit="maps", show=show_progress) as advance:
        for start in range(0, count, chunk):
            part = slice(start, min(start + chunk, count))
            question = _ask(subject, pictures[part], targets[part], score)
            for name, run in named.items():
                made = run(question)
                report = verify(
                    made,
                    budget=plain,
                    operators=operators,
                    randomised=randomised[name],
                    batch_size=batch_size,
                    seed=seed,
                )
                checks[name] += report.checks
                maps[name] += [values.cpu() for values in made.values]
                advance(len(made))
    measures = {name: _measures(checks[name], maps[name], evidence) for name in named}
    return MapEvaluation(
        n=count,
        operators=operators or chosen.operators,
        measures=measures,
        verdicts={name: dict(Counter(check.verdict.value for check in checks[name])) for name in named},
        randomised=randomised,
        checks=checks,
        maps={name: torch.stack(values) for name, values in maps.items()},
    )


def pointing(values: Tensor, evidence: Tensor) -> float:
    """Does the map's maximum lie in the evidence? Over ties the expected hit; NaN for a constant map or no evidence.

    Args:
        values: (h, w).
        evidence: (h, w) bool.
    """
    if not bool(evidence.any()) or bool((values == values.flatten()[0]).all()):
        return float("nan")
    top = values == values.max()
    return float(evidence.to(values.device)[top].double().mean())


def _random_weights(
    subject: Subject, pictures: Any, targets: list[Any], methods: Mapping[str, Method], score: ScoreName, number: int
) -> dict[str, Randomisation | None]:
    if min(number, len(pictures)) < FEWEST:
        return dict.fromkeys(methods)
    question = _ask(subject, pictures[:number], targets[:number], score)
    maps: dict[str, Explanation] = {name: run(question) for name, run in methods.items()}
    return {name: None if made.compute is None else randomisation(made) for name, made in maps.items()}


def _ask(subject: Subject, pictures: Any, targets: list[Any], score: ScoreName) -> Question:
    known = None if targets[0] is None else targets
    return ask(subject, pictures, target=known, score=score)


def _measures(checks: list[MapCheck], maps: list[Tensor], evidence: Tensor | None) -> dict[str, Tensor]:
    made = {key: torch.tensor([float(getattr(check.tests[0], key)) for check in checks]) for key in MEASURES}
    if evidence is not None:
        made["pointing"] = torch.tensor([pointing(m, e) for m, e in zip(maps, evidence.cpu(), strict=True)])
    return made


def _number(value: float) -> float | None:
    return None if value != value else round(value, 6)
