"""The one initialiser of flax that torch does not have."""

import math

from torch import Tensor, nn


def lecun_normal_(weight: Tensor) -> Tensor:
    """Fill with a normal of variance 1 / fan_in, truncated at two of the parent's standard deviations.

    flax's default for Dense and Conv kernels. Truncation shrinks a unit normal's standard
    deviation to 0.8796, so the parent is that much wider.
    """
    fan_in = weight[0].numel()
    std = math.sqrt(1.0 / fan_in) / 0.87962566103423978
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
