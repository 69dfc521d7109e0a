"""How the score follows small changes: attention weighted by gradients, relevance, integrated gradients."""

import math
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.base.extras import need
from vitreous.base.memory_guard import require
from vitreous.config import as_index
from vitreous.explain.explanation import Details, Explanation, Kind, explain
from vitreous.explain.forward import blocks_of, explicit
from vitreous.explain.question import Question, ScoreName, Subject, Target, ask
from vitreous.explain.removal import blurred

STEPS_AT_MOST = 256
TOLERANCE = 0.05  # of completeness, above which the steps are doubled


def grad_attention(
    subject: Subject | Question,
    images: Any = None,
    *,
    layer: int = -1,
    signed: bool = False,
    target: Target = None,
    score: ScoreName = "log_odds",
    instead_of: Target = None,
    max_bytes: int | None = None,
) -> Explanation:
    """Attention weighted by the gradient: mean over heads of (ds/dA * A), its positive part, for the head's token.

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask` for these, the target and the score.
        layer: from 0, or from the end with negative numbers.
        signed: keep the negative part too.
        target: class index or name.
        score: what is differentiated.
        instead_of: the other class of a contrast.
        max_bytes: memory that the attention matrices may take; None for what is free.

    Raises:
        TooLarge: with the number of bytes.
    """
    question = ask(subject, images, target=target, score=score, instead_of=instead_of)
    config = question.model.config
    layer = as_index(layer, config.num_layers, "layer")

    def compute(question: Question) -> tuple[Tensor, Details]:
        weights, gradients = attention_gradients(question, max_bytes)
        product = weights[layer] * gradients[layer]  # (B, h, S, S)
        fused = (product if signed else product.clamp(min=0)).mean(dim=1)  # (B, S, S)
        return _readout_row(question, fused), {}

    return explain(
        question,
        compute,
        method="grad_attention",
        kind=Kind.GRADIENT,
        caption=f"How sensitive the score is (gradient) to the attention of layer {layer}",
        layer=layer,
        signed=signed,
    )


def chefer(
    subject: Subject | Question,
    images: Any = None,
    *,
    start_layer: int = 0,
    target: Target = None,
    score: ScoreName = "log_odds",
    instead_of: Target = None,
    max_bytes: int | None = None,
) -> Explanation:
    """Relevance through the layers: R <- R + mean over heads of (ds/dA * A)+ R, from R = I, layer by layer.

    With `start_layer` 0 the wide context of the first layers can drown the last ones, which matter
    most; the authors advise a later start for larger models
    (hila-chefer/Transformer-MM-Explainability, discussion 8).

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask` for these, the target and the score.
        start_layer: the first layer that counts.
        target: class index or name.
        score: what is differentiated.
        instead_of: the other class of a contrast.
        max_bytes: memory that the attention matrices may take; None for what is free.

    Raises:
        TooLarge: with the number of bytes.

    Source: Chefer, Gur and Wolf 2021 ("Generic Attention-model Explainability"), equations 5 and 6.
    """
    question = ask(subject, images, target=target, score=score, instead_of=instead_of)
    start_layer = as_index(start_layer, question.model.config.num_layers, "layer")

    def compute(question: Question) -> tuple[Tensor, Details]:
        weights, gradients = attention_gradients(question, max_bytes)
        size = weights[0].shape[-1]
        relevance = torch.eye(size, device=question.images.device).expand(len(question.images), size, size)
        for a, g in list(zip(weights, gradients, strict=True))[start_layer:]:
            relevance = relevance + (a * g).clamp(min=0).mean(dim=1) @ relevance  # (B, S, S)
        return _readout_row(question, relevance), {}

    return explain(
        question,
        compute,
        method="chefer",
        kind=Kind.GRADIENT,
        caption="How sensitive the score is (gradient) to attention, through all layers",
        start_layer=start_layer,
    )


