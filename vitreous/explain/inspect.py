"""What else can be read off a model: token norms, reach and entropy of heads, positions, patch filters."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.explain.methods.reads import readout_attention, walk
from vitreous.explain.question import Question, Subject, ask
from vitreous.model import ALL, VisionTransformer

OUTLIER = 3.0  # times a layer's median norm


@dataclass(frozen=True, eq=False)
class TokenNorms:
    """Length of every token's vector, layer by layer.

    Args:
        norms: (B, L+1, S), after 0 ... L blocks.
        outliers: (B, L+1, S) bool, more than 3 times their layer's median: tokens that hold something
            other than their place in the picture (Darcet et al. 2024).
        attention_share: (B, L) share of the readout's attention that goes to outliers among the patches.
    """

    norms: Tensor
    outliers: Tensor
    attention_share: Tensor


def token_norms(subject: Subject | Question, images: Any = None) -> TokenNorms:
    """The norm of each token before and after every block, outliers marked."""
    question = ask(subject, images)
    with torch.no_grad():
        norms = [question.tokens.norm(dim=-1)]
        x = question.tokens
        for block in question.model.blocks:
            x = block(x)
            norms.append(x.norm(dim=-1))
    by_layer = torch.stack(norms, dim=1)  # (B, L+1, S)
    outliers = by_layer > OUTLIER * by_layer.median(dim=2, keepdim=True).values
    weights = readout_attention(question).weights.mean(dim=2)  # (B, L, S)
    patches = outliers[:, :-1].clone()
    patches[..., : question.prefix] = False
    return TokenNorms(by_layer, outliers, (weights * patches).sum(dim=2))


@dataclass(frozen=True, eq=False)
class HeadReach:
    """How far each head looks, and how widely.

    Args:
        distance: (B, L, h) mean distance in pixels from a patch to the patches that it reads, weighted by
            attention; prefix tokens have no place and are left out on both sides.
        entropy: (B, L, h) nats, of the rows of all patches, prefix tokens included.
    """

    distance: Tensor
    entropy: Tensor


def head_reach(subject: Subject | Question, images: Any = None) -> HeadReach:
    """Mean attention distance and entropy of every head.

    Source: Dosovitskiy et al. 2021, figure 7 (right) and appendix D.7.
    """
    question = ask(subject, images)
    steps = torch.tensor(question.model.config.stride)
    places = torch.cartesian_prod(*(torch.arange(n) * s for n, s in zip(question.grid, steps, strict=True))).float()
    between = torch.cdist(places, places).to(question.images.device)  # (N, N) pixels
    distance, entropy = [], []
    with torch.no_grad():
        for _, weights in walk(question, question.tokens, ALL):
            rows = weights[:, :, question.prefix :]  # (B, h, N, S)
            patches = rows[..., question.prefix :]  # (B, h, N, N)
            distance.append(((patches * between).sum(dim=-1) / patches.sum(dim=-1)).mean(dim=-1))
            entropy.append(torch.special.entr(rows).sum(dim=-1).mean(dim=-1))
    return HeadReach(torch.stack(distance, dim=1), torch.stack(entropy, dim=1))


def position_similarity(model: VisionTransformer) -> Tensor:
    """Cosine similarity of the position embeddings of every two patches: (h, w, h, w)."""
    config = model.config
    positions = model.position_embedding.detach().float()[0, config.prefix_tokens :]  # (N, D)
    unit = F.normalize(positions, dim=1)
    return (unit @ unit.T).view(*config.grid, *config.grid)


def patch_filters(model: VisionTransformer, count: int = 28) -> Tensor:
    """The first principal components of the patch embedding's filters, as little pictures (count, C, P1, P2).

    Source: Dosovitskiy et al. 2021, figure 7 (left).

    Raises:
        ConfigError: a hybrid, whose filters are not of pixels.
    """
    if model.config.resnet is not None:
        raise ConfigError("the patch embedding of a hybrid reads the stem's output, not pixels: it has no such filters")
    weight = model.patch_embedding.projection.weight.detach().float()  # (D, C, P1, P2)
    flat = weight.flatten(1)
    components = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False).Vh  # (.., C*P1*P2)
    return components[:count].view(-1, *weight.shape[1:])
