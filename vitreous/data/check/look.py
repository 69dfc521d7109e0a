"""A look at every picture: can it be read, what is it, and what does it show in small."""

import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader

from vitreous.base.errors import VitreousError
from vitreous.base.machine import cores
from vitreous.data.dataset import Split
from vitreous.data.loading import leave_signals_to_parent
from vitreous.pictures.colour import orientation
from vitreous.pictures.images import FORMATS, MAX_PIXELS, open_rgb

GREY, COLOUR = 32, 8  # pixels a side of the two thumbnails that near-duplicates are compared by
DETAIL = 2 * GREY  # pixels a side that a JPEG keeps at least
FLAT = 4  # levels of 255 between the darkest and the lightest pixel of a picture of one colour


@dataclass(frozen=True)
class Look:
    """What one picture told.

    Args:
        error: why it cannot be read, and None where it can.
        kind: of error: `"empty"`, `"cut off"`, `"too large"` or `"unreadable"`.
        size: bytes of the file.
        contents: hash of the file.
        format, mode: as Pillow calls them; empty where the header cannot be read.
        width, height: pixels as stored.
        turned: EXIF orientation, 1 to 8.
        transparent: whether it has an alpha channel or a transparent colour.
        animated: whether it has several frames.
        flat: whether it is of one colour.
        pixels: hash of the upright RGB pixels, of a large JPEG at a fraction of its size.
        gradient: 64 bits: whether each of 8 x 8 cells is darker than its right neighbour.
        grey: (GREY, GREY) uint8.
        colour: (COLOUR, COLOUR, 3) uint8.
    """

    error: str | None = None
    kind: str = ""
    size: int = 0
    contents: bytes = b""
    format: str = ""
    mode: str = ""
    width: int = 0
    height: int = 0
    turned: int = 1
    transparent: bool = False
    animated: bool = False
    flat: bool = False
    pixels: bytes = b""
    gradient: int = 0
    grey: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    colour: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))


class Looks:
    """The looks at a split's pictures, by index."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Look:
        return look(self.split, index)


def look_at_all(split: Split, num_workers: int | None = None) -> Iterator[list[Look]]:
    """All pictures in order, some at a time.

    Args:
        split: the pictures.
        num_workers: processes; None for one a core, as this process only waits for them.
    """
    if num_workers is None:
        num_workers = cores() if len(split) > 200 else 0
    loader: DataLoader[Any] = DataLoader(
        Looks(split),  # type: ignore[arg-type]
        batch_size=16,
        num_workers=num_workers,
        collate_fn=list,
        worker_init_fn=leave_signals_to_parent,
    )
    return iter(loader)


def look(split: Split, index: int) -> Look:
    """Read one picture; never raises."""
    try:
        source = split.open(index)
        data = source.read_bytes() if isinstance(source, Path) else source
    except FileNotFoundError:
        return Look(error="no such file", kind="missing")
    except OSError as error:
        return Look(error=error.strerror or str(error), kind="unreadable")
    except VitreousError as error:
        return Look(error=_reason(str(error), split, index), kind="unreadable")
    facts: dict[str, Any] = {"size": len(data), "contents": hashlib.blake2b(data, digest_size=16).digest()}
    if not data:
        return Look(error="0 bytes", kind="empty", **facts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on harmless damage
        facts |= _header(data)
        try:
            picture = open_rgb(data, at_least=(DETAIL, DETAIL))
        except VitreousError as error:
            return Look(error=_reason(str(error), split, index), kind=_kind(str(error), facts), **facts)
        return Look(**facts, **_contents(picture))


def _header(data: bytes) -> dict[str, Any]:
    try:
        image = Image.open(io.BytesIO(data), formats=readable_formats())
    except Exception:  # decoders raise nearly anything on damaged files; reading the picture says what is wrong
        return {}
    with image:
        return {
            "format": image.format or "",
            "mode": image.mode,
            "width": image.width,
            "height": image.height,
            "turned": orientation(image),
            "transparent": "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info,
            "animated": image.format != "MPO" and bool(getattr(image, "is_animated", False)),
        }


def readable_formats() -> list[str]:
    """Those that this Pillow reads, of those that vitreous takes."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _contents(picture: Image.Image) -> dict[str, Any]:
    pixels = np.asarray(picture)  # (H, W, 3)
    # A box filter averages over whole cells, so that another encoding or size changes them little.
    grey = picture.convert("L")
    cells = np.asarray(grey.resize((9, 8), Image.Resampling.BOX), np.int16)  # (8, 9)
    bits = cells[:, :-1] < cells[:, 1:]  # (8, 8)
    return {
        "flat": all(int(high) - int(low) < FLAT for low, high in picture.getextrema()),  # type: ignore[misc]
        "pixels": hashlib.blake2b(pixels.tobytes(), digest_size=16, salt=_salt(picture.size)).digest(),
        "gradient": int.from_bytes(np.packbits(bits).tobytes(), "big"),
        "grey": np.asarray(grey.resize((GREY, GREY), Image.Resampling.BOX)),
        "colour": np.asarray(picture.resize((COLOUR, COLOUR), Image.Resampling.BOX)),
    }


def _salt(size: tuple[int, int]) -> bytes:
    """2 x 8 and 4 x 4 pixels of the same values in a row are different pictures."""
    return b"".join(side.to_bytes(8, "big") for side in size)


def _kind(error: str, facts: dict[str, Any]) -> str:
    if facts.get("width", 0) * facts.get("height", 0) > MAX_PIXELS or "too many pixels" in error:
        return "too large"
    return "cut off" if "truncated" in error else "unreadable"


def _reason(error: str, split: Split, index: int) -> str:
    """Without the picture's name and without advice, both of which are given otherwise."""
    for name in (split.location(index), "picture of"):
        if error.startswith(name):
            error = error.partition(": ")[2] or error
    return re.split(r": (?:get|give|save|unpack) |; ", error)[0]
