"""What a ViT is made of: its configuration, and the named variants of the papers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vitreous.base.errors import ConfigError, did_you_mean
from vitreous.base.settings import Settings, is_count

Size = tuple[int, int]  # (height, width)
PositionResize = Literal["google", "timm", "timm_npz", "huggingface", "torchvision", "dino"]


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """The ResNet stem of a hybrid: bottleneck units per stage, and width / 64.

    The root divides the resolution by 4, and every stage after the first by 2 more.
    An empty `num_layers` is the root alone. (vit_jax `configs/models.py`.)

    `numerics` are the small constants: `"google"` divides a kernel by (std + 1e-5) and has eps
    1e-6 in GroupNorm; `"timm"` divides by sqrt(variance + 1e-8) and has eps 1e-5.
    """

    num_layers: tuple[int, ...] = ()
    width_factor: float = 1.0
    numerics: Literal["google", "timm"] = "google"

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_layers", tuple(self.num_layers))
        if any(n < 1 for n in self.num_layers):
            raise ConfigError(f"resnet.num_layers must be positive, got {self.num_layers}")
        if self.numerics not in ("google", "timm"):
            raise ConfigError(f"resnet.numerics must be google or timm, got {self.numerics!r}")
        if self.width < 32 or self.width % 32:
            raise ConfigError(
                "resnet.width_factor x 64 must be a multiple of 32 (GroupNorm has 32 groups), "
                f"got width_factor={self.width_factor}"
            )

    @property
    def width(self) -> int:
        """Channels of the root: 64 x width_factor."""
        return int(64 * self.width_factor)

    @property
    def stride(self) -> int:
        """How many pixels of the image one cell of the stem's output stands for."""
        return 4 * 2 ** max(len(self.num_layers) - 1, 0)

    @property
    def out_channels(self) -> int:
        """Channels that the stem hands to the patch embedding."""
        if not self.num_layers:
            return self.width
        return self.width * 2 ** (len(self.num_layers) - 1) * 4


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Settings):
    """Everything that defines a Vision Transformer, besides its weights.

    The defaults are ViT-B/16 at 224x224 as in the official Google code: tanh GELU,
    LayerNorm eps 1e-6, no dropout. Sizes are (height, width); a single number is a square.

    Args:
        image_size: pixels (H, W), a whole number of patches each way.
        patch_size: (P1, P2) in pixels; in a hybrid, in cells of the stem's output.
        in_channels: C of the images.
        hidden_size: D, the width of every token.
        num_layers: L, encoder blocks.
        num_heads: heads of the self-attention; must divide D.
        mlp_dim: M, the hidden width of each MLP.
        num_classes: K outputs of the head; 0 for a backbone without one.
        classifier: `"token"` reads the CLS token, `"gap"` the mean over all patches
            (and then there is no CLS token, unless `gap_class_token`).
        gap_class_token: with `"gap"`: a CLS token takes part in the attention all the same, but
            not in the mean (timm's average pooling, MAE's fine-tuning).
        norm_after_pooling: with `"gap"`: LN(mean(z_L)) is read instead of mean(LN(z_L)) (timm's `fc_norm`).
        representation_size: width of the pre-logits layer (Dense + tanh) that pre-training
            puts before the head; None for the single linear layer of fine-tuning.
        gelu: `"tanh"` (Google) or `"erf"` (timm, Hugging Face, torchvision).
        layer_norm_eps: 1e-6, or 1e-12 for Hugging Face's files.
        position_resize: how positions are brought to another grid; see `positions.py`.
        dropout_rate: after the positions, the attention projection and both MLP layers.
        attention_dropout_rate: on the attention weights.
        stochastic_depth_rate: of the last block; it grows linearly from 0 at the first.
        resnet: the stem of a hybrid, or None.

    Raises:
        ConfigError: with the field and a value that would work.

    Source: Dosovitskiy et al. 2021, Table 1 and section 3.1; vit_jax `models_vit.py`.
    """

    image_size: Size = (224, 224)
    patch_size: Size = (16, 16)
    in_channels: int = 3
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    num_classes: int = 1000
    classifier: Literal["token", "gap"] = "token"
    gap_class_token: bool = False
    norm_after_pooling: bool = False
    representation_size: int | None = None
    gelu: Literal["tanh", "erf"] = "tanh"
    layer_norm_eps: float = 1e-6
    position_resize: PositionResize = "google"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    resnet: ResNetConfig | None = None

    def __post_init__(self) -> None:
        for field in ("image_size", "patch_size"):
            object.__setattr__(self, field, as_size(getattr(self, field), field))
        if isinstance(self.resnet, dict):
            object.__setattr__(self, "resnet", ResNetConfig(**self.resnet))
        self.check_counts(("in_channels", "hidden_size", "num_layers", "num_heads", "mlp_dim"))
        self.check_counts(("num_classes",), least=0)
        size = self.representation_size
        self.check("representation_size", size is None or is_count(size), "None or a whole number >= 1")
        self.check_choice("classifier", ("token", "gap"))
        self.check_choice("gelu", ("tanh", "erf"))
        self.check_choice("position_resize", get_args(PositionResize))
        for field in ("gap_class_token", "norm_after_pooling"):
            value = getattr(self, field)
            self.check(field, isinstance(value, bool), "true or false")
            self.check(field, self.classifier == "gap" or not value, 'false without classifier="gap"')
        for field in ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"):
            self.check(field, 0.0 <= getattr(self, field) < 1.0, "in [0, 1)")
        self.check("layer_norm_eps", self.layer_norm_eps > 0, "> 0")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not divisible by num_heads {self.num_heads}: "
                f"try {math.gcd(self.hidden_size, self.num_heads)} heads"
            )
        self.check_image_size(self.image_size)

    @property
    def stride(self) -> Size:
        """Pixels of the image that one patch covers: the patch size, times the stem's stride."""
        step = self.resnet.stride if self.resnet else 1
        return self.patch_size[0] * step, self.patch_size[1] * step

    @property
    def grid(self) -> Size:
        """(rows, columns) of patches: H / P1, W / P2."""
        return self.image_size[0] // self.stride[0], self.image_size[1] // self.stride[1]

    @property
    def num_patches(self) -> int:
        """N = HW / P^2."""
        return self.grid[0] * self.grid[1]

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: 1 (CLS), or 0 when pooling over the patches."""
        return 1 if self.classifier == "token" or self.gap_class_token else 0

    @property
    def num_tokens(self) -> int:
        """S = N + 1, or N without a CLS token."""
        return self.num_patches + self.prefix_tokens

    @property
    def rows_read(self) -> int:
        """Tokens of the last block that the head reads: the CLS token alone, or all S when pooling over them."""
        return 1 if self.classifier == "token" else self.num_tokens

    @property
    def head_dim(self) -> int:
        """Width of one attention head: D / heads."""
        return self.hidden_size // self.num_heads

    def check_image_size(self, size: Size) -> None:
        """Refuse a size that is not a whole number of patches, and name the nearest that are."""
        if all(n >= s and n % s == 0 for n, s in zip(size, self.stride, strict=True)):
            return
        below = [max(n // s, 1) * s for n, s in zip(size, self.stride, strict=True)]
        above = [max(math.ceil(n / s), 1) * s for n, s in zip(size, self.stride, strict=True)]
        near = " or ".join(dict.fromkeys(f"{h}x{w}" for h, w in (below, above)))
        raise ConfigError(
            f"image size {size[0]}x{size[1]} is not a whole number of {self.stride[0]}x{self.stride[1]} "
            f"patches: the nearest that are, {near}"
        )

    @classmethod
    def from_name(cls, name: str, **overrides: Any) -> "ViTConfig":
        """A published variant, such as `"B/16"` or `"R50+B/16"`, with some fields changed.

        Args:
            name: one of `VARIANTS`; `"ViT-B/16"` and `"b_16"` are understood too.
            overrides: any field, e.g. `num_classes=10, image_size=384`.

        Raises:
            ConfigError: unknown name or field, with the nearest known one.
        """
        wanted = name.lower().replace("vit-", "").replace("_", "/")
        for known, fields in VARIANTS.items():
            if known.lower() == wanted:
                cls.check_fields(overrides)
                return cls(**{**fields, **overrides})
        raise ConfigError(
            f"unknown model {name!r}{did_you_mean(name, VARIANTS)}; the named variants are {', '.join(VARIANTS)}"
        )


def as_size(value: Any, field: str = "size") -> Size:
    """`224` or `(224, 320)` as (height, width)."""
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(is_count(n) for n in pair):
        raise ConfigError(f"{field} must be a whole number or (height, width) of such, got {value!r}")
    return int(pair[0]), int(pair[1])


def as_indices(asked: Sequence[int], length: int, what: str) -> list[int]:
    """Layers, heads or tokens by number, counted from the end where negative.

    Args:
        asked: indices from -length to length - 1.
        length: how many there are.
        what: what they are of, `"layer"` for example.

    Returns:
        The same from 0 up.

    Raises:
        ConfigError: for an index that does not exist, or none at all.
    """
    if not asked:
        raise ConfigError(f"no {what} asked for: choose from 0 to {length - 1}")
    return [as_index(i, length, what) for i in asked]


def as_index(asked: int, length: int, what: str) -> int:
    """One layer, head or token by number; see `as_indices`."""
    if not -length <= asked < length:
        raise ConfigError(f"{what} {asked} does not exist: 0 to {length - 1}, or -{length} to -1 from the end")
    return asked % length


def _variants() -> dict[str, dict[str, Any]]:
    def width(hidden_size: int, num_layers: int, num_heads: int) -> dict[str, Any]:
        # Every MLP is four times as wide as the tokens.
        return dict(hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, mlp_dim=4 * hidden_size)

    ti, s, b = width(192, 12, 3), width(384, 12, 6), width(768, 12, 12)  # Steiner et al. 2022 (Ti, S)
    large, h = width(1024, 24, 16), width(1280, 32, 16)  # Dosovitskiy et al. 2021, Table 1 (B, L, H)

    def patch(size: int, *stages: int, stem: bool = False) -> dict[str, Any]:
        resnet = ResNetConfig(num_layers=stages) if stages or stem else None
        return dict(patch_size=(size, size), resnet=resnet)

    # Dropout 0.1 where vit_jax `configs/models.py` has it: L/16, H/14, R50+B/16, R50+L/32.
    drop = dict(dropout_rate=0.1)
    return {
        "Ti/16": {**ti, **patch(16)},
        "S/32": {**s, **patch(32)},
        "S/16": {**s, **patch(16)},
        "B/32": {**b, **patch(32)},
        "B/16": {**b, **patch(16)},
        "B/8": {**b, **patch(8)},
        "L/32": {**large, **patch(32)},
        "L/16": {**large, **patch(16), **drop},
        "H/14": {**h, **patch(14), **drop},
        # The "/16" of R+Ti is its published name; root stride 4 x patch 8 = 32 pixels a patch.
        "R+Ti/16": {**ti, **patch(8, stem=True)},
        "R26+S/32": {**s, **patch(1, 2, 2, 2, 2)},
        "R26+B/32": {**b, **patch(1, 2, 2, 2, 2)},
        "R50+B/16": {**b, **patch(1, 3, 4, 9), **drop},
        "R50+L/32": {**large, **patch(1, 3, 4, 6, 3), **drop},
    }


VARIANTS: dict[str, dict[str, Any]] = _variants()
