"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place only when the block ends without an error.

    An interrupted or failed write leaves the old file as it was, and no half file behind.
    Missing folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())  # mkstemp makes it readable by its owner alone
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a file for writing whose content appears at `path` whole, or not at all."""
    with atomic_path(path) as part, part.open(mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file
        file.flush()


def write_text(path: str | Path, text: str) -> None:
    """Write a whole text file atomically, as UTF-8."""
    with atomic_write(path, "w") as file:
        file.write(text)


def cache_folder(name: str) -> Path:
    """Where results are kept from one run to the next: `VITREOUS_CACHE`/name, or in the system's cache folder."""
    if root := os.environ.get("VITREOUS_CACHE"):
        return Path(root) / name
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "vitreous" / name


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
