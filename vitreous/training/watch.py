"""Whether the loss behaves: a stop where it is no number any more, and advice while it grows."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.base.errors import VitreousError
from vitreous.training.recipe import Recipe

logger = logging.getLogger("vitreous")
STEPS = 5  # over which the loss is averaged: one hard batch is no explosion
GROWTH = 2.0  # times the first loss
REFERENCE = 512  # pictures a step, which the official rate of 0.03 belongs to


def check_finite(step: int, loss: float, norm: float, rate: float, recipe: Recipe, state: Path) -> None:
    """Stop where the loss or the gradient is no finite number.

    Raises:
        VitreousError: with the step, and the way out.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise VitreousError(
            f"the loss is {loss} and the gradient's norm {norm} at step {step} (learning rate {rate:.2g}): "
            f"try a smaller base_lr, such as {recipe.base_lr / 3:.2g}, or a longer warm-up"
            f"{'' if recipe.grad_clip else ', or grad_clip = 1.0'}. "
            f"The weights of the last saved state are in {state}"
        )


def advise(log: Sequence[dict[str, Any]], recipe: Recipe) -> None:
    """Warn at a step where the mean loss of the last few steps comes to exceed twice the first loss."""
    if not exploded(log) or exploded(log[:-1]):
        return
    rate, batch = recipe.base_lr, recipe.batch_size
    advice = [f"base_lr {rate:.2g} may be too high: try {rate / 3:.2g}"]
    fitting = 0.03 * batch / REFERENCE
    if recipe.optimizer == "sgd" and rate > 1.5 * fitting:
        advice.append(f"in proportion to 0.03 for 512 pictures, {batch} pictures a step ask for {fitting:.2g}")
    if recipe.warmup_steps < recipe.steps // 20:
        advice.append(f"a longer warm-up, such as warmup_steps={recipe.steps // 10}")
    if not recipe.grad_clip:
        advice.append("grad_clip=1.0")
    last = sum(entry["loss"] for entry in log[-STEPS:]) / STEPS
    logger.warning(
        "the loss has grown from %.3g to %.3g by step %d. %s", log[0]["loss"], last, log[-1]["step"], "; ".join(advice)
    )


def exploded(log: Sequence[dict[str, Any]]) -> bool:
    """Whether the mean loss of the last few steps is beyond twice the first."""
    if len(log) <= STEPS:
        return False
    return sum(entry["loss"] for entry in log[-STEPS:]) / STEPS > GROWTH * log[0]["loss"]
