"""Our own single file: a `.safetensors` whose header holds the whole classifier.

Tensors have the names of `VisionTransformer.state_dict()`; with `ema/` before them they are the
running average of the weights over training, where there is one. The header's metadata holds, as
JSON, the configuration, the preprocessing, the class names and the provenance.
"""

import json
import logging
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.anatomy.cost import cost
from vitreous.base.errors import WeightsError
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.checkpoint import Checkpoint, Hints
from vitreous.weights.family import Beside, Family
from vitreous.weights.safefile import read_safetensors, write_safetensors
from vitreous.weights.stored import Stored

logger = logging.getLogger("vitreous")
FORMAT_VERSION = 1
EMA = "ema/"
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def read(path: Path, weights: Literal["raw", "ema"] | None = None) -> Checkpoint:
    """Read a file that `write` wrote.

    Args:
        path: the file.
        weights: which of the two, where it holds both; else the raw ones, and it is said.

    Raises:
        WeightsError: not whole, not ours, from a newer version, or with a header that is not understood.
    """
    meta, tensors = read_safetensors(path)
    _check_version(meta, path)
    averaged = {name.removeprefix(EMA): tensor for name, tensor in tensors.items() if name.startswith(EMA)}
    if weights == "ema" and not averaged:
        raise WeightsError(f"{path} holds no ema weights: it was trained without ema_decay")
    tensors = averaged if weights == "ema" else {n: t for n, t in tensors.items() if not n.startswith(EMA)}
    try:
        labels = json.loads(meta["vitreous.labels"])
        checkpoint = Checkpoint(
            config=ViTConfig.from_dict(json.loads(meta["vitreous.config"])),
            tensors=tensors,
            preprocess=Preprocess.from_dict(json.loads(meta["vitreous.preprocess"])),
            labels=None if labels is None else tuple(labels),
            provenance=json.loads(meta["vitreous.provenance"]),
        )
        if averaged:
            checkpoint.provenance["weights"] = _which(weights or "raw", checkpoint.provenance.get("scores") or {})
        _check(checkpoint)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path}: its header is damaged ({type(error).__name__}: {error})") from None
    if averaged and weights is None:
        logger.warning("%s: weights taken: %s", path, checkpoint.provenance["weights"])
    return checkpoint


def write(path: Path, checkpoint: Checkpoint, averaged: dict[str, Tensor] | None = None) -> None:
    """Write everything to one file, atomically; `averaged` are the average weights, by the same names."""
    meta = {
        "format": "pt",
        "vitreous.format": str(FORMAT_VERSION),
        "vitreous.config": json.dumps(checkpoint.config.to_dict()),
        "vitreous.preprocess": json.dumps(checkpoint.preprocess.to_dict()),
        "vitreous.labels": json.dumps(checkpoint.labels, ensure_ascii=False),
        "vitreous.provenance": json.dumps(checkpoint.provenance, ensure_ascii=False),
    }
    average = {f"{EMA}{name}": tensor for name, tensor in (averaged or {}).items()}
    write_safetensors(path, {**checkpoint.tensors, **average}, meta)


def _which(taken: str, scores: dict[str, Any]) -> str:
    """`"raw, top-1 91.2 %; not taken: ema, top-1 92.0 %"`."""

    def words(kind: str) -> str:
        return kind + (f", top-1 {100 * scores[kind]['top1']:.1f} %" if kind in scores else "")

    return f"{words(taken)}; not taken: {words('ema' if taken == 'raw' else 'raw')}"


def _check_version(meta: dict[str, str], path: Path) -> None:
    found = meta.get("vitreous.format")
    if found is None:
        raise WeightsError(f"{path} is a .safetensors file, but not one that vitreous wrote")
    if not (found.isdecimal() and 1 <= int(found[:9]) <= FORMAT_VERSION):
        raise WeightsError(
            f"{path} has format version {found}; this vitreous reads up to {FORMAT_VERSION}: upgrade vitreous"
        )


def _check(checkpoint: Checkpoint) -> None:
    """What a sound header implies, checked before a model is built from it."""
    config, labels = checkpoint.config, checkpoint.labels
    layers = config.num_layers + sum(config.resnet.num_layers if config.resnet else ())
    numbers = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    # Only what cannot be: where a few tensors are missing, the check by name says which.
    if layers > len(checkpoint.tensors) or cost(config).params > 100 * numbers:
        raise ValueError(f"the model described is far larger than the {numbers:,} numbers that follow")
    if checkpoint.preprocess.size != config.image_size or len(checkpoint.preprocess.mean) != config.in_channels:
        raise ValueError("preprocessing and model do not fit together")
    if labels is not None and not (len(labels) == config.num_classes and all(isinstance(x, str) for x in labels)):
        raise ValueError(f"the labels are not {config.num_classes} names")
    if not isinstance(checkpoint.provenance, dict):
        raise TypeError("the provenance is no table")
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype not in FLOATS:
            raise TypeError(f"{name} is of type {tensor.dtype}, not floating point")


class Native(Family):
    """This project's own files; with their header, `read` above reads them."""

    name, title = "native", "vitreous"
    anchor = r"patch_embedding\.projection\.weight"

    def read(self, stored: Stored, hints: Hints, beside: Beside) -> Checkpoint:
        raise WeightsError(
            f"{stored.source} holds vitreous' tensors without the header that says what they are: "
            "write the model with Classifier.save"
        )

    def write(self, checkpoint: Checkpoint, path: Path) -> None:
        write(path, checkpoint)
