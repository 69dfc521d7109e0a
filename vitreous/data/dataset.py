"""What every data set looks like once it is open: pictures by number, their classes, and splits by name."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitreous.base.errors import DataError
from vitreous.data.names import View, printable
from vitreous.data.source import Source

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
ORDER = ("train", "val", "test", "all")


@dataclass(frozen=True)
class Split:
    """Pictures and their classes: one part of a data set.

    Args:
        source: where they lie.
        rows: (n,) the source's number of each picture.
        labels: (n,) index of each picture's class in `classes`.
        classes: the names, in the order of the indices.
    """

    source: Source
    rows: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def root(self) -> Path:
        """The folder or file that the names are relative to."""
        return self.source.root

    @property
    def names(self) -> Sequence[str]:
        """(n,) of the pictures, with slashes, printable; made when they are looked at."""
        return View(len(self), lambda index: printable(self.source.name(int(self.rows[index]))))

    def location(self, index: int) -> str:
        """What an error should call this picture."""
        return self.source.location(int(self.rows[index]))

    def open(self, index: int) -> Path | bytes:
        """The picture as something that `read_image` takes."""
        return self.source.open(int(self.rows[index]))

    def counts(self) -> list[int]:
        """How many pictures each class has."""
        return np.bincount(self.labels, minlength=len(self.classes)).tolist()

    def select(self, indices: Sequence[int] | np.ndarray) -> "Split":
        """Some of the pictures, with the same classes."""
        chosen = np.asarray(indices, dtype=None if isinstance(indices, np.ndarray) else np.int64)
        return Split(self.source, self.rows[chosen], self.labels[chosen], self.classes)

    def with_classes(self, classes: Sequence[str]) -> "Split":
        """The same pictures, numbered by another list of classes (a model's): it may have more, never fewer.

        Raises:
            DataError: naming the classes that the list lacks.
        """
        if tuple(classes) == self.classes:
            return self
        position = {name: i for i, name in enumerate(classes)}
        used = [name for name, count in zip(self.classes, self.counts(), strict=True) if count]
        if unknown := [name for name in used if name not in position]:
            raise DataError(
                f"{self.root}: {_named(unknown, 'class')} {'is' if len(unknown) == 1 else 'are'} not among the "
                f"{len(classes)} classes that the model knows ({_some(classes)})"
            )
        order = np.array([position.get(name, -1) for name in self.classes], dtype=np.int64)
        return Split(self.source, self.rows, order[self.labels], tuple(classes))

    def hold_out(self, fraction: float, seed: int = 0) -> tuple["Split", "Split"]:
        """(train, held out): of every class a share chosen by the hash of the names, at least one where it has two.

        The same pictures are held out on every machine, whatever else is in the folder.
        """
        counts = np.bincount(self.labels, minlength=len(self.classes))
        share = np.where(counts > 1, np.maximum(np.rint(fraction * counts), 1), 0)
        order = np.lexsort((self._hashes(f"{seed}/"), self.labels))  # by class, then by hash
        rank = np.arange(len(self)) - np.repeat(np.cumsum(counts) - counts, counts)  # within the class
        held = np.zeros(len(self), dtype=bool)
        held[order[rank < np.repeat(share, counts)]] = True
        return self.select(np.flatnonzero(~held)), self.select(np.flatnonzero(held))

    def fingerprint(self) -> str:
        """Twelve hex digits that tell whether two splits list the same pictures, in whatever order."""
        return hashlib.sha256(np.sort(self._hashes()).astype(">u8").tobytes()).hexdigest()[:12]

    def _hashes(self, prefix: str = "") -> np.ndarray:
        """(n,) uint64 of the names."""
        start = hashlib.sha256(prefix.encode())

        def one(name: bytes | memoryview) -> int:
            digest = start.copy()
            digest.update(name)
            return int.from_bytes(digest.digest()[:8], "big")

        return np.fromiter(map(one, self.source.encoded(self.rows)), np.uint64, len(self))


@dataclass(frozen=True)
class LeftOut:
    """What lies in a data set and is no part of it, by printable names.

    Args:
        others: files that are no pictures, by their names.
        loose: pictures in no class folder.
        outside: pictures in other folders beside train/ and val/.
        hidden: files whose name, or a folder's above them, starts with a dot or `__`.
        empty: class folders without pictures.
    """

    others: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A data set: its splits by name (`train`, `val`, `test`), or one split `all` where it has none.

    Args:
        root: the folder or file.
        splits: by name.
        left_out: what else is there.
    """

    root: Path
    splits: dict[str, Split]
    left_out: LeftOut = field(default=LeftOut())

    def unsplit(self) -> Split | None:
        """All pictures, where no part of them is meant for measuring; otherwise None."""
        name, *more = self.splits
        return self.splits[name] if name in ("train", "all") and not more else None

    def split(self, name: str) -> Split:
        """One split.

        Raises:
            DataError: when there is none of that name, with those that there are.
        """
        if name not in self.splits:
            raise DataError(f"{self.root} has no split {name!r}: it has {', '.join(self.splits)}")
        return self.splits[name]


def split_by_label(
    source: Source, rows: np.ndarray, labels: np.ndarray, names: Sequence[str], order: str = "values"
) -> Split:
    """A split whose labels index any list of class names; its classes are those that occur, sorted.

    Args:
        source: where the pictures lie.
        rows: (n,) the source's number of each picture.
        labels: (n,) index of each picture's class in `names`.
        names: of the classes, in any order.
        order: `"code points"` sorts the names as text (1, 10, 2); `"values"` sorts them by value
            where all are whole numbers (1, 2, 10), and as text otherwise.
    """
    used = np.unique(labels).tolist()
    numbers = order == "values" and all(names[i].isascii() and names[i].isdigit() for i in used)
    ranked = sorted(used, key=lambda i: (int(names[i]) if numbers else 0, names[i]))
    place = np.zeros(len(names), dtype=np.int64)
    place[ranked] = np.arange(len(ranked))
    return Split(source, rows, place[labels], tuple(names[i] for i in ranked))


def in_order(splits: Iterable[tuple[str, Split]]) -> dict[str, Split]:
    """train, val, test, all."""
    return dict(sorted(splits, key=lambda item: ORDER.index(item[0])))


def _named(names: Sequence[str], what: str) -> str:
    plural = what + ("es" if what.endswith("s") else "s")
    return f"{what if len(names) == 1 else plural} {_some(names)}"


def _some(names: Sequence[str], most: int = 10) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
