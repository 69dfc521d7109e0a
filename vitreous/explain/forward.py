"""Forward passes that begin at the tokens, and that keep what the model itself throws away.

The model always takes fused attention and keeps nothing. Here its blocks are run by their own
parts, with the same arithmetic: from tokens of which some were taken out, with a few rows of the
attention weights read on the way, or with all of the weights written out to differentiate by.
For models in evaluation mode: dropout and stochastic depth are left out.
"""

import math
from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from vitreous.model import ALL, Block, VisionTransformer


def logits_of(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """z_0 (M, S', D), with any number of patches left -> logits (M, K), or (M, D) without a head."""
    x = tokens
    for block in model.blocks[:-1]:
        x = block(x)  # (M, S', D)
    return model.read_out(model.blocks[-1](x, rows=model.rows_read))


def blocks_of(model: VisionTransformer) -> Iterator[Block]:
    """The encoder blocks from the first to the last, typed as `Block`."""
    for block in model.blocks:
        assert isinstance(block, Block)
        yield block


def observe(block: Block, x: Tensor, queries: slice, rows: slice = ALL) -> tuple[Tensor, Tensor]:
    """One block as it is, with the attention of some queries read from the q and k that it has anyway.

    Args:
        block: a block of the model.
        x: (B, S, D).
        queries: whose attention is wanted.
        rows: the tokens to compute, as `Block.forward` has it; must include `queries`.

    Returns:
        (B, rows, D) and the weights (B, h, queries, S).
    """
    q, k, v = block.attention.project(block.norm1(x), rows)  # (B, h, rows, d), (B, h, S, d) twice
    weights = (q[:, :, queries] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)  # (B, h, queries, S)
    y = F.scaled_dot_product_attention(q, k, v)  # (B, h, rows, d)
    return after_attention(block, x[:, rows], y), weights


def explicit(block: Block, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One block with its attention weights written out: (B, S, D) -> (B, S, D), A (B, h, S, S), v (B, h, S, d)."""
    q, k, v = block.attention.project(block.norm1(x))
    weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)  # (B, h, S, S)
    return after_attention(block, x, weights @ v), weights, v


def after_attention(block: Block, x: Tensor, y: Tensor) -> Tensor:
    """The rest of a block: heads merged (B, h, rows, d) and projected, then the MLP; with both residuals."""
    x = x + block.attention.out(y.transpose(1, 2).flatten(2))  # (B, rows, D)
    return x + block.mlp(block.norm2(x))
