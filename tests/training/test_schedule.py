"""The learning rate against the official one, step by step."""

import numpy as np
import pytest

from tests.conftest import shared
from vitreous.training.schedule import learning_rate


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize(("suffix", "steps", "base", "warmup"), [("", 100, 0.03, 10), ("_nowarmup", 20, 0.01, 0)])
def test_official_schedule(decay, suffix, steps, base, warmup):
    golden = np.load(shared("golden/lr_schedule.npz"))[f"{decay}{suffix}"]
    ours = [
        learning_rate(step, steps=steps, base=base, warmup_steps=warmup, decay=decay) for step in range(len(golden))
    ]
    np.testing.assert_allclose(ours, golden, atol=1e-8, rtol=0)
