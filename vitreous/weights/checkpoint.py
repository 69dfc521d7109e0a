"""What every reader hands over, and the strict check that nothing is missing, extra or misshapen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitreous.config import ViTConfig
from vitreous.errors import WeightsError
from vitreous.model import VisionTransformer
from vitreous.preprocess import Preprocess


@dataclass
class Checkpoint:
    """A weight file of any family, in our names: everything a `Classifier` is made of.

    Args:
        config: what the tensors belong to.
        tensors: by the names of `VisionTransformer.state_dict()`.
        preprocess: how its pictures are prepared.
        labels: the class names in the order of the logits, where the file has them.
        provenance: where it comes from: family, file, and whatever the file itself says.
    """

    config: ViTConfig
    tensors: dict[str, Tensor]
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

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


def empty_model(config: ViTConfig) -> VisionTransformer:
    """The model's skeleton without memory for its weights (torch's meta device)."""
    with torch.device("meta"):
        return VisionTransformer(config)


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
    wrong = [f"{name} is {found[name]}, expected {expected[name]}" for name in expected if found[name] != expected[name]]
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


def join_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The way back from `split_qkv`: rows of the joined matrix are query, key, value."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".query." in name:
            parts = [tensor, *(tensors[name.replace(".query.", f".{part}.")] for part in ("key", "value"))]
            out[name.replace(".query.", ".qkv.")] = torch.cat(parts)
        elif ".key." not in name and ".value." not in name:
            out[name] = tensor
    return out
