"""Reading the residual stream with the model's own head: the logit lens, and direct contributions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.explain.forward import blocks_of, explicit
from vitreous.explain.question import Question, Subject, Target, ask


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What the head would say of the residual stream on its way: decodable there, not necessarily used.

    Args:
        stages: 2L+1 names: the embedding, then after the attention and after the MLP of each block.
        probability: (B, 2L+1) of the target.
        top: (B, 2L+1, k) the most probable classes.
        top_probability: (B, 2L+1, k) theirs.
        patches: (B, 2L+1, h, w) probability of the target read from each patch's own token, which nothing in
            the training of a CLS model prepares for being read.
    """

    stages: tuple[str, ...]
    probability: Tensor
    top: Tensor
    top_probability: Tensor
    patches: Tensor


def logit_lens(subject: Subject | Question, images: Any = None, *, target: Target = None, top_k: int = 5) -> LogitLens:
    """softmax(head(LN(x))) of the token that the head reads, after every half block."""
    question = ask(subject, images, target=target)
    model, wanted = question.model, question.asked()[:, None]
    stages, own, best, patches = [], [], [], []
    with torch.no_grad():
        for stage, x in _stream(question):
            p = model.read_out(x).softmax(dim=1)  # (B, K)
            stages.append(stage)
            own.append(p.gather(1, wanted)[:, 0])
            best.append(p.topk(min(top_k, p.shape[1]), dim=1))
            tokens = x[:, question.prefix :]  # (B, N, D)
            z = model.norm(tokens)
            z = z if model.pre_logits is None else torch.tanh(model.pre_logits(z))
            by_patch = model.head(z).softmax(dim=-1)  # type: ignore[misc]  # (B, N, K)
            patches.append(by_patch.gather(2, wanted[:, None].expand(-1, tokens.shape[1], 1))[..., 0])
    return LogitLens(
        tuple(stages),
        torch.stack(own, dim=1),
        torch.stack([found.indices for found in best], dim=1),
        torch.stack([found.values for found in best], dim=1),
        torch.stack(patches, dim=1).unflatten(2, question.grid),
    )


def _stream(question: Question) -> Iterator[tuple[str, Tensor]]:
    x = question.tokens
    yield "embedding", x
    for i, block in enumerate(blocks_of(question.model)):
        x = x + block.attention(block.norm1(x))
        yield f"{i} attention", x
        x = x + block.mlp(block.norm2(x))
        yield f"{i} MLP", x


@dataclass(frozen=True, eq=False)
class Contributions:
    """Who wrote what into the target's centred logit, directly; the parts add up to it.

    Args:
        names: the embedding, each head, each block's attention bias, each MLP, the biases after the last.
        values: (B, parts) in logits.
        total: (B,) the centred logit itself, z_c - mean over k of z_k.
    """

    names: tuple[str, ...]
    values: Tensor
    total: Tensor


def direct_contributions(subject: Subject | Question, images: Any = None, *, target: Target = None) -> Contributions:
    """z_c - mean_k z_k as a sum over the parts that write to the residual stream.

    The centred logit is linear in the last hidden state once the final LayerNorm's scale is held at
    its value: each part u adds (w_c - mean w) . g * (u - mean u) / sigma. What a part does through
    later layers is not counted as its own.

    Raises:
        ConfigError: a pre-logits layer, whose tanh stands between.
    """
    question = ask(subject, images, target=target)
    model, config = question.model, question.model.config
    wanted = question.asked()
    if model.pre_logits is not None or model.head is None:
        raise ConfigError("direct contributions need a linear head: the tanh of a pre-logits layer is not linear")
    read = model.pooled
    direction = model.head.weight[wanted] - model.head.weight.mean(dim=0)  # (B, D)
    names, parts = ["embedding"], [question.tokens[:, read]]  # (B, rows, D) each
    with torch.no_grad():
        x = question.tokens
        for i, block in enumerate(blocks_of(model)):
            after, weights, v = explicit(block, x)
            heads = weights[:, :, read] @ v  # (B, h, rows, d)
            out = block.attention.out
            by_head = out.weight.unflatten(1, (config.num_heads, -1))  # (D, h, d)
            parts += list(torch.einsum("bhrd,ehd->hbre", heads, by_head))
            names += [f"{i} head {h}" for h in range(config.num_heads)]
            parts.append(out.bias.expand_as(parts[0]))
            names.append(f"{i} attention bias")
            middle = x[:, read] + out(heads.transpose(1, 2).flatten(2))
            parts.append(after[:, read] - middle)
            names.append(f"{i} MLP")
            x = after
        last = x[:, read]  # (B, rows, D)
        if config.norm_after_pooling:
            last = last.mean(dim=1, keepdim=True)
            parts = [part.mean(dim=1, keepdim=True) for part in parts]
        scale = (last.var(dim=2, correction=0, keepdim=True) + model.norm.eps).rsqrt()  # (B, rows, 1)
        weight = direction[:, None] * model.norm.weight  # (B, 1, D)
        values = [((u - u.mean(dim=2, keepdim=True)) * scale * weight).sum(dim=2).mean(dim=1) for u in parts]
        bias = model.head.bias[wanted] - model.head.bias.mean() + direction @ model.norm.bias
        z = question.logits
        total = z.gather(1, wanted[:, None])[:, 0] - z.mean(dim=1)
    return Contributions((*names, "norm and head biases"), torch.stack([*values, bias], dim=1), total)
