"""The tensors of a weight file by name, lying in the file until they are used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import WeightsError

# What holds weights. Integers and 8-bit floats are quantised, and mean nothing without their scales.
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


Keys = tuple[str, ...]  # that lead to a tensor in nested dictionaries


@dataclass(frozen=True)
class Opened:
    """A file, with whatever is around the model in it.

    Args:
        source: what messages call it.
        content: dictionaries, nested or not, whose tensors are parts of the mapped file: their
            pages are read when they are used.
        reopen: maps some tensors once more; None where the file cannot be mapped and they are in memory.
        metadata: of a `.safetensors` header.
    """

    source: str
    content: Any
    reopen: Callable[[Sequence[Keys]], list[Tensor]] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def select(self, names: Mapping[str, Keys], notes: Mapping[str, str]) -> "Stored":
        """The tensors of one model, by name."""
        tensors = {name: look_up(self.content, keys).detach() for name, keys in names.items()}
        reopen = self.reopen
        again = None if reopen is None else lambda wanted: reopen([names[name] for name in wanted])
        return Stored(self.source, tensors, again, self.metadata, dict(notes))


def look_up(content: Any, keys: Keys) -> Tensor:
    """The tensor that some keys lead to."""
    for key in keys:
        content = content[key]
    return content


@dataclass
class Stored:
    """The tensors of one model.

    Args:
        source: what messages call the file.
        tensors: by their names there.
        reopen: as in `Opened`.
        metadata: as in `Opened`.
        notes: how they were found, for the provenance.
    """

    source: str
    tensors: dict[str, Tensor]
    reopen: Callable[[Sequence[str]], list[Tensor]] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> "Stored":
        """A selection under other names: the new name -> the name here."""
        tensors = {new: self.tensors[old] for new, old in names.items()}
        reopen = self.reopen
        again = None if reopen is None else lambda wanted: reopen([names[name] for name in wanted])
        return Stored(self.source, tensors, again, self.metadata, self.notes)

    def apart(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Some tensors to compute with and drop; what was read of them is then out of memory again."""
        if self.reopen is None:
            return {name: self.tensors.pop(name) for name in names}
        return dict(zip(names, self.reopen(names), strict=True))

    def check_numbers(self, names: Sequence[str]) -> None:
        """Refuse what is no floating-point tensor, or claims more numbers than the file holds."""
        for name in names:
            tensor = self.tensors[name]
            if tensor.dtype not in FLOATS or tensor.layout != torch.strided:
                raise WeightsError(
                    f"{self.source}: {name} is of type {tensor.dtype} ({tensor.layout}), not plain floating point: "
                    "if it is quantised, take the original weights"
                )
            if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
                raise WeightsError(
                    f"{self.source}: {name} claims {tuple(tensor.shape)} numbers, more than the file holds"
                )
