"""Recipes: everything that training depends on besides the model and the data."""

import json
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from vitreous.base.errors import ConfigError, did_you_mean
from vitreous.base.settings import Settings, is_number
from vitreous.config import Size, as_size
from vitreous.data.augment import AUGMENTS, AUGREG, MAX_MAGNITUDE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """How to train. The defaults are the official fine-tuning: Dosovitskiy et al. 2021, appendix B.1.1, and vit_jax.

    Args:
        steps: optimiser steps.
        batch_size: pictures per step.
        accum_steps: parts that a batch is computed in, one after the other, to save memory.
        optimizer: `"sgd"` with momentum, or `"adamw"`.
        base_lr: the learning rate at the end of the warm-up.
        warmup_steps: steps over which the rate grows linearly from 0.
        decay: `"cosine"` to 0, or `"linear"` to `linear_end`.
        momentum: of SGD.
        betas: of AdamW, for the running means of the gradient and of its square.
        momentum_dtype: `"float32"`, or `"bfloat16"` as vit_jax keeps it.
        weight_decay: on the kernels only: not on biases, norms, positions or the CLS token.
            Decoupled for AdamW, an L2 term for SGD.
        grad_clip: the greatest global norm of the gradient; 0 for none.
        layer_decay: each block learns at this share of the rate of the block after it, and the embedding
            at this share of the first block's; 1 for the same rate everywhere (Clark et al. 2020; Bao et al. 2022).
        freeze: parts whose weights stay: `"backbone"` is all but the head; else the beginnings of parameters' names,
            such as `["patch_embedding", "position_embedding", "blocks.0"]`.
        ema_decay: of the running average of the weights, kept beside them, measured and saved with
            them; 0 for none. In the first steps less of it: at most (1 + step) / (10 + step).
        loss: `"softmax"` cross-entropy, or `"sigmoid"`: one binary cross-entropy a class, summed (AugReg's and
            DeiT III's pre-training).
        label_smoothing: share of the target spread over all classes.
        image_size: pixels (H, W) to train at; None for the model's own.
        crop_area: least and greatest share of the area of the random crop; None for the whole picture.
        flip: mirror half of the pictures.
        augment: `"none"`, `"trivial"`, `"rand"`, or a level of AugReg, from `"light1"` to `"strong2"`,
            which is RandAugment and Mixup at the level's strengths (Steiner et al. 2022).
        augment_layers, augment_magnitude: of `"rand"`: operations a picture, and their strength, 0 to 30.
        erasing: probability that a rectangle of a picture becomes noise.
        mixup_alpha: blend each picture with the one before it in the batch, the share drawn from
            Beta(alpha, alpha); 0 for none, None for what the level of `augment` says.
        cutmix_alpha: likewise for a rectangle of the other picture, instead of a blend; with both,
            each batch has one of them.
        on_broken: `"stop"` at a picture that cannot be read, or `"skip"` it: the batch is then
            smaller by one, and the picture is listed in the results.
        dropout_rate, attention_dropout_rate, stochastic_depth_rate: None for the model's own.
        new_head: put a zero head in place, even where the classes are the same.
        head_bias: of a new head. With the sigmoid loss, -10 as in the paper's pre-training, or -ln K: at the
            start every class is then unlikely.
        representation_size: width of the pre-logits layer when pre-training; None for the configuration's own.
        grad_checkpointing: compute each block again on the way back instead of keeping what is in it: a third
            more work, and memory for one block's activations rather than for all.
        val_fraction: held out of the data where it has no val or test split.
        eval_every: steps between evaluations; 0 for one at the end.
        checkpoint_every: steps between saved states.
        precision: `"float32"`, or `"bfloat16"` for mixed precision.
        seed: of everything random.

    Raises:
        ConfigError: a value that cannot be, or an unknown key.
    """

    called: ClassVar[str] = "recipe: "

    steps: int = 500
    batch_size: int = 512
    accum_steps: int = 1
    optimizer: str = "sgd"
    base_lr: float = 0.03
    warmup_steps: int = 100
    decay: str = "cosine"
    linear_end: float = 1e-5
    momentum: float = 0.9
    momentum_dtype: str = "float32"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    layer_decay: float = 1.0
    freeze: tuple[str, ...] = ()
    ema_decay: float = 0.0
    loss: str = "softmax"
    label_smoothing: float = 0.0
    image_size: Size | None = None
    crop_area: tuple[float, float] | None = (0.05, 1.0)
    flip: bool = True
    augment: str = "none"
    augment_layers: int = 2
    augment_magnitude: int = 15
    erasing: float = 0.0
    mixup_alpha: float | None = None
    cutmix_alpha: float = 0.0
    on_broken: str = "stop"
    dropout_rate: float | None = None
    attention_dropout_rate: float | None = None
    stochastic_depth_rate: float | None = None
    new_head: bool = True
    head_bias: float = 0.0
    representation_size: int | None = None
    grad_checkpointing: bool = False
    val_fraction: float = 0.1
    eval_every: int = 0
    checkpoint_every: int = 500
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.image_size is not None:
            object.__setattr__(self, "image_size", as_size(self.image_size, "image_size"))
        for name in ("crop_area", "betas", "freeze"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self.check_counts(("steps", "batch_size", "accum_steps", "checkpoint_every"))
        self.check_counts(("warmup_steps", "eval_every"), least=0)
        for name in ("base_lr", "linear_end", "weight_decay", "grad_clip"):
            self.check(name, getattr(self, name) >= 0, ">= 0")
        self.check("augment_layers", self.augment_layers in range(17), "a whole number from 0 to 16")
        self.check(
            "augment_magnitude",
            self.augment_magnitude in range(MAX_MAGNITUDE + 1),
            f"0 to {MAX_MAGNITUDE}",
        )
        self.check("erasing", 0 <= self.erasing <= 1, "in [0, 1]")
        self.check("mixup_alpha", self.mixup_alpha is None or self.mixup_alpha >= 0, ">= 0")
        self.check("cutmix_alpha", self.cutmix_alpha >= 0, ">= 0")
        for name in ("momentum", "label_smoothing", "val_fraction", "ema_decay"):
            self.check(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"):
            value = getattr(self, name)
            self.check(name, value is None or 0 <= value < 1, "in [0, 1)")
        self.check("layer_decay", 0 < self.layer_decay <= 1, "in (0, 1]")
        self.check("head_bias", is_number(self.head_bias), "a number")
        betas = isinstance(self.betas, tuple) and len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        self.check("betas", betas, "two numbers in [0, 1)")
        parts = isinstance(self.freeze, tuple) and all(isinstance(part, str) and part for part in self.freeze)
        self.check("freeze", parts, 'a list of parts, such as ["backbone"]')
        for name in ("flip", "new_head", "grad_checkpointing"):
            self.check(name, isinstance(getattr(self, name), bool), "true or false")
        size = self.representation_size
        self.check("representation_size", size is None or (isinstance(size, int) and size >= 1), "a whole number >= 1")
        for name, allowed in _CHOICES.items():
            self.check_choice(name, allowed)
        area = self.crop_area
        self.check(
            "crop_area", area is None or (len(area) == 2 and 0 < area[0] <= area[1] <= 1), "(least, most) in (0, 1]"
        )
        if self.warmup_steps >= self.steps:
            raise ConfigError(f"recipe: warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        if self.batch_size % self.accum_steps:
            raise ConfigError(
                f"recipe: batch_size {self.batch_size} is not divisible by accum_steps {self.accum_steps}"
            )

    @property
    def mixup(self) -> float:
        """The alpha of Mixup: the recipe's own, or else that of its level of augmentation."""
        if self.mixup_alpha is not None:
            return self.mixup_alpha
        return AUGREG[self.augment][2] if self.augment in AUGREG else 0.0

    def replace(self, **changes: Any) -> "Recipe":
        """A copy with some values changed; a new number of steps scales the warm-up along, unless that is given too."""
        if "steps" in changes and "warmup_steps" not in changes and isinstance(changes["steps"], int):
            changes["warmup_steps"] = self.warmup_steps * changes["steps"] // self.steps
        return super().replace(**changes)

    def to_toml(self) -> str:
        """A TOML file that `Recipe.load` reads back; values of None are left out."""
        # Numbers, strings, booleans and flat lists are written the same in JSON and TOML.
        return "".join(f"{k} = {json.dumps(v)}\n" for k, v in self.to_dict().items() if v is not None)

    @classmethod
    def load(cls, source: "str | Path | Recipe", **overrides: Any) -> "Recipe":
        """A recipe by name (`vitreous/recipes`), from a TOML file, or as it is, with some values changed.

        Raises:
            ConfigError: no such recipe, not TOML, or an unknown key, with the nearest known one.
        """
        if isinstance(source, Recipe):
            return source.replace(**overrides)
        path = Path(source)
        if path.suffix != ".toml":
            folder = Path(str(resources.files("vitreous") / "recipes"))
            names = sorted(p.stem for p in folder.glob("*.toml"))
            if str(source) not in names:
                hint = did_you_mean(str(source), names)
                raise ConfigError(f"no recipe {str(source)!r}{hint}: give a .toml file or one of {', '.join(names)}")
            path = folder / f"{source}.toml"
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"recipe {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"recipe {path} is not TOML: {error}") from None
        try:
            recipe = cls.from_dict(values)
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{path}: {error}") from None
        return recipe.replace(**overrides)


_CHOICES = {
    "optimizer": ("sgd", "adamw"),
    "decay": ("cosine", "linear"),
    "loss": ("softmax", "sigmoid"),
    "momentum_dtype": ("float32", "bfloat16"),
    "augment": AUGMENTS,
    "on_broken": ("stop", "skip"),
    "precision": ("float32", "bfloat16"),
}


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """`["base_lr=0.01", "augment=rand"]` -> values, read as TOML, or as plain words; `none` for keys that may be None.

    Raises:
        ConfigError: a pair without `=`, or an unknown key.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, sep, text = pair.partition("=")
        if not sep:
            raise ConfigError(f"--set {pair!r}: write it as key=value")
        key, text = key.strip(), text.strip()
        try:
            values[key] = tomllib.loads(f"x = {text}")["x"]
        except tomllib.TOMLDecodeError:
            values[key] = text
    Recipe.check_fields(values)
    types = get_type_hints(Recipe)
    for key, value in values.items():
        if isinstance(value, str) and value.lower() in ("none", "null") and type(None) in get_args(types[key]):
            values[key] = None
    return values
