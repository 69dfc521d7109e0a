"""Pictures and files to read, some of the kinds that Pillow cannot write."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, features
from torch import Tensor

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 128, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
AVIF = pytest.param("AVIF", marks=pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF"))


def encode(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def lazily(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def colour(value: int | tuple[int, int, int]) -> Tensor:
    return torch.tensor(value, dtype=torch.uint8).expand(3).view(3, 1, 1)


def noise(height: int = 13, width: int = 9, channels: int | None = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width) if channels is None else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photo(height: int, width: int) -> Image.Image:
    """Something smooth with edges, as photographs are."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    rings = 127 + 100 * np.cos(8 * np.hypot(x - 0.4, y - 0.3)) + 20 * (x > y)
    return Image.fromarray(np.stack([rings, 200 * x, 255 * (1 - y)], -1).clip(0, 255).astype(np.uint8))


def png(width: int, height: int, bits: int, kind: int, data: bytes, transparent: bytes = b"") -> bytes:
    """A PNG of the kinds that Pillow cannot write: samples of 1 to 16 bits, with one transparent colour."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    middle = chunk(b"tRNS", transparent) if transparent else b""
    return b"\x89PNG\r\n\x1a\n" + header + middle + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def tiff(width: int, height: int, bits: int, data: bytes, white_is_zero: bool = False) -> bytes:
    """A grey TIFF of the kinds that Pillow cannot write."""
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 0 if white_is_zero else 1}
    tags |= {273: 8 + 2 + 12 * 8 + 4, 277: 1, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + b"\0\0\0\0" + data
