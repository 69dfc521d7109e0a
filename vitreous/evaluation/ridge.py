"""Linear heads on frozen features without any training: ridge regression in closed form, and nearest neighbours.

Shapes: n pictures, D features, K classes, r = min(n, D + 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

L2 = tuple(2.0**k for k in range(-10, 21))
OFFICIAL_L2 = 2.0**10
BIAS = 100.0  # the constant feature: so large that the bias it makes is hardly held back
MOST_NUMBERS = 2**24  # of predictions held at once
SCALES = torch.logspace(-1, 2, 49, base=10, dtype=torch.float64)
TEMPERATURE = 0.07


@dataclass(frozen=True)
class Ridge:
    """A linear head: logits = x W^T + b, of the features as they are; the whitening is folded in.

    Args:
        weight: (K, D) float64.
        bias: (K,) float64.
        l2: the strength of the regularisation.
        left_out: (n, K) what each training picture would have got, had it been left out; in units of the targets.
        scale: a factor of weight and bias that makes logits of them: it changes no decision.
    """

    weight: Tensor
    bias: Tensor
    l2: float
    left_out: Tensor
    scale: float

    def logits(self, features: Tensor) -> Tensor:
        """(n, D) -> (n, K) float64."""
        return features.double() @ self.weight.T + self.bias


def fit(features: Tensor, labels: Tensor, classes: int, l2: Sequence[float] = L2) -> Ridge:
    """Ridge regression from whitened features to targets of -1 and 1.

    W = (X^T X + l2 I)^-1 X^T Y, where X is (x - mean) / (std + 1e-5) with a constant column, and
    Y is 1 for a picture's class and -1 for all others.

    One eigendecomposition serves every l2. Of several, that is taken which puts most training
    pictures right when each is left out in turn, and among equals that with the least squared
    error; the test set has no say. Leaving out is exact and costs no fitting: the error is
    (y - y^) / (1 - h), with h the diagonal of X (X^T X + l2 I)^-1 X^T (Allen 1974). Only mean and
    std stay those of all training pictures. The logits are scaled by the factor with which the
    left-out predictions have the least cross-entropy.

    With one picture a class there is nothing to choose by: l2 is then 2^10, and the scale 1.

    Args:
        features: (n, D).
        labels: (n,) int64.
        classes: K.
        l2: the strengths to choose from.

    Source: big_vision `evaluators/fewshot_lsr.py` and `configs/common_fewshot.py`, where l2 is always 2^10.
    """
    x, mean, std = _whiten(features.double())  # (n, D + 1)
    y = 2.0 * F.one_hot(labels, classes).double() - 1.0  # (n, K)
    n, d = x.shape
    if n >= d:
        eigenvalues, q = torch.linalg.eigh(x.T @ x)  # (r,), (D + 1, r)
        left, inner = q, x @ q  # (D + 1, r), (n, r)
        outer = inner
    else:
        eigenvalues, q = torch.linalg.eigh(x @ x.T)  # (r,), (n, r)
        left, inner = x.T @ q, q
        outer = q * eigenvalues
    right = inner.T @ y  # (r, K)

    leverages = outer * inner  # (n, r)

    def without_each(strengths: Tensor) -> Tensor:
        damped = 1.0 / (eigenvalues[:, None] + strengths)  # (r, l)
        fitted = outer @ (damped[:, :, None] * right[:, None]).flatten(1)  # (n, l K): one product for all
        h = leverages @ damped  # (n, l)
        return y[:, None] - (y[:, None] - fitted.unflatten(1, (-1, classes))) / (1.0 - h)[:, :, None]  # (n, l, K)

    alone = bool((torch.bincount(labels, minlength=classes) == 1).any())
    tried = torch.tensor([OFFICIAL_L2] if alone and len(l2) > 1 else l2, dtype=torch.float64)
    quality = []  # of every l2: pictures put right, squared error
    for part in tried.split(max(MOST_NUMBERS // y.numel(), 1)) if len(tried) > 1 else ():
        predictions = without_each(part)
        right_ones = (predictions.argmax(dim=2) == labels[:, None]).sum(dim=0)
        errors = (predictions - y[:, None]).square().sum(dim=(0, 2))
        quality += list(zip(right_ones.tolist(), (-errors).tolist(), strict=True))
    place = max(range(len(quality)), key=quality.__getitem__, default=0)
    best = float(tried[place])
    left_out = without_each(tried[place : place + 1])[:, 0]  # (n, K)
    scale = 1.0 if alone else _best_scale(left_out, labels)
    w = scale * (left / (eigenvalues + best)) @ right  # (D + 1, K)
    weight = w[:-1] / std[:, None]  # (D, K)
    return Ridge(weight.T.contiguous(), BIAS * w[-1] - mean @ weight, best, left_out, scale)


def nearest(features: Tensor, labels: Tensor, queries: Tensor, classes: int, neighbours: int) -> Tensor:
    """The class (m,) of each query by its nearest pictures: cosine similarity s, each votes with exp(s / 0.07).

    Source: Caron et al. 2021 (DINO), appendix F.1.
    """
    known, found = F.normalize(features, dim=1), []
    for part in F.normalize(queries, dim=1).split(1024):
        similarity, index = (part @ known.T).topk(neighbours, dim=1)  # (m, k)
        votes = torch.zeros(len(part), classes).scatter_add_(1, labels[index], (similarity / TEMPERATURE).exp())
        found.append(votes.argmax(dim=1))
    return torch.cat(found)


def _whiten(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, std = x.mean(dim=0), x.std(dim=0, correction=0) + 1e-5  # (D,)
    return F.pad((x - mean) / std, (0, 1), value=BIAS), mean, std


def _best_scale(predictions: Tensor, labels: Tensor) -> float:
    losses = [float(F.cross_entropy(scale * predictions, labels)) for scale in SCALES]
    return float(SCALES[min(range(len(losses)), key=losses.__getitem__)])
