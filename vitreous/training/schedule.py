"""The learning rate at every step."""

import math


def learning_rate(
    step: int, *, steps: int, base: float, warmup_steps: int = 0, decay: str = "cosine", linear_end: float = 1e-5
) -> float:
    """The official schedule: linear warm-up times cosine or linear decay.

    p = clip((step - warmup) / (steps - warmup), 0, 1)
    cosine: base (1 + cos(pi p)) / 2;  linear: end + (base - end)(1 - p)
    and during the warm-up times step / warmup.

    Args:
        step: from 0.
        steps: of the whole run.
        base: the rate after the warm-up.
        warmup_steps: 0 for none.
        decay: `"cosine"` or `"linear"`.
        linear_end: where the linear decay ends.

    Source: vit_jax `utils.create_learning_rate_schedule`.
    """
    p = min(max((step - warmup_steps) / (steps - warmup_steps), 0.0), 1.0)
    rate = base * 0.5 * (1 + math.cos(math.pi * p)) if decay == "cosine" else linear_end + (base - linear_end) * (1 - p)
    return rate * min(1.0, step / warmup_steps) if warmup_steps else rate
