"""The running average of the weights (EMA): often better than the weights themselves, and measured beside them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitreous.base.processes import local


class Average:
    """w_ema = d w_ema + (1 - d) w after every step, with d = min(decay, (1 + step) / (10 + step)).

    Buffers are averaged likewise; whole numbers among them are copied. The smaller d of the first
    steps forgets the initial weights; source: TensorFlow's ExponentialMovingAverage.

    Args:
        model: whose weights are averaged, from what they are now.
        decay: in [0, 1), such as 0.9999.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after `step`, from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        now = model.state_dict()
        floats = [name for name, tensor in self.tensors.items() if tensor.is_floating_point()]
        torch._foreach_lerp_(
            local([self.tensors[name] for name in floats]), local([now[name] for name in floats]), 1 - decay
        )
        for name in self.tensors.keys() - set(floats):
            self.tensors[name].copy_(now[name])


@contextmanager
def exchanged(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Other weights in a model while the block runs; afterwards its own, bit by bit."""
    own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(tensors)
    try:
        yield
    finally:
        model.load_state_dict(own)
