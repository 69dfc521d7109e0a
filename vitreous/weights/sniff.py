"""Which family a weight file belongs to: decided by its content, never by its name."""

import json
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any, Literal

from safetensors import safe_open
from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.weights import google, native
from vitreous.weights.checkpoint import Checkpoint, Hints
from vitreous.weights.families import FAMILIES
from vitreous.weights.family import Beside
from vitreous.weights.pickles import read_pickle
from vitreous.weights.safefile import read_metadata, read_safetensors
from vitreous.weights.stored import Keys, Opened, Stored, look_up
from vitreous.weights.wrappers import unwrap

Kind = Literal["safetensors", "npz", "pickle"]
# In a folder, the first of these is taken; of others there must be just one.
USUAL = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = ".index.json"
MAX_JSON = 50_000_000  # bytes; the class names of ImageNet-21k take two million
NO_MODEL = {
    b"\x89HDF": "a Keras or HDF5 file",
    b"version ": "a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`",
    b"<!DOCTYP": "a web page, not the file that was meant",
    b"<html": "a web page, not the file that was meant",
}
ANCHORS = {family.name: family.anchor for family in FAMILIES.values() if family.anchor is not None}


def read_checkpoint(path: Path, hints: Hints | None = None) -> Checkpoint:
    """Read a model of any family that is known.

    Args:
        path: a weight file, or a folder with one, as on the Hugging Face hub.
        hints: what the user knows of it that it does not say.

    Raises:
        WeightsError: no such file, not a weight file, or one that is broken, incomplete or another
            architecture.
    """
    hints = hints or Hints()
    if not path.exists():
        raise WeightsError(f"{path}: no such file")
    file = _in_folder(path) if path.is_dir() else path
    kind = "shards" if file.name.endswith(INDEX) else _kind(file)
    if kind == "safetensors" and "vitreous.format" in _metadata(file):
        return native.read(file, hints.weights)
    if kind == "npz":
        checkpoint = google.read(file, hints.image_size)
        checkpoint.head_expected = True
    else:
        opened = _OPEN[kind](file)
        checkpoint = _read(opened, hints, _beside(file) if path.is_dir() or file.name in USUAL else Beside())
        checkpoint.provenance["file"] = path.resolve().name
    _name_classes(checkpoint)
    if checkpoint.head_expected and not checkpoint.config.num_classes and hints.num_classes is None:
        raise WeightsError(
            f"{path} has no classification head: give num_classes=... for a new one, or 0 for the backbone alone"
        )
    return checkpoint


def _read(opened: Opened, hints: Hints, beside: Beside) -> Checkpoint:
    found, notes = unwrap(opened.content, opened.source, ANCHORS, hints.weights)
    stored, family = opened.select(found.names, notes), FAMILIES[found.family]
    key, width = family.described or ("", "")
    described = beside.config if key in (beside.config or {}) else None
    if described is not None and described.get(width) and _width(stored) not in (None, described[width]):
        raise WeightsError(
            f"{opened.source}: config.json is of another model: its {width} is {described[width]}, the tensors' is "
            f"{_width(stored)}"
        )
    try:
        return family.read(stored, hints, Beside() if described is None else beside)
    except WeightsError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if described is None:
            raise
        raise WeightsError(f"{opened.source}: config.json is not as it should be ({error})") from None


def _width(stored: Stored) -> int | None:
    """D, from the one tensor by which the family was told."""
    anchors = "|".join(ANCHORS.values())
    return next((t.shape[0] for name, t in stored.tensors.items() if re.fullmatch(anchors, name) and t.ndim), None)


def _beside(file: Path) -> Beside:
    return Beside(_read_json(file.parent / "config.json"), _read_json(file.parent / "preprocessor_config.json"))


def _kind(path: Path) -> Kind:
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise WeightsError(f"{path} is empty: download or copy it again")
    if start.startswith(b"PK"):
        return "npz" if _holds_arrays(path) else "pickle"
    if start[8:9] == b"{":
        return "safetensors"
    if start[:1] == b"\x80" and start[1] <= pickle.HIGHEST_PROTOCOL:  # torch before 1.6, or a pickle of another kind
        return "pickle"
    what = next((what for magic, what in NO_MODEL.items() if start.startswith(magic)), "no weight file that is known")
    raise WeightsError(f"{path} is {what}: .safetensors, .npz and torch's .pth are read")


