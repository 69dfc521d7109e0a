"""Where tokens read from: attention by layer, head and query, and rollout. Descriptions, not reasons."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.base.memory_guard import require
from vitreous.config import as_index
from vitreous.explain.explanation import Details, Explanation, Kind, explain
from vitreous.explain.forward import blocks_of, observe
from vitreous.explain.question import Question, Subject, ask
from vitreous.model import ALL, CLS

Query = Literal["readout"] | tuple[int, int]
MASS = "attention mass"


@dataclass(frozen=True, eq=False)
class ReadoutAttention:
    """What the token that the head reads reads from, in every layer and head; and the logits of the same pass.

    Args:
        weights: (B, L, h, S), rows sum to 1; of the CLS token, or the mean over all patches' rows without one.
        logits: (B, K).
    """

    weights: Tensor
    logits: Tensor


def readout_attention(subject: Subject | Question, images: Any = None) -> ReadoutAttention:
    """The attention of the head's own token in all layers, out of one ordinary forward pass.

    Costs h * S * d multiplications a layer over the pass itself, and keeps L * h * S numbers an
    image. Where the head reads the mean over the patches, so is this: the mean of their rows.
    """
    question = ask(subject, images)
    with torch.no_grad():
        layers, last = [], question.tokens
        for x, weights in walk(question, last):
            layers.append(weights.mean(dim=2))  # (B, h, S)
            last = x
        logits = question.memo.once("logits", lambda: question.model.read_out(last))  # no second pass for the target
        return ReadoutAttention(torch.stack(layers, dim=1), logits)


def attention(
    subject: Subject | Question,
    images: Any = None,
    *,
    layer: int = -1,
    head: int | Literal["mean"] = "mean",
    query: Query = "readout",
    target: Any = None,
) -> Explanation:
    """The attention weights of one layer: A[q, patches], for one head or the mean over heads.

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask`.
        layer: from 0, or from the end with negative numbers.
        head: from 0, or `"mean"`.
        query: `"readout"`, the token that the head reads (CLS, or the mean over the patches' rows), or
            the patch (row, column).
        target: only to name the class in question; attention does not depend on it.

    Returns:
        A descriptive map in attention mass. What goes to the prefix tokens is `details["prefix_mass"]`.

    Raises:
        ConfigError: no such layer, head or patch.
    """
    question = ask(subject, images, target=target)
    config = question.model.config
    layer = as_index(layer, config.num_layers, "layer")
    head = head if head == "mean" else as_index(head, config.num_heads, "head")
    queries = _queries(question, query)

    def compute(question: Question) -> tuple[Tensor, Details]:
        with torch.no_grad():
            weights = _of_layer(question, layer, queries).mean(dim=2)  # (B, h, S)
            row = weights.mean(dim=1) if head == "mean" else weights[:, head]  # (B, S)
        return _patches(question, row), {"prefix_mass": row[:, : question.prefix].sum(dim=1)}

    reader = question.reader if query == "readout" else f"the patch in row {query[0]}, column {query[1]}"
    who = f"the mean over the heads of layer {layer}" if head == "mean" else f"head {head} of layer {layer}"
    return explain(
        question,
        compute,
        method="attention",
        kind=Kind.DESCRIPTIVE,
        caption=f"Where {who} reads from, for {reader}",
        unit=MASS,
        layer=layer,
        head=head,
        query=query if query == "readout" else list(query),
    )


def rollout(
    subject: Subject | Question, images: Any = None, *, alpha: float = 0.5, start_layer: int = 0, target: Any = None
) -> Explanation:
    """Attention multiplied through the layers: R = product over l from L to 1 of (alpha A_l + (1 - alpha) I).

    A_l is the mean over the heads. The map is the row of the token that the head reads. Nothing is
    discarded, so the rows of R sum to 1.

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask`.
        alpha: share of the attention against the residual connection, 0 to 1.
        start_layer: the first layer that counts.
        target: only to name the class in question; rollout does not depend on it.

    Source: Abnar and Zuidema 2020, section 3; there alpha = 0.5.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha must be in [0, 1], got {alpha}")
    question = ask(subject, images, target=target)
    config = question.model.config
    start = as_index(start_layer, config.num_layers, "layer")
    _check_memory(question, config.num_heads + 3, "rollout")

    def compute(question: Question) -> tuple[Tensor, Details]:
        with torch.no_grad():
            layers = (weights.mean(dim=1) for _, weights in walk(question, question.tokens, ALL))  # (B, S, S) each
            rolled = roll(layers, alpha, start)
        row = rolled[:, question.model.pooled].mean(dim=1)  # (B, S)
        return _patches(question, row), {"prefix_mass": row[:, : question.prefix].sum(dim=1)}

    return explain(
        question,
        compute,
        method="rollout",
        kind=Kind.DESCRIPTIVE,
        caption=f"Attention of all layers multiplied through, from {question.reader}",
        unit=MASS,
        alpha=alpha,
        start_layer=start,
    )


def roll(layers: Iterable[Tensor], alpha: float = 0.5, start_layer: int = 0) -> Tensor:
    """R = product over l from L to 1 of (alpha A_l + (1 - alpha) I); weights (B, S, S), first layer first."""
    rolled: Tensor | None = None
    for i, weights in enumerate(layers):
        if i < start_layer:
            continue
        mixed = alpha * weights + (1 - alpha) * torch.eye(weights.shape[-1], device=weights.device)  # (B, S, S)
        mixed = mixed / mixed.sum(dim=-1, keepdim=True)
        rolled = mixed if rolled is None else mixed @ rolled
    if rolled is None:
        raise ConfigError("no layer to roll out")
    return rolled


def walk(question: Question, x: Tensor, queries: slice | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """The forward pass block by block, with the attention of the readout's queries, or of those given, on the way."""
    config = question.model.config
    wanted = question.model.pooled if queries is None else queries
    if wanted != CLS:
        _check_memory(question, 2 * config.num_heads, "reading whole attention matrices")
    for i, block in enumerate(blocks_of(question.model)):
        last = i == config.num_layers - 1
        x, weights = observe(block, x, wanted, CLS if last and wanted == CLS else ALL)
        yield x, weights  # (B, S, D), (B, h, queries, S)


def _of_layer(question: Question, layer: int, queries: slice) -> Tensor:
    """(B, h, queries, S) of one layer; nothing is computed beyond it."""
    x = question.tokens
    for i, block in enumerate(blocks_of(question.model)):
        if i == layer:
            return block.attention.weights(block.norm1(x), queries)
        x = block(x)
    raise AssertionError(layer)


def _queries(question: Question, query: Query) -> slice:
    if query == "readout":
        return question.model.pooled
    rows, columns = question.grid
    row, column = as_index(query[0], rows, "row of patches"), as_index(query[1], columns, "column of patches")
    place = question.prefix + row * columns + column
    return slice(place, place + 1)


def _patches(question: Question, row: Tensor) -> Tensor:
    """(B, S) -> (B, h, w)."""
    return row[:, question.prefix :].unflatten(1, question.grid)


def _check_memory(question: Question, matrices: int, what: str) -> None:
    config = question.model.config
    needed = 4 * matrices * len(question.images) * config.num_tokens**2
    require(needed, question.images.device, what, "give fewer or smaller pictures")
