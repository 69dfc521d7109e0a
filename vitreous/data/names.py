"""Many names in two arrays: a hundred million of them take the bytes they have, and nothing per name in Python."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

_BLOCK = 2**16  # names that are Python's at a time


class Names(Sequence[str]):
    """Strings, laid out as Arrow does: name i is `data[offsets[i]:offsets[i + 1]]`, in UTF-8.

    Names of files that are not UTF-8 survive as they are (`surrogateescape`).

    Args:
        data: (bytes,) uint8, all names in a row.
        offsets: (n + 1,) integers.
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        self.data, self.offsets = data, offsets

    @classmethod
    def pack(cls, names: Iterable[str]) -> "Names":
        """From strings, of which there are so few that they were Python's already."""
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(name) for name in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    @classmethod
    def from_arrow(cls, column: Any) -> "Names":
        """From a `pyarrow` array or chunked array of strings without nulls, without copying an array's bytes."""
        import pyarrow

        column = column.cast(pyarrow.large_string())
        array = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
        _, offsets, data = array.buffers()
        starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        return cls(np.frombuffer(data or b"", np.uint8), starts if len(array) else np.zeros(1, np.int64))

    @classmethod
    def concatenate(cls, parts: "Sequence[Names]") -> "Names":
        """All names of all parts, in order."""
        data = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
        starts = np.cumsum([0, *(len(d) for d in data)])
        offsets = [part.offsets[1:] - part.offsets[0] + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate(data), np.concatenate([np.zeros(1, np.int64), *offsets]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        place = range(len(self))[index]
        raw = self.data[self.offsets[place] : self.offsets[place + 1]].tobytes()
        return raw.decode("utf-8", "surrogateescape")

    def encoded(self, indices: np.ndarray) -> Iterator[memoryview]:
        """The bytes of some names, one after the other."""
        data = self.data.data
        for start in range(0, len(indices), _BLOCK):
            block = indices[start : start + _BLOCK]
            yield from map(
                lambda first, last: data[first:last], self.offsets[block].tolist(), self.offsets[block + 1].tolist()
            )


class View(Sequence[str]):
    """Names made when they are looked at: a sequence of `count` strings from a function of the position."""

    def __init__(self, count: int, name: Callable[[int], str]) -> None:
        self._count, self._name = count, name

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._count)))
        return self._name(range(self._count)[index])

    def __iter__(self) -> Iterator[str]:
        return (self._name(i) for i in range(self._count))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self[:3]))}{', ...' if len(self) > 3 else ''})"


def printable(name: str) -> str:
    """A name as one line that can be printed and written as UTF-8, whatever the file system holds."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
