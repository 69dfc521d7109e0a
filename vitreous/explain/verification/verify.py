"""Testing a map: what the model says when the patches it names are taken out, beside controls."""

from vitreous.base.progress import Advance
from vitreous.base.statistics import spearman
from vitreous.explain.record import Kind, Map
from vitreous.explain.removal import BATCH, Operator
from vitreous.explain.verification.check import MapCheck, Report
from vitreous.explain.verification.ground import Budget, as_budget, ground_of, noise_floor
from vitreous.explain.verification.measures import measure
from vitreous.explain.verification.randomisation import Randomisation, randomisation
from vitreous.explain.verification.verdict import Thresholds, judge, remarks


def verify(
    explanation: Map,
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
        thresholds: limits of the verdict's rule; None for this project's.
        batch_size: forward passes at once.
        seed: the seed of random orders and ties.
        advance: called with the number of forward passes done.

    Returns:
        One check for each picture; on one picture it is an anecdote (see `evaluate_maps` for sets).
    """
    chosen = as_budget(budget)
    question = explanation.question.effect()
    grounds = [
        ground_of(question, operator, chosen, batch_size=batch_size, seed=seed, advance=advance)
        for operator in operators or chosen.operators
    ]
    floor = noise_floor(grounds)  # once all operators were run: then their order does not matter
    values = explanation.values.flatten(1)  # (B, N)
    measured = [measure(question, values, ground, floor, seed) for ground in grounds]
    if randomised is None and chosen.weights and len(explanation) >= 8 and explanation.compute is not None:
        randomised = randomisation(explanation)
    swaps = _target_swap(explanation) if chosen.weights else [float("nan")] * len(explanation)
    limits = thresholds or Thresholds()
    checks = []
    for i in range(len(explanation)):
        tests = tuple(found.tests[i] for found in measured)
        p = float(explanation.probability[i])
        verdict, reasons = judge(tests, randomised, p, operators_needed=2, thresholds=limits)
        checks.append(
            MapCheck(
                method=explanation.method,
                label=question.label(i),
                probability=p,
                tests=tests,
                randomised=randomised,
                target_swap=swaps[i],
                verdict=verdict,
                thresholds=limits,
                reasons=reasons,
                remarks=remarks(tests, limits),
                curves={ground.operator: found.curves[i] for ground, found in zip(grounds, measured, strict=True)},
            )
        )
    return Report(tuple(checks))


def _target_swap(explanation: Map) -> list[float]:
    """Correlation with the map of the second most probable class."""
    count, question = len(explanation), explanation.question
    if explanation.compute is None or question.logits.shape[1] < 2:
        return [float("nan")] * count
    if explanation.kind in (Kind.DESCRIPTIVE, Kind.CONTROL):
        return [1.0] * count  # by construction: it does not know the class
    others = question.logits.scatter(1, question.asked()[:, None], float("-inf")).argmax(dim=1)
    maps, _ = explanation.compute(question.about(target=others))
    return [spearman(a, b) for a, b in zip(explanation.values, maps, strict=True)]
