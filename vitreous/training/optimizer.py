"""The optimisers of the recipes, with the official details."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.base.processes import local, whole
from vitreous.training.model_parts import count_blocks, rate_scale
from vitreous.training.recipe import Recipe


class Momentum(torch.optim.Optimizer):
    """SGD with momentum, its buffer kept in a dtype of choice: m = g + beta m;  w = w - lr m.

    With bfloat16, beta (0.8984 for 0.9) and what is kept for the next step are rounded; the
    arithmetic of the step itself is not. That is what XLA makes of the official code.

    Source: optax `trace` with `accumulator_dtype`, as vit_jax `train.py` uses it.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            buffers = [self._buffer(p) for p in params]
            grads, params, buffers = local([p.grad for p in params]), local(params), local(buffers)
            if group["weight_decay"]:
                grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
            if self.dtype == torch.float32:
                torch._foreach_mul_(buffers, group["momentum"])
                torch._foreach_add_(buffers, grads)
                torch._foreach_add_(params, buffers, alpha=-group["lr"])
            else:
                beta = torch.tensor(group["momentum"], dtype=self.dtype).item()
                sums = [g + beta * b.to(g.dtype) for g, b in zip(grads, buffers, strict=True)]
                torch._foreach_add_(params, sums, alpha=-group["lr"])
                torch._foreach_copy_(buffers, sums)

    def _buffer(self, parameter: Tensor) -> Tensor:
        memory = self.state[parameter]
        if "momentum" not in memory:
            memory["momentum"] = torch.zeros_like(parameter, dtype=self.dtype)
        return memory["momentum"]


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over all parameters that are trained."""
    groups = parameter_groups(model, recipe)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.base_lr, betas=recipe.betas, fused=True)
    return Momentum(groups, recipe.base_lr, recipe.momentum, getattr(torch, recipe.momentum_dtype))


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Two groups: the kernels, which weight decay applies to, and the rest; with `layer_decay` two for every depth.

    Each has its `scale` of the learning rate.
    """
    kernels = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    blocks = count_blocks(model, "layer_decay") if recipe.layer_decay != 1 else 0
    groups: dict[float, list[dict[str, Any]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = rate_scale(name, blocks, recipe.layer_decay)
            pair = [{"params": [], "weight_decay": decay, "scale": scale} for decay in (recipe.weight_decay, 0.0)]
            groups.setdefault(scale, pair)[id(parameter) not in kernels]["params"].append(parameter)
    return [group for scale in sorted(groups) for group in groups[scale]]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The schedule's rate, for each group times its scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def clip_global_norm(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale all gradients by min(1, limit / norm), where norm is over all of them at once; returns the norm before.

    `limit` 0 leaves them alone. Source: vit_jax `train.py` (torch's own adds 1e-6 to the norm).
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(grads))
    if limit:
        torch._foreach_mul_(local(grads), (limit / norm).clamp(max=1.0))
    return norm
