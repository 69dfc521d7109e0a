"""The shape of every tensor on the way from an image to its logits, taken from a run.

The first block is shown step by step, the others, which are the same, by their output. The letters of the
formulas are the paper's: B images of C channels and (H, W) pixels, patches of P² pixels (P1·P2 where not
square), N patches, S = N + 1 tokens (N without CLS), D hidden size, h heads of d = D / h, the MLP's width
M, L blocks, R the pre-logits width, K classes. A hybrid's patches are cut from C' channels of (H', W') cells.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.model import Block, VisionTransformer, evaluating, patchify


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One tensor of the forward pass.

    Args:
        stage: what it is, e.g. `"flattened patches"`.
        formula: how it comes about and its shape in letters, e.g. `"x_p: (B, N, P²·C)"`.
        shape: its shape in this run.
        dtype: its dtype in this run.
    """

    stage: str
    formula: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Every stage of one run in order, and what the run returned.

    Args:
        rows: the stages; iterating over the trace gives the same.
        logits: (B, K), or the representation (B, D) of a backbone without a head, as `model(images)` gives.
    """

    rows: tuple[Stage, ...]
    logits: Tensor

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain JSON values."""
        return [
            {"stage": s.stage, "formula": s.formula, "shape": list(s.shape), "dtype": str(s.dtype).split(".")[-1]}
            for s in self.rows
        ]


@torch.no_grad()
def trace(model: VisionTransformer, images: Tensor | None = None) -> Trace:
    """Run the model's own parts one after the other and note what each returns.

    Nothing is computed from the configuration: a shape here is the shape of a tensor that existed. The run is
    in evaluation mode, and computes all tokens of the last block, where `model(images)` stops at the one that
    the head reads; the logits are the same. On the meta device it needs neither time nor memory.

    Args:
        model: any vision transformer; its mode is left as it was.
        images: (B, C, H, W), normalised; None for one black image of the configured size.

    Returns:
        The stages, with the logits.

    Raises:
        ImageError: when the images are not of the model's size.

    Source: Dosovitskiy et al. 2021, equations 1-8.
    """
    if images is None:
        like, config = model.position_embedding, model.config
        images = torch.zeros(1, config.in_channels, *config.image_size, dtype=like.dtype, device=like.device)
    stages = _Stages()
    with evaluating(model):
        z = _trace_embedding(model, images, stages)
        first, *others = model.blocks
        assert isinstance(first, Block)
        z = _trace_block(first, z, stages)  # (B, S, D)
        for i, block in enumerate(others, start=1):
            z = stages.add(f"block {i}: encoder output", f"z_{i + 1} = block_{i}(z_{i}): (B, S, D)", block(z))
        logits = _trace_head(model, z, stages)
    return Trace(rows=tuple(stages.rows), logits=logits)


class _Stages:
    """Collects the stages of a run."""

    def __init__(self) -> None:
        self.rows: list[Stage] = []

    def add(self, stage: str, formula: str, x: Tensor) -> Tensor:
        self.rows.append(Stage(stage=stage, formula=formula, shape=tuple(x.shape), dtype=x.dtype))
        return x


def _trace_embedding(model: VisionTransformer, images: Tensor, stages: _Stages) -> Tensor:
    """Equation 1."""
    z = model.embed(images)  # (B, S, D); first, because it refuses images of another size
    x, channels = stages.add("image", "x: (B, C, H, W)", images), "C"
    if model.stem is not None:
        x, channels = stages.add("stem output", "ResNet(x): (B, C', H', W')", model.stem(x)), "C'"
    p1, p2 = size = model.patch_embedding.patch_size
    square = "P²" if p1 == p2 else "P1·P2"
    stages.add("flattened patches", f"x_p: (B, N, {square}·{channels})", patchify(x, size))
    stages.add("projected patches", "x_p·E: (B, N, D)", model.patch_embedding(x))
    if model.cls_token is None:
        return stages.add("tokens with positions", "z_0 = x_p·E + E_pos: (B, N, D)", z)
    return stages.add("tokens with CLS, positions", "z_0 = [x_cls; x_p·E] + E_pos: (B, N+1, D)", z)


def _trace_block(block: Block, z: Tensor, stages: _Stages) -> Tensor:
    """Equations 2 and 3, and within them the self-attention of equations 5-8."""

    def add(stage: str, formula: str, x: Tensor) -> Tensor:
        return stages.add(f"block 0: {stage}", formula, x)

    y = add("norm", "LN(z_0): (B, S, D)", block.norm1(z))
    q, k, v = block.attention.project(y)
    add("queries", "q: (B, h, S, d)", q)
    add("keys", "k: (B, h, S, d)", k)
    add("values", "v: (B, h, S, d)", v)
    weights = add("attention weights", "A = softmax(q·kᵀ/√d): (B, h, S, S)", block.attention.weights(y))
    heads = add("head outputs", "A·v: (B, h, S, d)", weights.to(v.dtype) @ v)
    merged = add("merged heads", "concat(A·v): (B, S, h·d)", heads.transpose(1, 2).flatten(2))
    output = add("attention output", "MSA(LN(z_0)): (B, S, D)", block.attention.out(merged))
    z = add("after attention", "z'_1 = MSA(LN(z_0)) + z_0: (B, S, D)", z + output)
    y = add("second norm", "LN(z'_1): (B, S, D)", block.norm2(z))
    hidden = add("MLP hidden", "GELU(fc1(LN(z'_1))): (B, S, M)", block.mlp.gelu(block.mlp.fc1(y)))
    output = add("MLP output", "MLP(LN(z'_1)): (B, S, D)", block.mlp.fc2(hidden))
    return add("encoder output", "z_1 = MLP(LN(z'_1)) + z'_1: (B, S, D)", z + output)


def _trace_head(model: VisionTransformer, z: Tensor, stages: _Stages) -> Tensor:
    """Equation 4 and the classifier."""
    config, name = model.config, "y"
    if config.norm_after_pooling:
        x = stages.add("mean over tokens", "mean(z_L): (B, D)", z[:, config.prefix_tokens :].mean(dim=1))
        x = stages.add("final norm", "y = LN(mean(z_L)): (B, D)", model.norm(x))
    else:
        x = stages.add("final norm", "LN(z_L): (B, S, D)", model.norm(z))
    if config.classifier == "gap" and not config.norm_after_pooling:
        x = stages.add("mean over tokens", "y = mean(LN(z_L)): (B, D)", x[:, config.prefix_tokens :].mean(dim=1))
    elif config.classifier == "token":
        x = stages.add("CLS representation", "y = LN(z_L)[CLS]: (B, D)", x[:, 0])
    if model.pre_logits is not None:
        name = "y'"
        x = stages.add("pre-logits", "y' = tanh(pre_logits(y)): (B, R)", torch.tanh(model.pre_logits(x)))
    return x if model.head is None else stages.add("logits", f"head({name}): (B, K)", model.head(x))
