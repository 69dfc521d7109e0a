"""What a ViT costs: parameters, multiply-adds and activation bytes, part by part, in closed form.

The letters of the formulas are the paper's: (H, W) pixels of C channels, P² pixels a patch (P1·P2 where
it is not square), N patches, S = N + 1 tokens (N without CLS), D hidden size, M the MLP's width, L blocks
of h heads, R the pre-logits width, K classes. A hybrid's patches are cut from C' channels; its stem has
width w. One MAC is one multiplication and one addition; FLOPs count them as two.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitreous.anatomy.parts import STATISTIC, Part, Parts
from vitreous.anatomy.stem import count_stem, stem_moments
from vitreous.base.errors import ConfigError, did_you_mean
from vitreous.config import ViTConfig

if TYPE_CHECKING:  # the formulas need no torch
    import torch

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class ActivationBytes:
    """Bytes of a batch's activations, parameters apart.

    Args:
        inference_peak: the most that lives at one moment of a forward pass without gradients.
        training_sum: all that a forward pass keeps for the backward pass.
    """

    inference_peak: int
    training_sum: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What `cost` returns: totals here, one `Part` each in `rows`.

    Args:
        rows: the parts, in the order of the forward pass.
        num_patches: N.
        num_tokens: S.
        attention_elements: S², the attention weights of one head of one layer.
        crossover_tokens: S* = 2·D + M. With more tokens the two products with S x S weights, 2·S²·D, cost
            more than all others of a block, 4·S·D² + 2·S·D·M.
        batch_size: images that the bytes are of; MACs and FLOPs are of one image.
        dtype: of parameters and activations.
        parameter_bytes: the parameters' own.
        fused_attention: activations when no S x S matrix is ever stored, as this model runs.
        explicit_attention: activations when scores and weights of every head are stored.
    """

    rows: tuple[Part, ...]
    num_patches: int
    num_tokens: int
    attention_elements: int
    crossover_tokens: int
    batch_size: int
    dtype: str
    parameter_bytes: int
    fused_attention: ActivationBytes
    explicit_attention: ActivationBytes

    @property
    def params(self) -> int:
        """All parameters."""
        return sum(row.params for row in self.rows)

    @property
    def macs(self) -> int:
        """Multiply-adds of one image: convolutions, linear layers and both attention products.

        The published convention: every token goes through every block.
        """
        return sum(row.macs for row in self.rows)

    @property
    def flops(self) -> int:
        """2 x MACs."""
        return 2 * self.macs

    @property
    def macs_for_logits(self) -> int:
        """Multiply-adds of `model(images)`, whose last block computes the CLS token alone."""
        return sum(row.macs_for_logits for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the totals among them."""
        totals = ("params", "macs", "flops", "macs_for_logits")
        return {name: getattr(self, name) for name in totals} | dataclasses.asdict(self)


def cost(config: ViTConfig, batch_size: int = 1, dtype: "torch.dtype | str" = "float32") -> Cost:
    """Parameters, MACs and activation bytes of a model that need not be built.

    MACs = N·P²·C·D + L·(4·S·D² + 2·S²·D + 2·S·D·M) + D·K, a hybrid's convolutions besides. Normalisation,
    softmax, GELU, biases and residual sums are not counted, by the convention of the published tables.

    Bytes count whole tensors as this model makes them. A training sum has the inputs that each part keeps,
    and one byte for every element under dropout, as CUDA keeps its masks; copies that a kernel makes for
    itself are not in it. Flattened patches count as a copy of the image, though a single patch, or 1x1 patches
    of one image, are the image itself. In a hybrid, an inference peak leaves out the standardised kernels.

    Args:
        config: the model; `config.replace(image_size=448)` is the same one at another size.
        batch_size: B images.
        dtype: of parameters and activations, e.g. `"bfloat16"` or `torch.bfloat16`.

    Returns:
        The totals, with a row a part.

    Raises:
        ConfigError: for a batch below one image, or a dtype that is none of float64 ... float16.

    Source: counted as torchvision's `_ops` and torch's `FlopCounterMode` count.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size must be a whole number >= 1, got {batch_size!r}")
    name = str(dtype).removeprefix("torch.")
    if name not in BYTES:
        raise ConfigError(f"dtype must be one of {', '.join(BYTES)}, got {name!r}{did_you_mean(name, BYTES)}")
    parts = Parts(batch_size, BYTES[name])
    if config.resnet:
        count_stem(parts, config, config.resnet)
    _count_embedding(parts, config)
    _count_blocks(parts, config)
    _count_head(parts, config)
    rows = parts.finish()
    return Cost(
        rows=rows,
        num_patches=config.num_patches,
        num_tokens=config.num_tokens,
        attention_elements=config.num_tokens**2,
        crossover_tokens=2 * config.hidden_size + config.mlp_dim,
        batch_size=batch_size,
        dtype=name,
        parameter_bytes=sum(row.params for row in rows) * BYTES[name],
        fused_attention=ActivationBytes(
            inference_peak=batch_size * _peak(config, BYTES[name], explicit=False),
            training_sum=sum(row.kept_fused for row in rows),
        ),
        explicit_attention=ActivationBytes(
            inference_peak=batch_size * _peak(config, BYTES[name], explicit=True),
            training_sum=sum(row.kept_explicit for row in rows),
        ),
    )


def _count_embedding(parts: Parts, config: ViTConfig) -> None:
    """Equation 1: patches projected, CLS in front, positions added."""
    (P1, P2), N, S, D = config.patch_size, config.num_patches, config.num_tokens, config.hidden_size
    flat = _flat_patch(config)
    square, channels = "P²" if P1 == P2 else "P1·P2", "C'" if config.resnet else "C"
    text = f"{square}·{channels}·D"
    parts.add(
        "patch embedding",
        macs=(f"N·{text}", N * flat * D),
        params=(f"{text} + D", flat * D + D),
        kept=N * flat,
    )
    if config.prefix_tokens:
        parts.add("class token", params=("D", D))
    parts.add("positions", params=("S·D", S * D), kept_bytes=S * D if config.dropout_rate else 0)


def _count_blocks(parts: Parts, config: ViTConfig) -> None:
    """Equations 2 and 3, all L blocks together."""
    S, D, M, L, h = config.num_tokens, config.hidden_size, config.mlp_dim, config.num_layers, config.num_heads
    T = (L - 1) * S + config.rows_read  # tokens that all blocks together compute for logits
    mask = 1 if config.dropout_rate else 0  # bytes an element
    # With dropout on the weights, both they and the thinned ones are kept, and the mask.
    weight = 2 * parts.size + 1 if config.attention_dropout_rate else parts.size
    normalised = L * S + T
    parts.add(
        "layer norms",
        params=("L·4·D", L * 4 * D),
        kept=normalised * D,
        kept_bytes=normalised * 2 * STATISTIC,
    )
    parts.add(
        "query, key, value",
        macs=("L·3·S·D²", L * 3 * S * D**2),
        params=("L·(3·D² + 3·D)", L * (3 * D**2 + 3 * D)),
        for_logits=(2 * L * S + T) * D**2,
        kept=L * S * D,
    )
    attention = ("L·S²·D", L * S**2 * D)
    parts.add("scores q·kᵀ", macs=attention, for_logits=T * S * D, kept=(T + L * S) * D)
    parts.add(
        "attention·v",
        macs=attention,
        for_logits=T * S * D,
        kept=L * S * D,
        fused_bytes=T * h * STATISTIC,
        explicit_bytes=T * h * S * weight,
    )
    parts.add(
        "output projection",
        macs=("L·S·D²", L * S * D**2),
        params=("L·(D² + D)", L * (D**2 + D)),
        for_logits=T * D**2,
        kept=T * D,
        kept_bytes=mask * T * D,
    )
    parts.add(
        "MLP",
        macs=("L·2·S·D·M", L * 2 * S * D * M),
        params=("L·(2·D·M + M + D)", L * (2 * D * M + M + D)),
        for_logits=2 * T * D * M,
        kept=T * (D + 2 * M),
        kept_bytes=mask * T * (M + D),
    )


def _count_head(parts: Parts, config: ViTConfig) -> None:
    """Equation 4 and the classifier."""
    rows, D, R, K = config.rows_read, config.hidden_size, config.representation_size, config.num_classes
    # Of the mean nothing is kept; of a CLS token that the mean leaves out, no statistics, though its row stays.
    normalised = 1 if rows == 1 or config.norm_after_pooling else config.num_patches
    kept = D if config.norm_after_pooling else rows * D
    parts.add("final norm", params=("2·D", 2 * D), kept=kept, kept_bytes=normalised * 2 * STATISTIC)
    if R:
        parts.add("pre-logits", macs=("D·R", D * R), params=("D·R + R", D * R + R), kept=D + R)  # tanh keeps its result
    if K:
        letter, width = ("R", R) if R else ("D", D)
        text = f"{letter}·K"
        parts.add("head", macs=(text, width * K), params=(f"{text} + K", width * K + K), kept=0 if R else D)


def _flat_patch(config: ViTConfig) -> int:
    """Elements of one patch: P²·C, or P²·C' of a hybrid."""
    channels = config.resnet.out_channels if config.resnet else config.in_channels
    return config.patch_size[0] * config.patch_size[1] * channels


def _peak(config: ViTConfig, size: int, explicit: bool) -> int:
    """Bytes alive at the fullest moment of one image's forward pass, the image itself included."""
    N, S, D, M, h = config.num_patches, config.num_tokens, config.hidden_size, config.mlp_dim, config.num_heads
    patches = N * _flat_patch(config)  # as many elements as the stem's output has
    moments = [size * ((2 if config.resnet else 1) * patches + N * D), size * 2 * S * D]  # bytes beside the image
    if config.resnet:
        moments += stem_moments(config, config.resnet, size)
    for rows in (S, config.rows_read) if config.num_layers > 1 else (config.rows_read,):
        heads = (4 * S + rows) * D  # block input, normalised, k, v of all tokens, q
        weights = h * rows * S if explicit else 0
        moments += [
            size * (heads + 2 * weights),  # scores and their softmax
            size * (heads + weights + 2 * rows * D),  # merged heads and their projection
            size * (S * D + 2 * rows * (D + M)),  # block input, residual, normalised; GELU and its input
            size * (S * D + rows * (3 * D + M)),  # the same with GELU's output projected
        ]
    return size * config.in_channels * config.image_size[0] * config.image_size[1] + max(moments)
