"""What an exported file says about itself, so that it can be used without anything else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitreous.base.errors import WeightsError
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess

FORMAT_VERSION = 1
PREFIX = "vitreous."
Input = Literal["images", "pixels"]


@dataclass(frozen=True)
class Card:
    """The metadata of an exported file: one JSON text for each field, under names as in a `.safetensors` header.

    Args:
        config: of the model.
        preprocess: what is done to every picture.
        labels: class names in the order of the logits, or None.
        provenance: where the weights come from.
        input: `"images"`: the graph takes prepared images, (B, C, h, w) float32; `"pixels"`: it takes
            RGB pixels of any one size, (B, 3, H, W) uint8, and prepares them itself.
        precision: `"float32"` or `"int8"`.
    """

    config: ViTConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    provenance: dict[str, Any]
    input: Input = "images"
    precision: str = "float32"

    def to_metadata(self) -> dict[str, str]:
        """Name -> JSON text."""
        content: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "config": self.config.to_dict(),
            "preprocess": self.preprocess.to_dict(),
            "labels": self.labels,
            "provenance": self.provenance,
            "input": self.input,
            "precision": self.precision,
        }
        return {PREFIX + key: json.dumps(value, ensure_ascii=False) for key, value in content.items()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], source: str) -> "Card":
        """What `to_metadata` wrote.

        Raises:
            WeightsError: when it is missing, damaged or from a newer version.
        """
        if PREFIX + "format" not in metadata:
            raise WeightsError(
                f"{source} is not a file that vitreous exported: its metadata has no labels and no sizes"
            )
        try:
            content = {k[len(PREFIX) :]: json.loads(v) for k, v in metadata.items() if k.startswith(PREFIX)}
            if content["format"] > FORMAT_VERSION:
                raise WeightsError(
                    f"{source} has format version {content['format']}; this vitreous reads up to {FORMAT_VERSION}: "
                    "upgrade vitreous"
                )
            labels = content["labels"]
            return cls(
                config=ViTConfig.from_dict(content["config"]),
                preprocess=Preprocess.from_dict(content["preprocess"]),
                labels=None if labels is None else tuple(map(str, labels)),
                provenance=dict(content["provenance"]),
                input=content["input"],
                precision=content["precision"],
            )
        except WeightsError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise WeightsError(f"{source}: its metadata is damaged ({type(error).__name__}: {error})") from None
