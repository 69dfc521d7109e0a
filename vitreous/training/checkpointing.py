"""Less memory for more work: a block's activations are computed again on the way back."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from vitreous.training.dropout import replay
from vitreous.training.model_parts import count_blocks


@contextmanager
def recomputed(model: nn.Module, on: bool = True) -> Iterator[None]:
    """Keep only what goes into each block; the rest is computed a second time when its gradient is.

    Dropout draws the same masks both times.

    Raises:
        ConfigError: a model without `blocks`.
    """
    if not on:
        yield
        return
    count_blocks(model, "grad_checkpointing")
    blocks = list(model.blocks)  # type: ignore[arg-type]
    for block in blocks:
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False, context_fn=lambda: (nullcontext(), replay())
        )
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
