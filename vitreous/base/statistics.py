"""How sure a share, a mean or a rank correlation is; defined where the usual formulas are not.

scipy computes. It is imported when it is needed: `import vitreous` does not wait for it.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor


def wilson(count: int, n: int) -> tuple[float, float]:
    """95 % interval of the share count / n of pictures drawn independently; n is at least 1 (Wilson 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def student(values: Sequence[float] | Tensor) -> tuple[float, float]:
    """95 % interval of the mean of repetitions, mean -+ t s / sqrt(n); without bounds for fewer than two."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        return float("-inf"), float("inf")
    half = t975(len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return float(x.mean() - half), float(x.mean() + half)


def t975(degrees: int) -> float:
    """The 97.5 % quantile of Student's distribution."""
    from scipy.stats import t

    return float(t.ppf(0.975, degrees))


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation of two maps, ties sharing the mean of their ranks; NaN where one map is constant."""
    from scipy.stats import rankdata

    x, y = (rankdata(values.flatten().cpu().numpy()) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / scale if scale > 0 else float("nan")


def quantiles(values: Tensor, low: float, high: float) -> tuple[float, float]:
    """Two quantiles of a vector, e.g. 0.05 and 0.95."""
    found = np.quantile(values.double().cpu().numpy(), [low, high])
    return float(found[0]), float(found[1])


def bootstrap(values: Tensor, draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval; NaN values are left out, and of nothing all three are NaN."""
    from scipy import stats

    x = _known(values)
    if not len(x):
        return float("nan"), float("nan"), float("nan")
    if len(x) == 1:  # drawn again and again it is always itself
        return float(x[0]), float(x[0]), float(x[0])
    found = stats.bootstrap(
        (x,), np.mean, n_resamples=draws, method="percentile", rng=np.random.default_rng(seed)
    ).confidence_interval
    return float(x.mean()), float(found.low), float(found.high)


def paired_test(a: Tensor, b: Tensor, draws: int = 5000, seed: int = 0) -> float:
    """Two-sided p-value that paired values differ in the mean, by changes of sign; pairs with NaN are left out."""
    from scipy import stats

    d = _known(a - b)
    if not d.any():
        return 1.0
    if len(d) == 1:  # the two signs of one difference are as far from zero
        return 1.0
    found = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=draws, rng=np.random.default_rng(seed)
    )
    return float(found.pvalue)


def _known(values: Tensor) -> np.ndarray:
    """The values that are no NaN, float64."""
    x = values.double().cpu().numpy().ravel()
    return x[~np.isnan(x)]
