"""Folders of class folders, and what counts as one: `DATA/CLASS/picture`, or `DATA/train/CLASS/picture`.

Classes are sorted by their names' code points (1, 10, 2: as torchvision's ImageFolder does),
pictures likewise within their class. Names that start with a dot or with `__` are left out
(`.ipynb_checkpoints`, `__MACOSX`), and so are files that do not look like pictures.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from vitreous.base.errors import DataError
from vitreous.data.dataset import SPLITS, DataSet, LeftOut, in_order, split_by_label
from vitreous.data.names import Names, printable
from vitreous.data.source import Listed, Source

IMAGE_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("apng", "avif", "bmp", "gif", "heic", "heif", "ico", "j2k", "jfif", "jp2", "jpe", "jpeg", "jpg", "mpo"),
        *("pbm", "pgm", "png", "pnm", "ppm", "tga", "tif", "tiff", "webp"),
    )
)


class Folder(Listed):
    """Files below a folder."""

    def open(self, row: int) -> Path:
        return self.root / self.names[row]


@dataclass(frozen=True)
class Listing:
    """What a folder or an archive holds: files and folders, with slashes, hidden ones apart."""

    files: list[str]
    hidden: list[str]
    folders: list[str]


def open_folder(root: Path, listing: Listing) -> DataSet:
    """The data set in a folder that `list_folder` listed."""
    return arrange(Folder(root, Names.pack(listing.files)), listing)


def list_folder(root: Path) -> Listing:
    """Everything below a folder; links to folders are followed, but not in circles."""
    found = Listing([], [], [])
    seen: set[tuple[int, int]] = set()
    for folder, inside, files in os.walk(root, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            inside.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        inside.sort()
        prefix = "" if folder == str(root) else Path(folder).relative_to(root).as_posix() + "/"
        found.folders.extend(prefix + name for name in inside if not is_hidden(prefix + name))
        for name in files:
            (found.hidden if is_hidden(prefix + name) else found.files).append(prefix + name)
    return found


def arrange(source: Source, listing: Listing) -> DataSet:
    """Sort files into splits and classes by the folders they lie in.

    Args:
        source: numbers its pictures as `listing.files` does.
        listing: all files.

    Raises:
        DataError: no pictures.
    """
    names = listing.files
    pictures = [row for row, name in enumerate(names) if is_picture(name)]
    if not pictures:
        raise DataError(f"{source.root} holds no pictures: a folder for every class is expected, with pictures in it")
    parts = {row: names[row].split("/") for row in pictures}
    is_split = any(len(p) > 2 and SPLITS.get(p[0].lower()) == "train" for p in parts.values())
    depth = 1 if is_split else 0
    rows: dict[str, list[int]] = {}
    loose, outside = [], []
    for row in pictures:
        split = SPLITS.get(parts[row][0].lower()) if is_split else "all"
        if split is None:
            outside.append(row)
        elif len(parts[row]) < depth + 2:
            loose.append(row)
        else:
            rows.setdefault(split, []).append(row)
    splits = {}
    for split, members in rows.items():
        members.sort(key=lambda row: (parts[row][depth], names[row]))
        classes = sorted({parts[row][depth] for row in members})
        place = {name: i for i, name in enumerate(classes)}
        labels = np.array([place[parts[row][depth]] for row in members], dtype=np.int64)
        splits[split] = split_by_label(source, np.array(members, dtype=np.int64), labels, classes, "code points")
    filled = {tuple(p[: depth + 1]) for p in parts.values()}
    left_out = LeftOut(
        others=_printable(name for name in names if not is_picture(name)),
        loose=_printable(names[row] for row in loose),
        outside=_printable(names[row] for row in outside),
        hidden=_printable(listing.hidden),
        empty=_printable(
            folder
            for folder in listing.folders
            if (p := folder.split("/")) and len(p) == depth + 1 and tuple(p) not in filled
            if not is_split or p[0].lower() in SPLITS
        ),
    )
    return DataSet(source.root, in_order(splits.items()), left_out)


def _printable(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(printable(name) for name in names)


def is_picture(name: str) -> bool:
    """Whether a file's name says that it is a picture."""
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def is_hidden(name: str) -> bool:
    """Whether a file or a folder, by its own name or that of a folder above it, is no part of any data set."""
    return any(part.startswith((".", "__")) for part in name.split("/"))
