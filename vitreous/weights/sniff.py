"""Which family a weight file belongs to: decided by its content, never by its name."""

import zipfile
from pathlib import Path

from vitreous.config import Size
from vitreous.errors import WeightsError
from vitreous.weights import google, native
from vitreous.weights.checkpoint import Checkpoint


def read_checkpoint(path: Path, image_size: Size | None = None) -> Checkpoint:
    """Read a weight file of any family that is known.

    Args:
        path: the file.
        image_size: (H, W) that the file's positions belong to, where it does not say and the
            grid is not square.

    Raises:
        WeightsError: no such file, not a weight file, or a broken one.
    """
    if path.is_dir():
        raise WeightsError(f"{path} is a folder: a model file is expected")
    if not path.exists():
        raise WeightsError(f"{path}: no such file")
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise WeightsError(f"{path} is empty: download or copy it again")
    if start.startswith(b"PK"):
        return google.read(path, image_size) if _holds_arrays(path) else _unknown(path)
    if start[8:9] == b"{":
        return native.read(path)
    return _unknown(path)


def _holds_arrays(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile as error:
        raise WeightsError(f"{path} is not a whole .npz file ({error}): download or copy it again") from None


def _unknown(path: Path) -> Checkpoint:
    raise WeightsError(f"{path} is not a model file that vitreous knows: a native .safetensors or a Google .npz")
