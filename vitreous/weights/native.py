"""Our own single file: a `.safetensors` whose header holds the whole classifier.

Tensors have the names of `VisionTransformer.state_dict()`. The header's metadata holds, as
JSON, the configuration, the preprocessing, the class names and the provenance.
"""

import json
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.config import ViTConfig
from vitreous.errors import VitreousError, WeightsError
from vitreous.files import atomic_path
from vitreous.preprocess import Preprocess
from vitreous.weights.checkpoint import Checkpoint

FORMAT_VERSION = 1


def read(path: Path) -> Checkpoint:
    """Read a file that `write` wrote.

    Raises:
        WeightsError: not whole, not ours, from a newer version, or with a header that is not understood.
    """
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            _check_version(meta, path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a whole .safetensors file ({error}): download or copy it again") from None
    try:
        labels = json.loads(meta["vitreous.labels"])
        return Checkpoint(
            config=ViTConfig.from_dict(json.loads(meta["vitreous.config"])),
            tensors=tensors,
            preprocess=Preprocess.from_dict(json.loads(meta["vitreous.preprocess"])),
            labels=None if labels is None else tuple(labels),
            provenance=json.loads(meta["vitreous.provenance"]),
        )
    except (KeyError, TypeError, json.JSONDecodeError, VitreousError) as error:
        raise WeightsError(f"{path}: its header is damaged ({type(error).__name__}: {error})") from None


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write everything to one file, atomically."""
    meta = {
        "format": "pt",
        "vitreous.format": str(FORMAT_VERSION),
        "vitreous.config": json.dumps(checkpoint.config.to_dict()),
        "vitreous.preprocess": json.dumps(checkpoint.preprocess.to_dict()),
        "vitreous.labels": json.dumps(checkpoint.labels, ensure_ascii=False),
        "vitreous.provenance": json.dumps(checkpoint.provenance, ensure_ascii=False),
    }
    write_safetensors(path, checkpoint.tensors, meta)


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A `.safetensors` file that is whole or not there; tensors are made contiguous and brought to the CPU."""
    with atomic_path(path) as part:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, part, metadata)


def read_metadata(path: Path) -> dict[str, Any]:
    """The header of a `.safetensors` file alone: its tensors' names, and the metadata under `__metadata__`.

    Raises:
        WeightsError: when the header does not fit into the file or is not JSON.
    """
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= size <= path.stat().st_size - 8:
            raise WeightsError(f"{path} is not a .safetensors file: its first bytes are no header length")
        try:
            header = json.loads(file.read(size))
        except ValueError:
            raise WeightsError(f"{path} is not a .safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is not a .safetensors file: its header is no table of tensors")
    return header


def _check_version(meta: dict[str, str], path: Path) -> None:
    found = meta.get("vitreous.format")
    if found is None:
        raise WeightsError(f"{path} is a .safetensors file, but not one that vitreous wrote")
    if not found.isdigit() or int(found) > FORMAT_VERSION:
        raise WeightsError(
            f"{path} has format version {found}; this vitreous reads up to {FORMAT_VERSION}: upgrade vitreous"
        )
