"""What a foreign format has no place for, carried along in the metadata of a `.safetensors` header.

The other library ignores it. Read back here, the model is what it was: number of heads, GELU, eps,
grid, preprocessing and class names.
"""

import json
from dataclasses import dataclass
from typing import Any

from vitreous.base.errors import VitreousError, WeightsError
from vitreous.config import Size, ViTConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.stored import Stored

KEY = "vitreous.carried"
# What shapes tell as well; they have the last word.
_IN_SHAPES = ("image_size", "patch_size", "in_channels", "hidden_size", "num_layers", "mlp_dim", "num_classes")


@dataclass(frozen=True)
class Carried:
    """Settings for `assemble`, and the rest of a classifier."""

    settings: dict[str, Any]
    image_size: Size
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    head_expected: bool


def to_metadata(config: ViTConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> dict[str, str]:
    """Metadata for a header; `format` is what transformers asks for."""
    content = {"config": config.to_dict(), "preprocess": preprocess.to_dict(), "labels": labels}
    return {"format": "pt", KEY: json.dumps(content, ensure_ascii=False)}


def read_carried(stored: Stored) -> Carried | None:
    """What the file carries, if we wrote it.

    Raises:
        WeightsError: when it is damaged.
    """
    if KEY not in stored.metadata:
        return None
    try:
        content = json.loads(stored.metadata[KEY])
        config = ViTConfig.from_dict(content["config"])
        settings = {
            k: v for k, v in config.to_dict().items() if k not in (*_IN_SHAPES, "representation_size", "resnet")
        }
        if config.resnet is not None:
            settings["resnet"] = {"numerics": config.resnet.numerics}
        labels = content["labels"]
        return Carried(
            settings,
            config.image_size,
            Preprocess.from_dict(content["preprocess"]),
            None if labels is None else tuple(str(label) for label in labels),
            config.num_classes > 0,
        )
    except (VitreousError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{stored.source}: {KEY} in its header is damaged ({error})") from None
