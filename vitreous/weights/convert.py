"""Handing a model on to another library, and saying what that library cannot express.

Three things can come in the way. What the architecture there does not have is refused. What its
code computes with another constant (GELU, eps) changes the logits a little, and is refused unless
the change is allowed. Everything else is done and said.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, WeightsError, did_you_mean
from vitreous.base.files import atomic_path
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights import google, huggingface, native, timm, torchvision
from vitreous.weights.assemble import HEADS
from vitreous.weights.carried import to_metadata
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.safefile import write_safetensors

logger = logging.getLogger("vitreous")

Family = Literal["google", "timm", "huggingface", "torchvision", "native"]
TITLES = {"google": "Google's code", "timm": "timm", "huggingface": "Hugging Face", "torchvision": "torchvision"}
PICKLES = (".pth", ".pt", ".bin")
FILES = (".safetensors", *PICKLES)
WEIGHTS = "model.safetensors"


class Convertible(Protocol):
    """Whatever can say what it is made of; a `Classifier` can."""

    def checkpoint(self) -> Checkpoint:
        """Architecture, tensors, preprocessing and class names."""
        ...


def convert(clf: Convertible, path: str | Path, to: Family, *, allow_changes: bool = False) -> list[str]:
    """Write a classifier for another library to load, with the same logits.

    Args:
        clf: the classifier.
        path: for `"google"` an `.npz` file; for `"huggingface"` a folder; for `"timm"` a folder
            with `config.json`, or one file (`.safetensors`, `.pth`); for `"torchvision"` one file.
        to: whose code is to read it.
        allow_changes: also write where that code computes with another GELU, eps or weight
            standardisation, so that logits change a little.

    Returns:
        What the other library does not keep or does in another way, one sentence each; logged too.

    Raises:
        WeightsError: when the model cannot be expressed there, with the reason and a way out.
        ConfigError: an unknown family.
    """
    path, checkpoint = Path(path), clf.checkpoint()
    if to not in get_args(Family):
        raise ConfigError(
            f"unknown family {to!r}{did_you_mean(str(to), get_args(Family))}: {', '.join(get_args(Family))}"
        )
    if to == "native":
        native.write(path, checkpoint)
        return []
    config, one_file = checkpoint.config, _one_file(path, to)
    for reason in _impossible(config, path, to, one_file):
        raise WeightsError(f"{TITLES[to]} cannot take this model: {reason}")
    changes = list(_changes(config, to, one_file))
    if changes and not allow_changes:
        raise WeightsError(
            f"for {TITLES[to]} the logits would change: {'; '.join(changes)}. Write another family, or allow it "
            "with allow_changes=True"
        )
    notes = [*changes, *_notes(checkpoint, path, to, one_file)]
    _write(checkpoint, path, to, one_file)
    for note in notes:
        logger.warning("%s: %s", path.name, note)
    return notes


def _write(checkpoint: Checkpoint, path: Path, to: Family, one_file: bool) -> None:
    config, tensors = checkpoint.config, checkpoint.tensors
    if to == "google":
        google.write(path, config, tensors)
    elif to == "torchvision":
        _write_tensors(path, torchvision.to_torchvision(tensors), checkpoint)
    elif one_file:
        _write_tensors(path, timm.to_timm(config, tensors), checkpoint)
    else:
        path.mkdir(parents=True, exist_ok=True)
        if to == "timm":
            _write_tensors(path / WEIGHTS, timm.to_timm(config, tensors), checkpoint)
            timm.write_description(path / "config.json", config, checkpoint.preprocess, checkpoint.labels)
        else:
            write_safetensors(path / WEIGHTS, huggingface.to_huggingface(config, tensors), {"format": "pt"})
            huggingface.write_description(path, config, checkpoint.preprocess, checkpoint.labels)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    if path.suffix == ".safetensors":
        write_safetensors(path, dict(tensors), to_metadata(checkpoint.config, checkpoint.preprocess, checkpoint.labels))
        return
    with atomic_path(path) as part:
        torch.save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, part)


def _one_file(path: Path, to: Family) -> bool:
    """Whether a single file is to be written; refuses a path of the wrong kind."""
    single = path.suffix in FILES
    if to == "google" and path.suffix != ".npz":
        raise WeightsError(f"{path}: Google's format is an .npz file, so give a name that ends in .npz")
    if to == "torchvision" and not single:
        raise WeightsError(
            f"{path}: torchvision's format is one file, so give a name that ends in .safetensors or .pth"
        )
    if to == "huggingface" and path.suffix in (*FILES, ".npz"):
        raise WeightsError(f"{path}: Hugging Face's format is a folder with several files, so give a folder's name")
    if to == "timm" and path.suffix == ".npz":
        raise WeightsError(f"{path}: for timm give a folder's name, or a file's that ends in .safetensors or .pth")
    if (single or to == "google") == path.is_dir() and path.exists():
        raise WeightsError(f"{path} is a {'folder' if path.is_dir() else 'file'} already: choose another name")
    return single or to == "google"


def _impossible(config: ViTConfig, path: Path, to: Family, one_file: bool) -> Iterator[str]:
    """What the architecture there does not have, and the way out."""
    c = config
    if to in ("huggingface", "torchvision"):
        if c.resnet is not None:
            yield 'it has no hybrids with a ResNet stem: write to="google" or "timm"'
        if c.classifier == "gap":
            yield 'its head reads the class token, not the mean over patches: write to="timm"'
    if to == "google" and (c.gap_class_token or c.norm_after_pooling):
        what = "LayerNorm comes after pooling" if c.norm_after_pooling else "a class token stands beside the mean"
        yield f'its head takes the mean of all tokens after the LayerNorm, but here {what}: write to="timm"'
    if c.representation_size is not None:
        if to == "timm":
            yield 'it has no pre-logits layer: write to="google" or "torchvision", or fine-tune without it first'
        if to == "huggingface" and c.num_classes:
            yield (
                'its ViTForImageClassification has no pre-logits layer: write to="google" or "torchvision", '
                "or load with num_classes=0 for a ViTModel, whose pooler it is"
            )
    if to == "torchvision":
        if not c.num_classes:
            yield 'it has no backbones without a head: write to="timm" or "huggingface"'
        if c.image_size[0] != c.image_size[1] or c.patch_size[0] != c.patch_size[1]:
            yield f'its images and patches are square, these are {c.image_size} and {c.patch_size}: write to="timm"'
        if c.in_channels != 3:
            yield f'it takes 3 channels, not {c.in_channels}: write to="timm"'
    if to == "timm" and c.gap_class_token and not c.norm_after_pooling and path.suffix in PICKLES:
        yield "beside a class token, a pickle does not say that the head reads the mean: write a folder"
    if to == "timm" and not one_file and timm.architecture(c) is None:
        yield (
            f"it has no named hybrid with stages {c.resnet and c.resnet.num_layers}: "
            "give a file's name that ends in .safetensors, and build the model yourself"
        )


def _changes(config: ViTConfig, to: Family, one_file: bool) -> Iterator[str]:
    """What that code computes with another constant."""
    own = {"google": "tanh", "torchvision": "erf", "timm": "erf" if one_file else config.gelu}.get(to, config.gelu)
    if config.gelu != own:
        built = " unless it is built with act_layer='gelu_tanh'" if to == "timm" else ""
        yield f"GELU {own} in place of {config.gelu}{built}"
    if (eps := config.layer_norm_eps) != 1e-6 and to != "huggingface":
        built = "" if to == "google" else f" unless it is built with norm_layer=partial(LayerNorm, eps={eps:g})"
        yield f"LayerNorm eps 1e-06 in place of {eps:g}{built}"
    if config.resnet is not None and config.resnet.numerics != to:
        yield f"{to}'s small constants in the ResNet stem in place of {config.resnet.numerics}'s"


def _notes(checkpoint: Checkpoint, path: Path, to: Family, one_file: bool) -> Iterator[str]:
    """What else is not kept, or is done in another way."""
    config, title = checkpoint.config, TITLES[to]
    carried = to != "google" and path.suffix == ".safetensors"
    if to in ("google", "torchvision") or (to == "timm" and one_file):
        back = " (vitreous finds them again)" if carried else ""
        if checkpoint.labels is not None:
            yield f"the format has no place for the class names{back}"
        if (theirs := Preprocess.preset(to, size=config.image_size)) != checkpoint.preprocess:
            yield f"the format has no place for the preprocessing, {checkpoint.preprocess}; {title}'s own is {theirs}"
    elif not checkpoint.preprocess.antialias:
        yield f"{title} averages over the pixels that a smaller picture leaves out (antialias), this model does not"
    elif (
        to == "huggingface" and checkpoint.preprocess.resize == "short" and config.image_size[0] != config.image_size[1]
    ):
        yield "its processor cuts pictures that are not square differently: prepare them with vitreous"
    if to == "google" and not config.num_classes:
        yield "the format does not say that the head is missing on purpose: load with num_classes=0"
    if to == "google" and config.grid[0] != config.grid[1]:
        yield f"the format does not say that the grid is {config.grid} (vitreous finds it again)"
    if to in ("timm", "torchvision") and one_file and HEADS.get(config.hidden_size) != config.num_heads:
        yield f"the format does not say that there are {config.num_heads} attention heads: build the model so"
    if config.position_resize != to:
        yield f"at other image sizes {title} resizes positions its own way, not {config.position_resize}'s"
    rates = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")
    kept = rates[:2] if to == "huggingface" else ()
    if lost := [f"{rate}={getattr(config, rate):g}" for rate in rates if rate not in kept and getattr(config, rate)]:
        yield f"not kept, and of no effect but in training: {', '.join(lost)}"
