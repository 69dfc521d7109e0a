"""What a family of weight files is: one library's names and layout, how it is told, read and written.

To add one is to write one module with a subclass and to name it in `families.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.base.files import atomic_path
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.architecture import HEADS
from vitreous.weights.carried import to_metadata
from vitreous.weights.checkpoint import Checkpoint, Hints
from vitreous.weights.safefile import write_safetensors
from vitreous.weights.stored import Stored

PICKLES = (".pth", ".pt", ".bin")
FILES = (".safetensors", *PICKLES)
WEIGHTS = "model.safetensors"
RATES = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")


@dataclass(frozen=True)
class Beside:
    """What lies beside the tensors: `config.json` and `preprocessor_config.json`."""

    config: dict[str, Any] | None = None
    processor: dict[str, Any] | None = None


class Family:
    """One library's weight files.

    Attributes:
        name: as `convert` and the command call it, and as the provenance says.
        title: for messages.
        anchor: pattern of the one tensor's name by which a file of the family is told; None where the kind of file
            tells. What stands before it in a file is a wrapper's prefix.
        described: the keys of `config.json` by which it is known to be this family's, and that hold D; None where the
            family has no such file.
        position_resize: how its code brings positions to another grid; a key of `positions.MODES`.
        preset: of `Preprocess`, what its code does to a picture where a file does not say.
        imagenet: whether 1000 classes are ImageNet's in the order of ILSVRC 2012.
        kept_rates: dropout rates that its files keep.
    """

    name: str
    title: str
    anchor: str | None = None
    described: tuple[str, str] | None = None
    position_resize: str
    preset: str
    imagenet = False
    kept_rates: tuple[str, ...] = ()

    def read(self, stored: Stored, hints: Hints, beside: Beside) -> Checkpoint:
        """The model in a file of the family.

        Args:
            stored: the tensors by their names there.
            hints: what the user says.
            beside: what lies beside them; of this family, or empty.

        Raises:
            WeightsError: another architecture, or not whole.
        """
        raise WeightsError(f"{stored.source}: files of {self.title} are not read")

    def check_path(self, path: Path) -> None:
        """Refuse a path that is not what the family's files are called."""

    def refusals(self, config: ViTConfig, path: Path) -> Iterator[str]:
        """What the architecture there does not have, and the way out: a sentence each."""
        yield from ()

    def changes(self, config: ViTConfig, path: Path) -> Iterator[str]:
        """What that code computes with another constant, so that logits change a little: a sentence each."""
        yield from ()

    def losses(self, checkpoint: Checkpoint, path: Path) -> Iterator[str]:
        """What else is not kept, or is done in another way: a sentence each."""
        yield from ()

    def write(self, checkpoint: Checkpoint, path: Path) -> None:
        """Write the model; its tensors stay as they are."""
        raise WeightsError(f"files of {self.title} are not written")


def single_file(path: Path) -> bool:
    """Whether a path names one file of tensors, not a folder."""
    return path.suffix in FILES


def write_tensors(path: Path, tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Tensors alone, as `.safetensors` with what the format has no place for in its header, or as a `.pth`."""
    if path.suffix == ".safetensors":
        write_safetensors(path, dict(tensors), to_metadata(checkpoint.config, checkpoint.preprocess, checkpoint.labels))
        return
    with atomic_path(path) as part:
        torch.save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, part)


def constants(config: ViTConfig, *, gelu: str, name: str, option: bool = False) -> Iterator[str]:
    """The GELU, the eps and the stem's constants of code that has them fixed.

    Args:
        config: of the model.
        gelu: the only one that the code has.
        name: of the family, as `ResNetConfig.numerics` has it.
        option: whether the model there can be built with others (timm).
    """
    if config.gelu != gelu:
        built = " unless it is built with act_layer='gelu_tanh'" if option else ""
        yield f"GELU {gelu} in place of {config.gelu}{built}"
    if (eps := config.layer_norm_eps) != 1e-6:
        built = "" if name == "google" else f" unless it is built with norm_layer=partial(LayerNorm, eps={eps:g})"
        yield f"LayerNorm eps 1e-06 in place of {eps:g}{built}"
    if config.resnet is not None and config.resnet.numerics != name:
        yield f"{name}'s small constants in the ResNet stem in place of {config.resnet.numerics}'s"


def without_description(family: Family, checkpoint: Checkpoint, path: Path) -> Iterator[str]:
    """What a file of nothing but tensors does not keep; the header of a `.safetensors` carries it along."""
    back = " (vitreous finds them again)" if path.suffix == ".safetensors" else ""
    if checkpoint.labels is not None:
        yield f"the format has no place for the class names{back}"
    theirs = Preprocess.preset(family.preset, size=checkpoint.config.image_size)
    if theirs != checkpoint.preprocess:
        yield (
            f"the format has no place for the preprocessing, {checkpoint.preprocess}; {family.title}'s own is {theirs}"
        )


def never_kept(family: Family, config: ViTConfig) -> Iterator[str]:
    """What no file of another library keeps."""
    if config.position_resize != family.position_resize:
        yield f"at other image sizes {family.title} resizes positions its own way, not {config.position_resize}'s"
    lost = [f"{rate}={getattr(config, rate):g}" for rate in RATES if getattr(config, rate)]
    if lost := [text for text in lost if text.split("=")[0] not in family.kept_rates]:
        yield f"not kept, and of no effect but in training: {', '.join(lost)}"


def reads_class_token(config: ViTConfig) -> Iterator[str]:
    """For code that is without a ResNet stem, and whose head reads the class token."""
    if config.resnet is not None:
        yield 'it has no hybrids with a ResNet stem: write to="google" or "timm"'
    if config.classifier == "gap":
        yield 'its head reads the class token, not the mean over patches: write to="timm"'


def heads_not_told(config: ViTConfig) -> Iterator[str]:
    """For files of nothing but tensors: an unusual number of heads has to be known."""
    if HEADS.get(config.hidden_size) != config.num_heads:
        yield f"the format does not say that there are {config.num_heads} attention heads: build the model so"


def antialiased(family: Family) -> str:
    """For code that always averages: what that means for a model trained without."""
    return f"{family.title} averages over the pixels that a smaller picture leaves out (antialias), this model does not"
