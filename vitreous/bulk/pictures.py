"""The pictures that paths and folders stand for."""

from collections.abc import Iterable
from pathlib import Path

from vitreous.base.errors import ImageError
from vitreous.data.folder import IMAGE_SUFFIXES


def find_pictures(paths: Iterable[str | Path]) -> list[Path]:
    """Files as they are, and for each folder all pictures in and below it, sorted.

    Raises:
        ImageError: a path that does not exist, or a folder without pictures.
    """
    pictures: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
            if not inside:
                raise ImageError(f"{path} holds no pictures")
            pictures += inside
        elif not path.exists():
            raise ImageError(f"{path}: no such file")
        else:
            pictures.append(path)
    return pictures
