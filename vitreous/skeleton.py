"""A model without memory for its weights: for shapes, names and counts, and to put loaded weights in."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitreous.config import ViTConfig
from vitreous.model import VisionTransformer


class _NoRandomNumbers(TorchFunctionMode):
    """Leaves initialisation out: to draw normal numbers on the meta device, torch imports its whole compiler."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if function in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return function(*args, **kwargs)


def empty_model(config: ViTConfig) -> VisionTransformer:
    """The model's skeleton without memory for its weights (torch's meta device)."""
    with torch.device("meta"), _NoRandomNumbers():
        return VisionTransformer(config)
