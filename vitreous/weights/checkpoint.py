"""What every reader hands over, and the strict check that nothing is missing, extra or misshapen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.config import Size, ViTConfig
from vitreous.model import VisionTransformer
from vitreous.pictures.preprocess import Preprocess
from vitreous.skeleton import empty_model


@dataclass(frozen=True)
class Hints:
    """What the user knows of a weight file, for where it does not say.

    Args:
        image_size: (H, W) that its positions belong to, where their grid is not square.
        num_heads: heads of the attention: no tensor's shape tells.
        num_classes: of the head wanted, so that one may be missing; 0 for the backbone alone.
        weights: `"raw"` or `"ema"` (the running average over training), where it holds both.
    """

    image_size: Size | None = None
    num_heads: int | None = None
    num_classes: int | None = None
    weights: Literal["raw", "ema"] | None = None


@dataclass
class Checkpoint:
    """A weight file of any family, in our names: everything a `Classifier` is made of.

    Args:
        config: what the tensors belong to.
        tensors: by the names of `VisionTransformer.state_dict()`.
        preprocess: how its pictures are prepared.
        labels: the class names in the order of the logits, where the file has them.
        provenance: where it comes from: family, file, and whatever the file itself says.
        head_expected: a classifier's file, so that one without a head is incomplete.
    """

    config: ViTConfig
    tensors: dict[str, Tensor]
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    head_expected: bool = False

    def build(self, source: str) -> VisionTransformer:
        """The model with these very tensors, taken over and not copied; refuses any mismatch by name."""
        model = empty_model(self.config)
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        check_names(expected, self.tensors, source)
        check_shapes(expected, {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}, source)
        model.load_state_dict(self.tensors, strict=True, assign=True)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model.eval()


def default_preprocess(family: str, config: ViTConfig) -> Preprocess:
    """What the family's own code does, where a file does not say; for grey images too."""
    preprocess = Preprocess.preset(family, size=config.image_size)
    if config.in_channels == 1:
        preprocess = preprocess.replace(mean=preprocess.mean[:1], std=preprocess.std[:1])
    return preprocess


def check_names(expected: Iterable[str], found: Iterable[str], source: str) -> None:
    """Every expected tensor once and no other, or an error with both lists of names."""
    wanted, have = set(expected), set(found)
    missing, extra = sorted(wanted - have), sorted(have - wanted)
    if not missing and not extra:
        return
    parts = [f"{source}: {len(wanted & have)} of {len(wanted)} tensors found"]
    if missing:
        parts.append(f"missing: {', '.join(missing)}")
    if extra:
        parts.append(f"not part of this model: {', '.join(extra)}")
    raise WeightsError("; ".join(parts))


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Every tensor has its shape, or an error with the names of all that have not."""
    wrong = [
        f"{name} is {found[name]}, expected {expected[name]}" for name in expected if found[name] != expected[name]
    ]
    if wrong:
        raise WeightsError(f"{source}: wrong shapes: {'; '.join(wrong)}")


def split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours -> one matrix each for query, key and value: the names of the families that keep them apart."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".qkv." in name:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                out[name.replace(".qkv.", f".{part}.")] = piece
        else:
            out[name] = tensor
    return out
