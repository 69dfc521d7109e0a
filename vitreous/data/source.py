"""Data sets as folders or zips of class folders, with or without train/ and val/.

Classes are sorted by their names' code points (1, 10, 2: as torchvision's ImageFolder does),
pictures likewise within their class. Names that start with a dot or with `__` are left out
(`.ipynb_checkpoints`, `__MACOSX`), and so are files that do not look like pictures.
"""

import hashlib
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from vitreous.errors import DataError

IMAGE_SUFFIXES = frozenset(
    ".apng .avif .bmp .gif .heic .heif .ico .j2k .jfif .jp2 .jpe .jpeg .jpg .mpo .pbm .pgm .png .pnm .ppm "
    ".tga .tif .tiff .webp".split()
)
MAX_PACKED_PICTURE = 2**29  # bytes that one picture in a zip may unpack to
SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Split:
    """Pictures and their classes: one part of a data set.

    Args:
        root: the folder or zip that the names are relative to.
        names: of the pictures, with slashes.
        labels: (n,) index of each picture's class in `classes`.
        classes: the names, in the order of the indices.
    """

    root: Path
    names: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def location(self, index: int) -> str:
        """What an error should call this picture."""
        return str(self.root / self.names[index])

    def open(self, index: int) -> Path | bytes:
        """The picture as something that `read_image` takes."""
        if self.root.is_dir():
            return self.root / self.names[index]
        info = self._archive.getinfo(self.names[index])
        if info.file_size > MAX_PACKED_PICTURE:
            raise DataError(f"{self.location(index)} claims {info.file_size:,} bytes: unpack the zip if that is true")
        return self._archive.read(info)

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.root)

    def __getstate__(self) -> dict[str, object]:
        # An open archive is not handed to worker processes: each opens its own.
        return {key: value for key, value in self.__dict__.items() if key != "_archive"}

    def counts(self) -> list[int]:
        """How many pictures each class has."""
        return np.bincount(self.labels, minlength=len(self.classes)).tolist()

    def select(self, indices: Sequence[int] | np.ndarray) -> "Split":
        """Some of the pictures, with the same classes."""
        return Split(self.root, tuple(self.names[i] for i in indices), self.labels[np.asarray(indices)], self.classes)

    def with_classes(self, classes: Sequence[str]) -> "Split":
        """The same pictures, numbered by another list of classes (a model's): it may have more, never fewer.

        Raises:
            DataError: naming the classes that the list lacks.
        """
        position = {name: i for i, name in enumerate(classes)}
        if unknown := [name for name in self.classes if name not in position]:
            raise DataError(
                f"{self.root}: {_named(unknown, 'class')} {'is' if len(unknown) == 1 else 'are'} not among the "
                f"{len(classes)} classes that the model knows ({_some(classes)})"
            )
        order = np.array([position[name] for name in self.classes], dtype=np.int64)
        return Split(self.root, self.names, order[self.labels], tuple(classes))

    def hold_out(self, fraction: float, seed: int = 0) -> tuple["Split", "Split"]:
        """(train, held out): of every class a share chosen by the hash of the names, at least one where it has two.

        The same pictures are held out on every machine, whatever else is in the folder.
        """
        held: list[int] = []
        for label in range(len(self.classes)):
            members = np.flatnonzero(self.labels == label).tolist()
            members.sort(key=lambda i: hashlib.sha256(f"{seed}/{self.names[i]}".encode()).digest())
            count = max(round(fraction * len(members)), 1) if len(members) > 1 else 0
            held += members[:count]
        chosen = set(held)
        return self.select([i for i in range(len(self)) if i not in chosen]), self.select(sorted(chosen))

    def fingerprint(self) -> str:
        """Twelve hex digits that tell whether two splits list the same pictures."""
        return hashlib.sha256("\n".join(sorted(self.names)).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class DataSet:
    """A data set: its splits by name (`train`, `val`, `test`), or one split `all` of a flat folder."""

    root: Path
    splits: dict[str, Split]
    ignored: tuple[str, ...] = field(default=())

    def split(self, name: str) -> Split:
        """One split.

        Raises:
            DataError: when there is none of that name, with those that there are.
        """
        if name not in self.splits:
            raise DataError(f"{self.root} has no split {name!r}: it has {', '.join(self.splits)}")
        return self.splits[name]


def open_data(source: str | Path) -> DataSet:
    """Open a folder or zip of class folders.

    Args:
        source: `DATA/CLASS/picture.jpg`, or `DATA/train/CLASS/picture.jpg` with `val` and `test` beside it.

    Raises:
        DataError: no such path, nothing in it, or pictures where class folders should be.
    """
    root = Path(source)
    if not root.exists():
        raise DataError(f"{root}: no such file or folder")
    names = _names_in_folder(root) if root.is_dir() else _names_in_zip(root)
    pictures = [name for name in names if name.suffix.lower() in IMAGE_SUFFIXES]
    ignored = tuple(str(name) for name in names if name.suffix.lower() not in IMAGE_SUFFIXES)
    if not pictures:
        raise DataError(f"{root} holds no pictures: a folder for every class is expected, with pictures in it")
    is_split = any(len(name.parts) > 2 and SPLITS.get(name.parts[0].lower()) == "train" for name in pictures)
    parts: dict[str, list[PurePosixPath]] = {}
    for name in pictures:
        split = SPLITS.get(name.parts[0].lower()) if is_split else "all"
        if split is not None:  # other folders beside train/ and val/ are no part of the data set
            parts.setdefault(split, []).append(name)
    order = [split for split in ("train", "val", "test", "all") if split in parts]
    return DataSet(root, {split: _make_split(root, parts[split], 1 if is_split else 0) for split in order}, ignored)


def _make_split(root: Path, names: list[PurePosixPath], depth: int) -> Split:
    if loose := [name for name in names if len(name.parts) < depth + 2]:
        raise DataError(
            f"{root / loose[0]} lies in no class folder: put every picture into a folder named after its class"
        )
    names = sorted(names, key=lambda name: (name.parts[depth], str(name)))
    classes = sorted({name.parts[depth] for name in names})
    index = {name: i for i, name in enumerate(classes)}
    labels = np.array([index[name.parts[depth]] for name in names], dtype=np.int64)
    return Split(root, tuple(str(name) for name in names), labels, tuple(classes))


def _names_in_folder(root: Path) -> list[PurePosixPath]:
    found: list[PurePosixPath] = []
    for folder, _, files in os.walk(root, followlinks=True):
        inside = PurePosixPath(Path(folder).relative_to(root).as_posix())
        found += [inside / file for file in files]
    return [name for name in found if not _hidden(name.parts)]


def _names_in_zip(root: Path) -> list[PurePosixPath]:
    try:
        with zipfile.ZipFile(root) as archive:
            found = [PurePosixPath(info.filename) for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{root} is neither a folder nor a whole zip of class folders ({error})") from None
    return [name for name in found if not _hidden(name.parts)]


def _hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith((".", "__")) for part in parts)


def _named(names: Sequence[str], what: str) -> str:
    plural = what + ("es" if what.endswith("s") else "s")
    return f"{what if len(names) == 1 else plural} {_some(names)}"


def _some(names: Sequence[str], most: int = 10) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
