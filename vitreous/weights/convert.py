"""Handing a model on to another library, and saying what that library cannot express.

Three things can come in the way. What the architecture there does not have is refused. What its
code computes with another constant (GELU, eps) changes the logits a little, and is refused unless
the change is allowed. Everything else is done and said.
"""

import logging
from pathlib import Path
from typing import Protocol

from vitreous.base.errors import ConfigError, WeightsError, did_you_mean
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.families import FAMILIES
from vitreous.weights.family import FILES

logger = logging.getLogger("vitreous")


class Convertible(Protocol):
    """Whatever can say what it is made of; a `Classifier` can."""

    def checkpoint(self) -> Checkpoint:
        """Architecture, tensors, preprocessing and class names."""
        ...


def convert(clf: Convertible, path: str | Path, to: str, *, allow_changes: bool = False) -> list[str]:
    """Write a classifier for another library to load, with the same logits.

    Args:
        clf: the classifier.
        path: for `"google"` an `.npz` file; for `"huggingface"` a folder; for `"timm"` a folder
            with `config.json`, or one file (`.safetensors`, `.pth`); for `"torchvision"` and `"mmpretrain"` one file.
        to: the family whose code is to read it, by its name in `FAMILIES`.
        allow_changes: whether to write also where that code computes with another GELU, eps or weight
            standardisation, so that logits change a little.

    Returns:
        What the other library does not keep or does in another way, one sentence each; logged too.

    Raises:
        WeightsError: when the model cannot be expressed there, with the reason and a way out.
        ConfigError: an unknown family.
    """
    path, checkpoint = Path(path), clf.checkpoint()
    if to not in FAMILIES:
        raise ConfigError(f"unknown family {to!r}{did_you_mean(str(to), FAMILIES)}: {', '.join(FAMILIES)}")
    family, config = FAMILIES[to], checkpoint.config
    family.check_path(path)
    is_file = path.suffix in (*FILES, ".npz") or to == "native"
    if path.exists() and path.is_dir() == is_file:
        raise WeightsError(f"{path} is a {'folder' if path.is_dir() else 'file'} already: choose another name")
    for reason in family.refusals(config, path):
        raise WeightsError(f"{family.title} cannot take this model: {reason}")
    changes = list(family.changes(config, path))
    if changes and not allow_changes:
        raise WeightsError(
            f"for {family.title} the logits would change: {'; '.join(changes)}. Write another family, or allow it "
            "with allow_changes=True"
        )
    notes = [*changes, *family.losses(checkpoint, path)]
    family.write(checkpoint, path)
    for note in notes:
        logger.warning("%s: %s", path.name, note)
    return notes
