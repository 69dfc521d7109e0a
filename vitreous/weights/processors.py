"""Hugging Face's `preprocessor_config.json`, both ways.

Facts from transformers: `image_processing_vit.py`, `..._deit.py`, `..._bit.py`, and the older
`feature_extraction_*.py`, whose files say less.
"""

from collections.abc import Mapping
from typing import Any

from vitreous.base.errors import ConfigError
from vitreous.config import Size, as_size
from vitreous.pictures.preprocess import Interpolation, Preprocess

# Pillow's numbers, by which the files name an interpolation.
INTERPOLATIONS: dict[int, Interpolation] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
STANDARD, CLIP_MEAN, CLIP_STD = (0.5,) * 3, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# What each class does where its file is silent.
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": dict(size=224, resample=2, image_mean=STANDARD, image_std=STANDARD),
    "DeiT": dict(size=256, crop_size=224, do_center_crop=True, resample=3, image_mean=STANDARD, image_std=STANDARD),
    "Bit": dict(
        size={"shortest_edge": 224},
        crop_size=224,
        do_center_crop=True,
        resample=3,
        image_mean=CLIP_MEAN,
        image_std=CLIP_STD,
    ),
}


def read(content: Mapping[str, Any]) -> Preprocess:
    """The settings of an image processor of the kinds in `DEFAULTS`.

    Raises:
        ConfigError: when it does something that `Preprocess` does not.
    """
    name = str(content.get("image_processor_type") or content.get("feature_extractor_type") or "ViTImageProcessor")
    kind = next((kind for kind in DEFAULTS if name.startswith(kind)), None)
    if kind is None:
        raise ConfigError(f"{name} is not known: {', '.join(f'{kind}ImageProcessor' for kind in DEFAULTS)} are")
    settings = {**DEFAULTS[kind], **{key: value for key, value in content.items() if value is not None}}
    for step in ("do_resize", "do_rescale"):
        if not settings.get(step, True):
            raise ConfigError(f"{step} is off")
    if settings.get("resample") not in INTERPOLATIONS:
        raise ConfigError(f"resample {settings.get('resample')!r} is no interpolation")
    size, resize, fraction = _geometry(settings, by_short_side=kind == "Bit")
    mean, std = (settings["image_mean"], settings["image_std"]) if settings.get("do_normalize", True) else (0.0, 1.0)
    brightness = round(255 * float(settings.get("rescale_factor", 1 / 255)), 9)
    return Preprocess(
        size=size,
        resize="short" if resize == "short" else "squash",
        interpolation=INTERPOLATIONS[settings["resample"]],
        antialias=True,
        crop_fraction=fraction,
        mean=tuple(m / brightness for m in _triple(mean)),
        std=tuple(s / brightness for s in _triple(std)),
    )


def _geometry(settings: Mapping[str, Any], by_short_side: bool) -> tuple[Size, str, float]:
    """(height, width) after the crop, how it is resized before, and the crop's share of that."""
    resize, crop = settings["size"], settings.get("crop_size")
    if isinstance(resize, int):
        resize = {"shortest_edge": resize} if by_short_side else {"height": resize, "width": resize}
    short = resize.get("shortest_edge")
    whole = as_size(short if short else (resize.get("height"), resize.get("width")))
    if not settings.get("do_center_crop", False):
        if short:
            raise ConfigError("it does not crop, so that pictures of any shape come out")
        return whole, "squash", 1.0
    part = as_size(crop if isinstance(crop, int) else ((crop or {}).get("height"), (crop or {}).get("width")))
    if part[0] * whole[1] != part[1] * whole[0]:
        raise ConfigError(f"it crops {part} from {whole}, which has other proportions")
    if part[0] > whole[0]:
        raise ConfigError(f"it crops {part} from {whole}, with black around it")
    return part, "short" if short else "squash", part[0] / whole[0]


def _triple(value: Any) -> tuple[float, ...]:
    return (value,) * 3 if isinstance(value, (int, float)) else tuple(value)


def to_dict(preprocess: Preprocess) -> dict[str, Any]:
    """The content of a `preprocessor_config.json`, which `AutoImageProcessor` reads."""
    height, width = preprocess.size
    content: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": {name: number for number, name in INTERPOLATIONS.items()}[preprocess.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if preprocess.resize == "short" or preprocess.crop_fraction < 1:
        resized = [int(side / preprocess.crop_fraction + 1e-6) for side in preprocess.size]
        short = {"shortest_edge": resized[0]}
        content |= {
            "image_processor_type": "BitImageProcessor" if preprocess.resize == "short" else "DeiTImageProcessor",
            "size": short if preprocess.resize == "short" else {"height": resized[0], "width": resized[1]},
            "do_center_crop": True,
            "crop_size": {"height": height, "width": width},
        }
    return content
