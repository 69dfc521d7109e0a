"""A classifier: model, preprocessing and class names, loaded, used and saved as one thing."""

import hashlib
import json
import logging
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, WeightsError, did_you_mean
from vitreous.config import Size, ViTConfig, as_size
from vitreous.model import VisionTransformer, evaluating
from vitreous.pictures.preprocess import Preprocess
from vitreous.positions import MODES
from vitreous.prediction import Predictor
from vitreous.weights import hub, native
from vitreous.weights.checkpoint import Checkpoint, Hints
from vitreous.weights.sniff import read_checkpoint

logger = logging.getLogger("vitreous")
BUNDLED = "vitreous:"


class Classifier(Predictor):
    """A model with the preprocessing and the class names it was trained with.

    Args:
        model: the Vision Transformer.
        preprocess: what is done to every picture; its size must be the model's.
        labels: class names in the order of the logits, or None where nobody knows them.
        provenance: where the weights come from, as plain JSON values.

    Raises:
        ConfigError: when sizes, channels or the number of names do not fit together.
    """

    def __init__(
        self,
        model: VisionTransformer,
        preprocess: Preprocess,
        labels: Sequence[str] | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        config = model.config
        if preprocess.size != config.image_size:
            raise ConfigError(f"preprocessing to {preprocess.size}, but the model takes {config.image_size} images")
        if len(preprocess.mean) != config.in_channels:
            raise ConfigError(f"preprocessing to {len(preprocess.mean)} channels, the model takes {config.in_channels}")
        if labels is not None and len(labels) != config.num_classes:
            raise ConfigError(f"{len(labels)} labels for {config.num_classes} classes")
        super().__init__(preprocess, None if labels is None else tuple(labels), provenance)
        self.model = model

    def __repr__(self) -> str:
        c = self.model.config
        return f"Classifier({c.num_classes} classes, {c.image_size[0]}x{c.image_size[1]}, {self.provenance})"

    @property
    def config(self) -> ViTConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.position_embedding.device

    def compute(self, images: Tensor) -> Tensor:
        """Prepared pictures (B, C, H, W) -> logits (B, K) float32, in evaluation mode."""
        with evaluating(self.model), torch.inference_mode():
            return self.model(images.to(self.device, self.model.position_embedding.dtype)).float()  # (B, K)

    def represent(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared pictures (B, C, H, W) -> y (B, D), equation 4, and logits (B, K), float32, in evaluation mode."""
        with evaluating(self.model), torch.inference_mode():
            y = self.model.represent(images.to(self.device, self.model.position_embedding.dtype))  # (B, D)
            return y.float(), self.model.classify(y).float()

    def check_head(self) -> None:
        """Refuse to predict with a head that is missing or all zeros: every class would be equally likely."""
        head = self.model.head
        if head is None:
            raise WeightsError("this model has no head: fine-tune it, or load it with num_classes=...")
        if not bool(head.weight.any()) and not bool(head.bias.any()):
            raise WeightsError("the head of this model is all zeros, so it cannot predict yet: fine-tune it first")

    def resize(self, image_size: Size | int) -> "Classifier":
        """Take pictures of another size from now on; positions are resized in 2-D and the CLS row kept.

        Args:
            image_size: (H, W) or a square's side, a whole number of patches each way.

        Returns:
            The classifier itself.
        """
        size, config = as_size(image_size, "image_size"), self.model.config
        if size != config.image_size:
            old = config.grid
            self.model.resize(size)
            new, mode = self.model.config.grid, config.position_resize
            logger.warning(
                "positions resized from a %dx%d to a %dx%d grid, mode %r (%s)",
                *(*old, *new, mode, _describe(mode)),
            )
        self.preprocess = self.preprocess.resized(size)
        return self

    def reset_head(self, labels: Sequence[str] | None = None, num_classes: int | None = None) -> "Classifier":
        """Put a new zero head for other classes in place, as fine-tuning does; everything else stays.

        Returns:
            The classifier itself.
        """
        count = len(labels) if labels is not None else num_classes
        if count is None:
            raise ConfigError("a new head needs labels or num_classes")
        self.model.reset_head(count)
        self.labels = None if labels is None else tuple(labels)
        return self

    def save(self, path: str | Path) -> None:
        """Write everything to one `.safetensors` file, atomically."""
        native.write(Path(path), self.checkpoint())

    def checkpoint(self) -> Checkpoint:
        """Everything that the classifier is made of; the tensors are its own, not copies."""
        model = self.model
        return Checkpoint(model.config, model.state_dict(), self.preprocess, self.labels, dict(self.provenance))

    def fingerprint(self) -> str:
        """A digest of all that logits depend on: architecture, weights and preprocessing, but not the labels."""
        return fingerprint(self.model, self.preprocess)


def load(
    source: str | Path,
    image_size: Size | int | None = None,
    num_classes: int | None = None,
    preprocess: Preprocess | str | None = None,
    *,
    num_heads: int | None = None,
    weights: Literal["raw", "ema"] | None = None,
) -> Classifier:
    """Load a classifier from a file or folder of any known family, or a bundled one.

    Args:
        source: a path; `"vitreous:NAME"` for a bundled model; `"hf:owner/name"`, `"google:NAME"` or
            `"https://..."` for one to fetch (see `weights/hub.py`).
        image_size: pixels (H, W) wanted; positions are resized in the file's own mode.
        num_classes: a new zero head of so many classes, unless the file's has just as many; 0 for
            the backbone alone.
        preprocess: instead of the file's own: a `Preprocess`, or the name of a preset.
        num_heads: heads of the attention, for files of unusual width that do not say.
        weights: `"raw"` or `"ema"`, for training states that hold both. Else the raw ones are taken
            (of DINO's, the teacher), and it is said.

    Raises:
        WeightsError: no such file, or one that is broken, incomplete or of another architecture.
    """
    path = bundled(str(source)[len(BUNDLED) :]) if str(source).startswith(BUNDLED) else hub.fetch(source)
    size = None if image_size is None else as_size(image_size, "image_size")
    checkpoint = read_checkpoint(path, Hints(size, num_heads, num_classes, weights))
    if str(source) != str(path):
        checkpoint.provenance["source"] = str(source)
    model = checkpoint.build(str(path))
    if str(source).startswith(BUNDLED):
        model.float()  # in half precision for its size alone
    if isinstance(preprocess, str):
        preprocess = Preprocess.preset(preprocess, size=model.config.image_size)
    chosen = (preprocess or checkpoint.preprocess).resized(model.config.image_size)
    clf = Classifier(model, chosen, checkpoint.labels, checkpoint.provenance)
    if num_classes is not None and num_classes != model.config.num_classes:
        clf.reset_head(num_classes=num_classes)
    return clf if size is None else clf.resize(size)


def fingerprint(model: VisionTransformer, preprocess: Preprocess | None) -> str:
    """A digest of a model's architecture and weights, and of what is done to its pictures."""
    digest = hashlib.blake2b(digest_size=16)
    settings = [model.config.to_dict(), None if preprocess is None else preprocess.to_dict()]
    digest.update(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def bundled(name: str) -> Path:
    """The path of a model that comes with the package.

    Raises:
        WeightsError: when there is none of that name, with those that there are.
    """
    folder = Path(str(resources.files("vitreous") / "assets"))
    names = sorted(path.stem for path in folder.glob("*.safetensors"))
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "this version comes with none"
        raise WeightsError(f"no bundled model {name!r}{did_you_mean(name, names)}: {there}")
    return folder / f"{name}.safetensors"


def _describe(mode: str) -> str:
    settings = MODES[mode]  # type: ignore[index]
    corners = ", aligned corners" if settings["align_corners"] else ""
    return f"{settings['mode']}{corners}{', antialias' if settings['antialias'] else ''}"