def _holds_arrays(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError) as error:
        raise WeightsError(f"{path} is not a whole .npz or .pth file ({error}): download or copy it again") from None
    if any(name.endswith(".npy") for name in names):
        return True
    if any(name.endswith("data.pkl") for name in names):
        return False
    raise WeightsError(f"{path} is a zip archive without weights in it: .npz and torch's .pth are read")


def _metadata(path: Path) -> Mapping[str, Any]:
    metadata = read_metadata(path).get("__metadata__") or {}
    return metadata if isinstance(metadata, dict) else {}


def _open_safetensors(path: Path) -> Opened:
    metadata, tensors = read_safetensors(path)

    def reopen(keys: Sequence[Keys]) -> list[Tensor]:
        with safe_open(path, framework="pt") as file:
            return [file.get_tensor(key) for (key,) in keys]

    return Opened(str(path), tensors, reopen, metadata)


def _open_pickle(path: Path) -> Opened:
    content, mapped = read_pickle(path)

    def reopen(keys: Sequence[Keys]) -> list[Tensor]:
        again = read_pickle(path)[0]
        return [look_up(again, key) for key in keys]

    return Opened(str(path), content, reopen if mapped else None)


def _open_shards(index: Path) -> Opened:
    """Several files and an index that says which tensor is in which."""
    table = (_read_json(index) or {}).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise WeightsError(f"{index} is no index of shards: its weight_map is not a table of file names")
    shards: dict[str, Opened] = {}
    for name in sorted(set(table.values())):
        if Path(name).name != name:
            raise WeightsError(f"{index} names {name!r}, which is no file beside it")
        if not (index.parent / name).is_file():
            raise WeightsError(f"{index}: its part {name} is missing: download or copy it again")
        kind = _kind(index.parent / name)
        if kind == "npz":
            raise WeightsError(f"{index} names {name}, an .npz file, which cannot be a part")
        shards[name] = _OPEN[kind](index.parent / name)
    content = {name: tensor for shard in shards.values() for name, tensor in shard.content.items()}
    if missing := sorted(set(table) - set(content)):
        raise WeightsError(f"{index}: not in the parts that it names: {', '.join(missing)}")
    if any(shard.reopen is None for shard in shards.values()):
        return Opened(str(index.parent), content)

    def reopen(keys: Sequence[Keys]) -> list[Tensor]:
        found: dict[Keys, Tensor] = {}
        for shard in shards.values():
            inside = [key for key in keys if key[0] in shard.content]
            if inside and shard.reopen is not None:
                found.update(zip(inside, shard.reopen(inside), strict=True))
        return [found[key] for key in keys]

    return Opened(str(index.parent), content, reopen)


_OPEN: dict[str, Callable[[Path], Opened]] = {
    "safetensors": _open_safetensors,
    "pickle": _open_pickle,
    "shards": _open_shards,
}


def _in_folder(folder: Path) -> Path:
    """The weight file of a folder."""
    for name in USUAL:
        if (folder / name).is_file():
            return folder / name
    files = [
        path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", ".npz", ".bin", ".pth", ".pt")
    ]
    if len(files) == 1:
        return files[0]
    if not files:
        raise WeightsError(f"{folder} holds no weight file, such as {USUAL[0]}")
    raise WeightsError(f"{folder} holds several weight files ({', '.join(f.name for f in files)}): give one of them")


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_JSON:
        raise WeightsError(f"{path} has {path.stat().st_size:,} bytes, far more than such a file needs")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not JSON ({error}): download or copy it again") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} is not a table in JSON: download or copy it again")
    return content


def _name_classes(checkpoint: Checkpoint) -> None:
    """ImageNet's class names, for the families whose 1000 classes are documented to be those, in that order."""
    family = FAMILIES.get(str(checkpoint.provenance.get("family")))
    if checkpoint.labels is not None or checkpoint.config.num_classes != 1000 or not (family and family.imagenet):
        return
    checkpoint.labels = _imagenet_names()
    checkpoint.provenance["labels"] = "assumed: ImageNet-1k's, in the order of ILSVRC 2012"


def _imagenet_names() -> tuple[str, ...]:
    """torchvision's list, from the one file that it is in: to import the whole package takes seconds."""
    folders = getattr(find_spec("torchvision"), "submodule_search_locations", None) or ["."]
    try:
        return tuple(run_path(f"{folders[0]}/models/_meta.py")["_IMAGENET_CATEGORIES"])
    except (OSError, KeyError):  # another version
        from torchvision.models import ViT_B_16_Weights

        return tuple(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])
