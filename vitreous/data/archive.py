"""Zip and tar files of class folders, read in place: every picture is found by its offset, in any order."""

import tarfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitreous.base.errors import DataError, ImageError
from vitreous.data.dataset import DataSet
from vitreous.data.folder import Listing, arrange, is_hidden
from vitreous.data.names import Names
from vitreous.data.source import Listed

MAX_PACKED_PICTURE = 2**29  # bytes that one picture in a zip may unpack to
_LOCAL_HEADER = 30  # bytes of a zip's local file header, before the name
_ENCRYPTED, _UTF8 = 0x1, 0x800  # bits of a zip entry's flags


class Packed(Listed):
    """Pictures inside one or more large files."""

    def __init__(self, root: Path, names: Names, offsets: np.ndarray, sizes: np.ndarray) -> None:
        super().__init__(root, names)
        self.offsets, self.sizes = offsets, sizes

    @abstractmethod
    def open(self, row: int) -> bytes: ...

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Some bytes of a file, opened anew each time: that costs microseconds, and leaves processes nothing to share.

        Raises:
            ImageError: the file ends before, or cannot be read.
        """
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise ImageError(f"{path}: {error.strerror}") from None
        if len(data) < size:
            raise ImageError(f"{path} is cut off: it ends before byte {offset + size:,}; get another copy")
        return data


class Tar(Packed):
    """Files in a tar that is not compressed."""

    def open(self, row: int) -> bytes:
        return self.read(self.root, int(self.offsets[row]), int(self.sizes[row]))


class Zip(Packed):
    """Files in a zip, stored or deflated.

    Python's `zipfile` would keep an object an entry, in every worker process, and read the whole
    directory there anew; this keeps five numbers an entry.

    Args:
        offsets: (n,) of the local headers.
        sizes: (n,) packed bytes.
        unpacked: (n,) bytes once unpacked.
        methods: (n,) how each is packed.
        checksums: (n,) CRC-32.
    """

    def __init__(
        self,
        root: Path,
        names: Names,
        offsets: np.ndarray,
        sizes: np.ndarray,
        unpacked: np.ndarray,
        methods: np.ndarray,
        checksums: np.ndarray,
    ) -> None:
        super().__init__(root, names, offsets, sizes)
        self.unpacked, self.methods, self.checksums = unpacked, methods, checksums

    def open(self, row: int) -> bytes:
        where = self.location(row)
        offset, size, expected = int(self.offsets[row]), int(self.sizes[row]), int(self.unpacked[row])
        if expected > MAX_PACKED_PICTURE:
            raise ImageError(f"{where} claims {expected:,} bytes: unpack the zip if that is true")
        header = self.read(self.root, offset, _LOCAL_HEADER)
        # The name and the extra field are repeated here, and the extra one's length may differ from the directory's.
        skip = _LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        data = self.read(self.root, offset + skip, size)
        if self.methods[row] == zipfile.ZIP_DEFLATED:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, expected + 1)
            except zlib.error as error:
                raise ImageError(f"{where} is damaged inside the zip ({error}): get another copy") from None
        if len(data) != expected or zlib.crc32(data) != self.checksums[row]:
            raise ImageError(f"{where} is damaged inside the zip (wrong checksum): get another copy")
        return data


def open_zip(root: Path) -> DataSet:
    """A zip of class folders.

    Raises:
        DataError: not a whole zip, encrypted, or packed in a way that is not read in place.
    """
    try:
        with zipfile.ZipFile(root) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, UnicodeDecodeError) as error:
        raise DataError(f"{root} is neither a folder nor a whole zip or tar of class folders ({error})") from None
    shown = [info for info in entries if not info.is_dir() and not is_hidden(info.filename)]
    for info in shown:
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            what = "encrypted" if info.flag_bits & _ENCRYPTED else f"packed by method {info.compress_type}"
            raise DataError(f"{root}: {info.filename!r} is {what}: unpack the zip, or zip it anew without that")
    numbers = np.array(
        [(i.header_offset, i.compress_size, i.file_size, i.compress_type, i.CRC) for i in shown], dtype=np.int64
    ).reshape(-1, 5)
    listing = Listing(
        [info.filename for info in shown],
        [info.filename for info in entries if not info.is_dir() and is_hidden(info.filename)],
        [info.filename.rstrip("/") for info in entries if info.is_dir() and not is_hidden(info.filename)],
    )
    return arrange(Zip(root, Names.pack(listing.files), *numbers.T), listing)


def open_tar(root: Path, members: "Sequence[Member]") -> DataSet:
    """A tar of class folders, whose files and folders `scan_tar` listed."""
    shown = [member for member in members if member[2] >= 0 and not is_hidden(member[0])]
    listing = Listing(
        [name for name, _, _ in shown],
        [name for name, _, size in members if size >= 0 and is_hidden(name)],
        [name for name, _, size in members if size < 0 and not is_hidden(name)],
    )
    offsets, sizes = (np.array([member[k] for member in shown], dtype=np.int64) for k in (1, 2))
    return arrange(Tar(root, Names.pack(listing.files), offsets, sizes), listing)


Member = tuple[str, int, int]  # name, offset of the contents, bytes; -1 bytes for a folder


def scan_tar(path: Path) -> list[Member]:
    """The files and folders in a tar, found by its headers alone.

    Raises:
        DataError: compressed, or not a whole tar.
    """
    found: list[Member] = []
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep an object for each
                name = member.name.removeprefix("./")
                if member.isreg() and not member.issparse():
                    found.append((name, member.offset_data, member.size))
                elif member.isdir() and name != ".":
                    found.append((name, member.offset_data, -1))
            end = archive.offset  # where a block of zeros marks the end
    except (tarfile.TarError, OSError, EOFError) as error:
        with path.open("rb") as file:
            head = file.read(6)
        if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")):
            raise DataError(
                f"{path} is compressed, so that single pictures in it cannot be reached: decompress it first; "
                "JPEGs hardly grow by that"
            ) from None
        raise DataError(f"{path} is not a whole tar ({error}): get another copy") from None
    if path.stat().st_size < end + tarfile.BLOCKSIZE:
        raise DataError(f"{path} is cut off after {found[-1][0] if found else 'nothing'!r}: get another copy")
    return found
