"""Reading `.npz` archives from anywhere: nothing is unpickled, and no size is believed before it is checked.

An `.npz` is a zip of `.npy` files, each of them a short header (dtype, order, shape) and the numbers.
The headers are read at once and the numbers one array at a time, so that a checkpoint never
lies in memory twice.
"""

import io
import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitreous.base.errors import WeightsError

MAX_HEADER = 10_000  # bytes of an array's own header, as numpy has it
MAX_DEFLATE_RATIO = 1032  # the most that a zip's deflate can shrink anything: more is a lie in the directory
FLOATS = ("f2", "f4", "f8")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip knows: the same weights give the same file


@dataclass(frozen=True)
class Member:
    """One array of an archive, as its header describes it."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header: int  # bytes before the numbers

    @property
    def is_bfloat16(self) -> bool:
        """Numpy knows no bfloat16 and stores it as two nameless bytes."""
        return self.dtype.kind == "V" and self.dtype.itemsize == 2 and self.dtype.fields is None

    @property
    def is_float(self) -> bool:
        """Whether its numbers can be weights."""
        return self.is_bfloat16 or self.dtype.str[1:] in FLOATS


class NpzReader:
    """An open `.npz` file: `members` by name, their numbers when asked for, and the zip's `comment`.

    Args:
        path: the file; it is open until the `with` block ends.

    Raises:
        WeightsError: not a whole archive, one that claims more than it can hold, or one with pickled objects.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with damage_named(path):
            self._archive = zipfile.ZipFile(path)
        self.comment = self._archive.comment
        try:
            with damage_named(path):
                self.members = self._read_headers()
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> "NpzReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._archive.close()

    def check_floats(self, names: Iterable[str]) -> None:
        """Refuse, before anything is read, arrays that cannot be weights."""
        for name in names:
            if not self.members[name].is_float:
                raise WeightsError(f"{self.path}: {name} is of type {self.members[name].dtype}, not floating point")

    def read(self, name: str) -> Tensor:
        """One array of floating point, in the dtype of the file."""
        (array,) = self._iter_parts(name, parts=1)
        member = self.members[name]
        return array.reshape(member.shape[::-1]).permute(*range(len(member.shape))[::-1]) if member.fortran else array

    def iter_slices(self, name: str) -> Iterator[Tensor]:
        """One array slice by slice along its first axis, so that only one slice is held."""
        member = self.members[name]
        if member.fortran:  # its slices do not lie in one piece
            yield from self.read(name)
        else:
            yield from self._iter_parts(name, parts=member.shape[0])

    def _read_headers(self) -> dict[str, Member]:
        members: dict[str, Member] = {}
        room = self.path.stat().st_size
        for info in self._archive.infolist():
            room -= info.compress_size
            if room < 0 or info.file_size > MAX_DEFLATE_RATIO * info.compress_size + 1024:
                raise WeightsError(f"{self.path}: {info.filename} claims more bytes than the file can hold")
            name = info.filename.removesuffix(".npy")
            if name in members:
                raise WeightsError(f"{self.path} holds {name} twice")
            with self._archive.open(info) as file:
                members[name] = self._read_header(io.BytesIO(file.read(MAX_HEADER + 12)), info)
        return members

    def _read_header(self, file: IO[bytes], info: zipfile.ZipInfo) -> Member:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise WeightsError(f"{self.path}: {info.filename} has an array format {version} that is not known")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=MAX_HEADER)
        if dtype.hasobject:
            raise WeightsError(
                f"{self.path}: {info.filename} holds pickled Python objects, which can run code: not opened. "
                "Save the arrays as plain numbers, or the model as .safetensors"
            )
        if 0 in shape or math.prod(shape) * dtype.itemsize != info.file_size - file.tell():
            raise WeightsError(f"{self.path}: {info.filename} claims shape {shape}, which is not what the file holds")
        return Member(info, shape, dtype, fortran and len(shape) > 1, file.tell())

    def _iter_parts(self, name: str, parts: int) -> Iterator[Tensor]:
        """The numbers in the order of the file, in `parts` equal pieces; the last one read proves the checksum."""
        member = self.members[name]
        shape = member.shape if parts == 1 else member.shape[1:]
        with damage_named(self.path), self._archive.open(member.info) as file:
            file.read(member.header)  # not seek, which would switch the checksum off
            for _ in range(parts):
                array = np.empty(math.prod(shape), member.dtype)
                if file.readinto(array.view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
                    raise EOFError(f"{name} ends early")
                if member.is_bfloat16:
                    yield torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).reshape(shape)
                else:
                    yield torch.from_numpy(array.astype(member.dtype.newbyteorder("="), copy=False)).reshape(shape)


class NpzWriter:
    """Writes an `.npz` archive array by array, uncompressed; equal arrays give equal files.

    Args:
        file: an open binary file.
        comment: of the zip as a whole, at most 65,535 bytes.
    """

    def __init__(self, file: IO[bytes], comment: bytes = b"") -> None:
        self._archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self._archive.comment = comment

    def __enter__(self) -> "NpzWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._archive.close()

    def write(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Add one array."""
        with self._archive.open(zipfile.ZipInfo(f"{name}.npy", EPOCH), "w", force_zip64=True) as member:
            np.lib.format.write_array(member, array, allow_pickle=False)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a foreign file is parsed is the file's fault, and said so by name.

    The parsers (zipfile, zlib, struct, numpy) raise a dozen unrelated types on damaged input.
    """
    try:
        yield
    except (WeightsError, KeyboardInterrupt, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise WeightsError(f"{path} is not a whole .npz file ({reason}): download or copy it again") from None
