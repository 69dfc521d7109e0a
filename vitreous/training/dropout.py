"""Dropout as a function of the picture's position in the run.

torch draws one stream of random numbers over a whole batch, so that a batch in parts, or on several
processes, would see other masks. Here every picture has a seed of its own, from its position, and
a mask's number is a hash of (seed, which dropout of the forward pass, place in the tensor). The
numbers are integers, so that they are the same on every device.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

BITS = 0xFFFFFFFF
GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: consecutive calls get unrelated offsets
_active: list["DropoutByPosition"] = []


class DropoutByPosition(TorchFunctionMode):
    """While this is on, dropout and stochastic depth draw from the seeds of the pictures.

    It replaces `F.dropout`, `torch.bernoulli` and the dropout within `F.scaled_dot_product_attention`
    for tensors whose first dimension is the batch. Attention with dropout is then computed step by
    step, as the fused kernels draw for themselves.

    Args:
        seeds: one 63-bit number a picture of the batch.
        device: of the images.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | None = None) -> None:
        super().__init__()
        words = torch.tensor(list(seeds), dtype=torch.int64, device=device)[:, None]  # (B, 1)
        self.low, self.high = words & BITS, words >> 32
        self.calls = 0

    def __enter__(self) -> "DropoutByPosition":
        _active.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _active.pop()
        super().__exit__(*error)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        own: dict[Any, Callable[..., Tensor]] = {
            F.dropout: self._dropout,
            F.scaled_dot_product_attention: self._attention,
            torch.bernoulli: self._draw,
        }
        replacement = own.get(function)
        if replacement is not None and len(args[0]) == len(self.low):
            return replacement(*args, **kwargs)
        return function(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * self._kept(x, p) if training and p > 0 else x

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
        if dropout_p == 0:
            return F.scaled_dot_product_attention(q, k, v)  # (B, h, S, d)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, h, S, S)
        weights = scores.float().softmax(dim=-1).to(v.dtype)
        return (weights * self._kept(weights, dropout_p)) @ v

    def _draw(self, probability: Tensor) -> Tensor:
        return (self._numbers(probability.shape) < probability.double() * 2**32).to(probability.dtype)

    def _kept(self, like: Tensor, rate: float) -> Tensor:
        """1 / (1 - rate) for what is kept and 0 for the rest, in the shape of `like`."""
        return (self._numbers(like.shape) >= int(rate * 2**32)).to(like.dtype) / (1 - rate)

    def _numbers(self, shape: torch.Size) -> Tensor:
        """Whole numbers in [0, 2^32), each equally likely: (B, ...)."""
        places = _hash(torch.arange(math.prod(shape[1:]), device=self.low.device))  # (n,)
        offset = self.calls * GOLDEN
        self.calls += 1
        numbers = _hash(places ^ self.low)  # (B, n)
        return _hash(numbers ^ ((self.high + offset) & BITS)).view(shape)


def replay() -> AbstractContextManager[None]:
    """The dropout that is on now, from where it is now: to compute a part of the forward pass a second time."""
    return _again(_active[-1], _active[-1].calls) if _active else nullcontext()


@contextmanager
def _again(mode: DropoutByPosition, calls: int) -> Iterator[None]:
    before, mode.calls = mode.calls, calls
    try:
        with mode:
            yield
    finally:
        mode.calls = before


def _hash(x: Tensor) -> Tensor:
    """32-bit numbers mixed one to one; the factors are below 2^31, so that int64 holds every product.

    Source: C. Wellons' hash-prospector, the two-round function of least bias found there.
    """
    x = x ^ (x >> 16)
    x = (x * 0x21F0AAAD) & BITS
    x = x ^ (x >> 15)
    x = (x * 0x735A2D97) & BITS
    return x ^ (x >> 15)