def attention_gradients(question: Question, max_bytes: int | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """A and ds/dA of all layers, (B, h, S, S) each: the model once more, with its attention written out.

    Raises:
        TooLarge: L * h * S * S numbers twice do not fit.
    """
    config = question.model.config
    needed = 2 * 4 * len(question.images) * config.num_layers * config.num_heads * config.num_tokens**2
    way_out = "give fewer or smaller pictures, or use occlusion"
    require(needed, question.images.device, "keeping all attention matrices with gradients", way_out, max_bytes)
    with torch.enable_grad():
        x, weights = question.tokens.detach().requires_grad_(), []
        for block in blocks_of(question.model):
            x, a, _ = explicit(block, x)  # (B, S, D), (B, h, S, S)
            weights.append(a)
        total = question.score_of(question.model.read_out(x)).sum()
        gradients = torch.autograd.grad(total, weights)
    return [a.detach() for a in weights], list(gradients)


def integrated_gradients(
    subject: Subject | Question,
    images: Any = None,
    *,
    steps: int = 32,
    baselines: tuple[str, ...] = ("blur", "mean"),
    chunk: int = 8,
    target: Target = None,
    score: ScoreName = "log_odds",
    instead_of: Target = None,
) -> Explanation:
    """Sum over a patch's pixels of (x - x') * mean over k of ds/dx at x' + a_k (x - x'), a_k the midpoints of `steps`.

    Averaged over the baselines x'. Completeness: the map should add up to s(x) - s(x'); where that
    is missed by more than 5 %, the steps are doubled, up to 256. What is still missed, relative to
    s(x) - s(x'), is `details["incompleteness"]` (B, baselines); the map of pixels is `details["pixels"]`
    (B, C, H, W).

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask` for these, the target and the score.
        steps: points of the path.
        baselines: of `"blur"` (Gaussian, sigma = image / 16), `"mean"` (the mean colour).
        chunk: pictures differentiated at once.
        target: class index or name.
        score: what is differentiated.
        instead_of: the other class of a contrast.

    Raises:
        VitreousError: captum is not installed.

    Source: Sundararajan, Taly and Yan 2017; computed by captum.
    """
    if not baselines or not set(baselines) <= set(BASELINES):
        raise ConfigError(f"baselines must be some of {', '.join(BASELINES)}, got {baselines}")
    question = ask(subject, images, target=target, score=score, instead_of=instead_of)
    attribute = _captum()

    def compute(question: Question) -> tuple[Tensor, Details]:
        # One picture at a time: each needs its own number of steps, and none depends on its neighbours.
        pixels, missed = [], []
        for i in range(len(question.images)):
            found = [_path(question, i, BASELINES[name], steps, chunk, attribute) for name in baselines]
            pixels.append(torch.stack([p for p, _ in found]).mean(dim=0))  # (C, H, W)
            missed.append([m for _, m in found])
        by_pixel = torch.stack(pixels)  # (B, C, H, W)
        return patch_sums(by_pixel, question.model.config.stride), {
            "pixels": by_pixel,
            "incompleteness": torch.tensor(missed),
        }

    return explain(
        question,
        compute,
        method="integrated_gradients",
        kind=Kind.GRADIENT,
        caption="How sensitive the score is (gradient), summed on the way from a baseline",
        steps=steps,
        baselines=list(baselines),
    )


BASELINES = {"blur": blurred, "mean": torch.zeros_like}  # the mean colour is 0 after normalisation


def patch_sums(x: Tensor, stride: tuple[int, int]) -> Tensor:
    """Sum over channels and each patch's pixels: (B, C, H, W) -> (B, h, w)."""
    return torch.nn.functional.avg_pool2d(x.sum(dim=1, keepdim=True), stride)[:, 0] * math.prod(stride)


def _path(question: Question, i: int, baseline: Any, steps: int, chunk: int, attribute: Any) -> tuple[Tensor, float]:
    image = question.images[i : i + 1]  # (1, C, H, W)
    start = baseline(image)

    def score(x: Tensor) -> Tensor:
        which = torch.full((len(x),), i, device=x.device)
        return question.score_of(question.model(x), which)

    with torch.no_grad():
        span = float(score(image) - score(start))
    while True:
        pixels = attribute(score)(image, start, steps, chunk)
        missed = abs(float(pixels.sum()) - span) / max(abs(span), 1e-6)
        if missed <= TOLERANCE or steps >= STEPS_AT_MOST or span == 0.0:
            return pixels[0].detach(), missed if span else 0.0
        steps = min(2 * steps, STEPS_AT_MOST)


def _captum() -> Any:
    captum = need("captum.attr", extra="explain", for_="the method integrated_gradients")

    def attribute(score: Any) -> Any:
        method = captum.IntegratedGradients(score)
        return lambda image, start, steps, chunk: method.attribute(
            image, start, n_steps=steps, method="riemann_middle", internal_batch_size=chunk
        )

    return attribute


def _readout_row(question: Question, matrix: Tensor) -> Tensor:
    """(B, S, S) -> (B, h, w): the row of the token that the head reads, its patches."""
    row = matrix[:, question.model.pooled].mean(dim=1)  # (B, S)
    return row[:, question.prefix :].unflatten(1, question.grid)
