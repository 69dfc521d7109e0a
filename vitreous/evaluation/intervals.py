"""How sure a share or a mean is: Wilson's interval over pictures, Student's over repetitions."""

import math
from collections.abc import Sequence

Z975 = 1.959964  # 97.5 % quantile of the normal distribution
_T975 = (  # Student's, 1 to 15 degrees of freedom
    12.7062,
    4.3027,
    3.1824,
    2.7764,
    2.5706,
    2.4469,
    2.3646,
    2.3060,
    2.2622,
    2.2281,
    2.2010,
    2.1788,
    2.1604,
    2.1448,
    2.1314,
)


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n pictures drawn independently (Wilson 1927)."""
    centre, half = share + Z975**2 / (2 * n), Z975 * math.sqrt(share * (1 - share) / n + Z975**2 / (4 * n * n))
    return (centre - half) / (1 + Z975**2 / n), (centre + half) / (1 + Z975**2 / n)


def student(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of repetitions: mean -+ t s / sqrt(n). At least two are needed."""
    n = len(values)
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    half = t975(n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


def t975(degrees: int) -> float:
    """The 97.5 % quantile of Student's distribution, to 1e-4 (Cornish & Fisher's expansion from 16 degrees on)."""
    if degrees <= len(_T975):
        return _T975[degrees - 1]
    z, v = Z975, degrees
    terms = (
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
    )
    return z + sum(terms)
