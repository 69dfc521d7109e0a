"""Random weights, from the head down."""

from itertools import pairwise

import torch

from tests.conftest import tiny
from tests.explain.conftest import images_for
from vitreous.explain import attention, edges, randomisation
from vitreous.explain.verification.randomisation import cascade, untrained


def test_each_stage_draws_one_more_module_anew():
    model = tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    changed: list[set[str]] = []
    stages = []
    for stage, random in cascade(model, 0):
        stages.append(stage)
        changed.append({name for name, value in random.state_dict().items() if not torch.equal(value, before[name])})
    assert stages == ["head", "block 2", "block 1", "block 0", "patch embedding", "positions and CLS"]
    assert all(a < b for a, b in pairwise(changed))
    assert changed[-1] == set(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    last = untrained(model, 0)[1].state_dict()
    assert all(torch.equal(value, last[name]) for name, value in random.state_dict().items())


def test_a_map_that_never_saw_the_model_fails_and_attention_is_measured_at_every_stage():
    images = images_for(tiny(), 8)
    blind = randomisation(edges(tiny(), images), seeds=1)
    assert blind.correlation == (1.0,)
    assert blind.failed()
    reads = randomisation(attention(tiny(), images), seeds=2, every_stage=True)
    assert reads.stages[0] == "head"
    assert reads.correlation[0] == 1.0  # attention does not pass through the head
    assert len(reads.correlation) == len(reads.absolute) == len(reads.stages) == 6
    assert abs(reads.correlation[-1]) <= reads.absolute[-1] < 1.0
