"""From a picture to what the model takes: resize, centre crop, normalise.

Each family of ViT code prepares pictures in its own way, and the accuracy of a checkpoint
depends on it, so the settings belong to the checkpoint.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.base.errors import ConfigError, ImageError, did_you_mean
from vitreous.base.settings import Settings, is_number
from vitreous.config import Size, as_size
from vitreous.pictures.images import ImageSource, open_rgb

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]  # Pillow's, by Pillow's names

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# At 224 pixels: what the family's own code does to a picture before its published checkpoints see it.
PRESETS: dict[str, dict[str, Any]] = {
    "google": dict(resize="squash", interpolation="bilinear", antialias=False),  # vit_jax `input_pipeline.py`
    "timm": dict(resize="short", interpolation="bicubic", antialias=True, crop_fraction=0.9),  # AugReg: 248, then 224
    "huggingface": dict(resize="squash", interpolation="bilinear", antialias=True),  # `ViTImageProcessor`
    "mmpretrain": dict(  # `configs/_base_/datasets/imagenet_bs64_pil_resize.py` of ViT: short side 256, then 224
        resize="short", interpolation="bilinear", antialias=True, crop_fraction=224 / 256
    ),
    "torchvision": dict(  # `ViT_B_16_Weights.IMAGENET1K_V1`: 256, then 224
        resize="short",
        interpolation="bilinear",
        antialias=True,
        crop_fraction=224 / 256,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
}

# How many times what the centre crop shows of a long strip is resized at most.
_LONGEST = 17


@dataclass(frozen=True, kw_only=True)
class Preprocess(Settings):
    """What is done to every picture before the model sees it: (resize(x)[centre] / 255 - mean) / std.

    With `antialias`, resizing happens on 8-bit pixels exactly as in Pillow, which timm,
    torchvision and Hugging Face use. Without, each new pixel is interpolated from its nearest
    old ones alone, in float32, unrounded, with half-pixel centres, as `tf.image.resize` does
    in the official Google code.

    Args:
        size: (h, w) pixels that the model takes; a single number is a square.
        resize: `"squash"` scales each side on its own, so that the whole picture is seen, out
            of proportion; `"short"` keeps the proportions, and covers the size.
        interpolation: of `Interpolation`; without antialiasing nearest, bilinear or bicubic.
        antialias: whether a smaller picture averages over the pixels that it leaves out.
        crop_fraction: resize to size / crop_fraction, then cut `size` from the centre.
        mean: of each channel, pixels counting from 0 to 1. A single one makes the picture grey.
        std: of each channel, likewise.

    Raises:
        ConfigError: with the field and a value that would work.

    Source: vit_jax `input_pipeline.py`; timm `transforms_factory.py`; torchvision `transforms`.
    """

    size: Size = (224, 224)
    resize: Literal["squash", "short"] = "squash"
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    crop_fraction: float = 1.0
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_size(self.size))
        self.check_choice("resize", ("squash", "short"))
        self.check_choice("interpolation", get_args(Interpolation))
        if not self.antialias and self.interpolation not in _TAPS:
            raise ConfigError(
                f"{self.interpolation} interpolation needs antialias=True; without it there are {', '.join(_TAPS)}"
            )
        self.check("antialias", isinstance(self.antialias, bool), "true or false")
        self.check("crop_fraction", is_number(self.crop_fraction) and 0 < self.crop_fraction <= 1, "in (0, 1]")
        for field in ("mean", "std"):
            value = getattr(self, field)
            numbers = isinstance(value, (tuple, list)) and len(value) in (1, 3) and all(map(is_number, value))
            self.check(field, numbers, "3 numbers (R, G, B), or 1 for grey pictures")
            object.__setattr__(self, field, tuple(float(number) for number in value))
        if len(self.mean) != len(self.std):
            raise ConfigError(f"mean and std must be of one length, got {len(self.mean)} and {len(self.std)}")
        self.check("std", min(self.std) > 0, "above 0")

    def __call__(self, image: Tensor) -> Tensor:
        """Prepare pixels.

        Args:
            image: (3, H, W) uint8, of any size, as `read_image` gives it.

        Returns:
            (C, h, w) float32, C = 3, or 1 where `mean` has one number.

        Raises:
            ImageError: for another shape or dtype.
        """
        if image.ndim != 3 or image.shape[0] != 3 or image.dtype != torch.uint8 or not image.numel():
            raise ImageError(
                f"(3, H, W) uint8 pixels are needed, got {tuple(image.shape)} {image.dtype}: "
                "bring the picture through read_image"
            )
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy())  # (H, W, 3)
        return self._prepare(Image.fromarray(pixels))

    def load(self, source: ImageSource, *, reduced: bool = False, **reading: Any) -> Tensor:
        """`read_image`, then the preparation; for large pictures several times as fast with `reduced`.

        Args:
            source: whatever `read_image` takes.
            reduced: let large JPEGs be decoded at a fraction of their size (see `read_image`). Off
                by default, as the result is then near that of the family's own code, not equal.
                Without `antialias` it has no effect: the nearest pixels would be others.
            reading: other settings of `read_image`.

        Returns:
            (C, h, w) float32.
        """
        return self._prepare(open_rgb(source, at_least=self.needed() if reduced else None, **reading))

    def normalise(self, image: Tensor) -> Tensor:
        """The last step alone: (3, h, w) uint8 -> (x / 255 - mean) / std, (C, h, w) float32."""
        if len(self.mean) == 1 and image.shape[0] == 3:
            image = _luminance(image)
        like: dict[str, Any] = {"dtype": torch.float32, "device": image.device}
        x = torch.empty(image.shape, **like).copy_(image)  # contiguous, and never the caller's memory
        mean, std = torch.tensor(self.mean, **like).view(-1, 1, 1), torch.tensor(self.std, **like).view(-1, 1, 1)
        # Divided before the mean is taken off, in this order, to be bit-equal with timm and torchvision.
        return x.div_(255).sub_(mean).div_(std)

    def denormalise(self, images: Tensor) -> Tensor:
        """The way back from `normalise`: (..., C, h, w) -> x * std + mean, pixels from 0 to 1."""
        mean, std = (torch.tensor(values).to(images).view(-1, 1, 1) for values in (self.mean, self.std))
        return images * std + mean

    def needed(self) -> Size | None:
        """The least (H, W) that a picture may be reduced to beforehand; None where that would change the result."""
        return self._resized if self.antialias else None

    def resized(self, size: int | Size) -> "Preprocess":
        """The same settings for another size."""
        return self.replace(size=as_size(size))

    @classmethod
    def preset(cls, name: str, size: int | Size | None = None) -> "Preprocess":
        """What a family's own code does: `"google"`, `"timm"`, `"huggingface"` or `"torchvision"`.

        Args:
            name: one of `PRESETS`.
            size: (h, w), 224 pixels where nothing is said. From 384 pixels on timm's checkpoints
                were measured without a crop, and so they are here.

        Raises:
            ConfigError: unknown name, with the nearest known one.
        """
        if name not in PRESETS:
            hint = did_you_mean(str(name), PRESETS)
            raise ConfigError(f"unknown preprocessing preset {name!r}{hint}: one of {', '.join(PRESETS)}")
        fields = dict(PRESETS[name], size=as_size(224 if size is None else size))
        if name == "timm" and min(fields["size"]) >= 384:
            fields["crop_fraction"] = 1.0
        return cls(**fields)

    @property
    def _resized(self) -> Size:
        """(h, w) / crop_fraction: what the resized picture has, or covers, before the crop."""
        # The small addition is for fractions like 224 / 242, whose floating-point inverse may fall short.
        return int(self.size[0] / self.crop_fraction + 1e-6), int(self.size[1] / self.crop_fraction + 1e-6)

    def _prepare(self, image: Image.Image) -> Tensor:
        if len(self.mean) == 1:
            image = image.convert("L")
        if self.resize == "short":
            image = self._without_ends(image)
        height, width = self._new_size((image.height, image.width))
        top, left = _centre(height, self.size[0]), _centre(width, self.size[1])
        bottom, right = top + self.size[0], left + self.size[1]
        if self.antialias:
            image = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
            pixels = _pixels(image.crop((left, top, right, bottom)))  # (h, w, C) uint8
        else:
            pixels = _interpolate(_pixels(image), (height, width), self.interpolation)[top:bottom, left:right]
        return self.normalise(pixels.permute(2, 0, 1))  # (C, h, w)

    def _new_size(self, old: Size) -> Size:
        """(H, W) of the whole resized picture."""
        if self.resize == "squash":
            return self._resized
        (height, width), (h, w) = old, self._resized
        # One side fits exactly. The other is rounded down, as torchvision does; where the model's picture is no
        # square, to the nearest, as timm does (torchvision has no such case).
        whole = int if h == w else round
        if h * width >= w * height:
            return h, max(whole(h * width / height), w)
        return max(whole(w * height / width), h), w

    def _without_ends(self, image: Image.Image) -> Image.Image:
        """Cut far ends that the crop drops anyway: to cover 224 pixels, 1 x 10,000 would become 224 x 2,240,000."""
        scale = max(self._resized[0] / image.height, self._resized[1] / image.width)
        x = max(int(image.width - _LONGEST * self.size[1] / scale) // 2, 0)
        y = max(int(image.height - _LONGEST * self.size[0] / scale) // 2, 0)
        return image.crop((x, y, image.width - x, image.height - y)) if x or y else image


# How many old pixels each new one is made of, each way.
_TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}


def _interpolate(image: Tensor, size: Size, interpolation: str) -> Tensor:
    """Resize without antialiasing: y[i] = sum_k w_k x[k], over the nearest pixels k to (i + 1/2) H / h - 1/2.

    Only the pixels that count are looked at, so a large picture need not become floats.

    Args:
        image: (H, W, C) uint8.
        size: (h, w) wanted.
        interpolation: one of `_TAPS`. Bicubic is Keys' kernel with a = -1/2.

    Returns:
        (h, w, C) float32, from 0 to 255 (bicubic may overshoot).

    Source: `tf.image.resize` (TensorFlow 2, half-pixel centres; weights beyond the border go to those within).
    """
    x = _interpolate_axis(image.flatten(1), 0, size[0], interpolation)  # (h, W*C)
    return _interpolate_axis(x.view(size[0], *image.shape[1:]), 1, size[1], interpolation)  # (h, w, C)


def _interpolate_axis(x: Tensor, axis: int, new: int, interpolation: str) -> Tensor:
    index, weight = _neighbours(x.shape[axis], new, interpolation)  # (taps, new) each
    taps = (x.index_select(axis, i).float().mul_(w[:, None]) for i, w in zip(index, weight, strict=True))
    return functools.reduce(Tensor.add_, taps)


def _neighbours(old: int, new: int, interpolation: str) -> tuple[Tensor, Tensor]:
    """Which old pixels, and how much of each, make up each of `new` pixels along one axis: (taps, new) each."""
    centre = (torch.arange(new, dtype=torch.float32) + 0.5) * (old / new) - 0.5  # (new,)
    taps = _TAPS[interpolation]
    first = (centre + 0.5).floor() if taps == 1 else centre.floor() - (taps // 2 - 1)  # (new,)
    index = first + torch.arange(taps)[:, None]  # (taps, new)
    distance = (index - centre).abs()
    if taps == 1:
        weight = torch.ones_like(distance)
    elif taps == 2:
        weight = 1 - distance
    else:
        near, far = (1.5 * distance - 2.5) * distance**2 + 1, ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        weight = torch.where(distance < 1, near, far)
    weight = weight * ((index >= 0) & (index < old))
    return index.clamp(0, old - 1).long(), weight / weight.sum(0)


def _pixels(image: Image.Image) -> Tensor:
    """(H, W, C) uint8, C = 3 or 1."""
    return torch.from_numpy(np.array(image)).view(image.height, image.width, -1)


def _luminance(image: Tensor) -> Tensor:
    """(3, h, w) uint8 -> (1, h, w) uint8: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), rounded as Pillow does."""
    weight = torch.tensor([19595, 38470, 7471], dtype=torch.int32).view(3, 1, 1)  # in 1/65536
    return ((image.int() * weight).sum(0, keepdim=True) + 0x8000 >> 16).to(torch.uint8)


def _centre(whole: int, part: int) -> int:
    return round((whole - part) / 2)  # halves to even, as torchvision's CenterCrop
