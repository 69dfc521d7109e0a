"""Verdicts against evidence that was planted, and on maps that nothing can be said of."""

from dataclasses import replace

import pytest
import torch

from tests.conftest import tiny
from tests.explain.conftest import images_for
from vitreous.base.errors import ConfigError
from vitreous.explain import Thresholds, Verdict, ask, attention, edges, given, occlusion, pointing
from vitreous.explain.verification.ground import BUDGETS, ground_of, noise_floor
from vitreous.explain.verification.verify import verify


def test_the_verdict_refutes_the_blind_map_and_not_occlusion(planted):
    whole, evidence, _ = planted
    question = ask(whole.model, whole.images[:12], target=whole.target[:12].tolist())
    evidence = evidence[:12]
    blind = [check.verdict for check in edges(question).verify()]
    assert blind.count(Verdict.REFUTED) >= 11
    true = [check.verdict for check in occlusion(question).verify()]
    assert true.count(Verdict.REFUTED) == 0
    assert true.count(Verdict.CONSISTENT) >= 6
    reads = attention(question)
    missed = [pointing(m, e) == 0 for m, e in zip(reads.values, evidence, strict=True)]
    verdicts = [check.verdict for check in reads.verify()]
    assert not any(w and v is Verdict.CONSISTENT for w, v in zip(missed, verdicts, strict=True))
    # How often attention itself is wrong depends on how training rounds; where another picture is read it is.
    reads = replace(reads, values=reads.values.roll(1, 0))
    wrong = [pointing(m, e) == 0 for m, e in zip(reads.values, evidence, strict=True)]
    said = [check.verdict is Verdict.REFUTED for check in reads.verify()]
    assert sum(wrong) >= 4
    assert sum(w and s for w, s in zip(wrong, said, strict=True)) >= 0.7 * sum(wrong)


def test_a_constant_model_has_nothing_to_explain():
    model = tiny()
    with torch.no_grad():
        model.head.weight.zero_()
    made = occlusion(model, images_for(model))
    assert not made.values.any()
    assert {check.verdict for check in made.verify(budget="quick")} == {Verdict.NOTHING_TO_EXPLAIN}


def test_ties_are_neither_good_nor_bad():
    model = tiny()
    question = ask(model, images_for(model, 1))
    flat = given(question, torch.zeros(1, 4, 4), method="flat", caption="nothing")
    (check,) = verify(flat, budget="quick")
    test = check.tests[0]
    # Ties are broken at random, never from the top left: what it does is what a random order does.
    spread = test.random.high - test.random.low
    assert test.random.low - spread <= test.deletion <= test.random.high + spread


def test_what_a_map_is_judged_by_does_not_depend_on_the_order_of_operators():
    model = tiny(image_size=64)
    question, fresh = (ask(model, images_for(model, 2)) for _ in range(2))
    forward = verify(attention(question), budget="quick", operators=("drop", "blur"))
    backward = verify(attention(fresh), budget="quick", operators=("blur", "drop"))
    for one, other in zip(forward, backward, strict=True):
        theirs = {test.operator: test for test in other.tests}
        for test in one.tests:
            assert test == theirs[test.operator]
            assert -1 <= test.correlation <= 1
    # The median over patches of how far the two operators differ: neither is the first, so neither has floor 0.
    grounds = [ground_of(fresh, operator, BUDGETS["quick"]) for operator in ("drop", "blur")]
    wanted = (grounds[0].falls - grounds[1].falls).abs().median(dim=1).values
    assert torch.equal(noise_floor(grounds), wanted)
    assert (wanted > 0).all()


def test_a_check_says_what_it_was_judged_by():
    question = ask(tiny(), images_for(tiny(), 2))
    strict = Thresholds(probability=1.0)
    report = verify(attention(question), budget="quick", thresholds=strict)
    assert all(check.thresholds == strict for check in report)
    assert all(check.verdict is Verdict.NOTHING_TO_EXPLAIN for check in report)
    assert report[0].to_dict()["thresholds"]["probability"] == 1.0
    with pytest.raises(ConfigError, match=r"report\[i\].reasons"):
        _ = report.reasons
    with pytest.raises(ConfigError, match=r"report\[i\].verdict"):
        _ = report.verdict
