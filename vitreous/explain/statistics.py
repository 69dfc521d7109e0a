"""Rank correlation, intervals and paired tests; small, and defined where the usual ones are not."""

import torch
from torch import Tensor


def ranks(x: Tensor) -> Tensor:
    """Ranks of a vector from 0, ties sharing the mean of theirs, float64."""
    _, group, count = x.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0) - 1
    return (last - (count - 1) / 2).double()[group]


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation of two maps; NaN where one of them is constant."""
    x, y = ranks(a.flatten()), ranks(b.flatten())
    x, y = x - x.mean(), y - y.mean()
    scale = float(x.norm() * y.norm())
    return float(x @ y) / scale if scale > 0 else float("nan")


def quantiles(values: Tensor, low: float, high: float) -> tuple[float, float]:
    """Two quantiles, e.g. 0.05 and 0.95."""
    found = values.double().quantile(torch.tensor([low, high], dtype=torch.float64, device=values.device))
    return float(found[0]), float(found[1])


def bootstrap(values: Tensor, draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval; NaN values are left out."""
    x = values[~values.isnan()].double().cpu()
    if not len(x):
        return float("nan"), float("nan"), float("nan")
    chosen = torch.randint(len(x), (draws, len(x)), generator=torch.Generator().manual_seed(seed))
    return float(x.mean()), *quantiles(x[chosen].mean(dim=1), 0.025, 0.975)


def paired_test(a: Tensor, b: Tensor, draws: int = 5000, seed: int = 0) -> float:
    """Two-sided p-value that paired values differ in the mean, by random changes of sign; NaN is left out."""
    d = (a - b).double().cpu()
    d = d[~d.isnan()]
    if not len(d) or not bool(d.any()):
        return 1.0
    signs = 2 * torch.randint(2, (draws, len(d)), generator=torch.Generator().manual_seed(seed)).double() - 1
    beyond = (signs @ d).abs() >= d.sum().abs() - 1e-12
    return float((beyond.sum() + 1) / (draws + 1))
