"""`.safetensors` files of any family: written whole, read without a copy, and damage said by name.

Such a file is a length (8 bytes), a JSON header with the place of every tensor, and the numbers.
"""

import json
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.base.files import atomic_path

MAX_HEADER = 100_000_000  # bytes, the limit of the safetensors library itself


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a file.

    The tensors are the mapped file itself: its pages are read when they are first used, and
    copied when they are written to, so that the file never changes.

    Raises:
        WeightsError: when the file is not whole or its header does not describe it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise WeightsError(f"{path} is not a whole .safetensors file ({error}): download or copy it again") from None


def read_metadata(path: Path) -> dict[str, Any]:
    """The header of a file alone: its tensors' names, and the metadata under `__metadata__`.

    Raises:
        WeightsError: when the header does not fit into the file or is not a table in JSON.
    """
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= size <= min(path.stat().st_size - 8, MAX_HEADER):
            raise WeightsError(f"{path} is not a .safetensors file: its first bytes are no header length")
        try:
            header = json.loads(file.read(size))
        except (ValueError, RecursionError):
            raise WeightsError(f"{path} is not a .safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is not a .safetensors file: its header is no table of tensors")
    return header


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A file that is whole or not there; tensors are made contiguous and brought to the CPU."""
    with atomic_path(path) as part:
        write_part(part, {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata)


def write_part(part: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """The same tensors and metadata always give the same bytes: the library writes the metadata in any order."""
    save_file(tensors, part, metadata)
    with part.open("r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size)
        if len(text) == size:  # it was JSON without spaces before: only the order changes
            file.seek(8)
            file.write(text)
