"""Where pictures lie: names and bytes by row."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitreous.data.names import Names, printable


class Source(ABC):
    """Where pictures lie: names and bytes by row. One is shared by all splits, and goes to worker processes."""

    root: Path

    @abstractmethod
    def name(self, row: int) -> str:
        """The picture's name within the root, with slashes."""

    @abstractmethod
    def open(self, row: int) -> Path | bytes:
        """The picture as something that `read_image` takes.

        Raises:
            VitreousError: it cannot be had.
        """

    def encoded(self, rows: np.ndarray) -> Iterator[bytes | memoryview]:
        """The names of some rows in UTF-8, as they are."""
        return (self.name(int(row)).encode("utf-8", "surrogateescape") for row in rows)

    def location(self, row: int) -> str:
        """What an error should call the picture: printable, on one line."""
        return printable(str(self.root / self.name(row)))


class Listed(Source):
    """A source that lists the names of its files.

    Args:
        root: the folder or file that they lie in.
        names: of all files, by row.
    """

    def __init__(self, root: Path, names: Names) -> None:
        self.root, self.names = root, names

    def name(self, row: int) -> str:
        return self.names[row]

    def encoded(self, rows: np.ndarray) -> Iterator[bytes | memoryview]:
        return self.names.encoded(rows)
