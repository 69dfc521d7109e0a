"""Reading a picture, whatever it is and wherever it comes from, as RGB pixels."""

import contextlib
import io
import logging
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from vitreous.base.errors import ImageError
from vitreous.base.extras import need
from vitreous.config import Size
from vitreous.pictures.colour import (
    Colour,
    flatten,
    from_floats,
    high_byte,
    orientation,
    settle_transparency,
    upright,
)

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | np.ndarray | Tensor

WHITE: Colour = (255, 255, 255)
MAX_PIXELS = 178_956_970  # where Pillow refuses too: twice `PIL.Image.MAX_IMAGE_PIXELS`

# The formats of Pillow that hold pixels. Left out: those that start another program (EPS), need Windows (WMF),
# or that Pillow recognises without being able to read.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM", "JPEG2000", "ICO", "ICNS", "CUR"),
    *("DIB", "PSD", "QOI", "SGI", "PCX", "DDS", "TGA"),
)
_HEIF = re.compile(rb"....ftyp(hei[cmsx]|hev[cmsx]|mif[12]|msf1)", re.DOTALL)
_BEGINNINGS = {  # to tell a damaged picture from something else
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG",
    "GIF": rb"GIF8",
    "TIFF": rb"II\*\0|MM\0\*",
    "WebP": rb"RIFF....WEBP",
    "AVIF": rb"....ftypavi",
    "JPEG 2000": rb"\0\0\0\x0cjP",
}
_REDUCTIONS = (8, 4, 2)  # the scales of a JPEG's discrete cosine transform

_log = logging.getLogger(__name__)
_quiet = threading.Lock()


def read_image(
    source: ImageSource,
    *,
    background: Colour = WHITE,
    max_pixels: int = MAX_PIXELS,
    allow_truncated: bool = False,
    at_least: Size | None = None,
) -> Tensor:
    """Read one picture as upright RGB.

    The same picture gives the same pixels whichever way it comes. Files are turned upright
    by their EXIF orientation, brought to sRGB by their embedded colour profile, and reduced
    to 8 bits by the high byte; of several frames the first counts.

    Args:
        source: a path, the bytes of a file, a Pillow image, a numpy array (H, W), (H, W, 1),
            (H, W, 2), (H, W, 3) or (H, W, 4), or a tensor (H, W) or (C, H, W) of as many
            channels: grey, grey with alpha, RGB, RGB with alpha. uint8, uint16, or floats
            from 0 to 1, which become round(255 v).
        background: what is seen through transparent pixels, 0 to 255 each of (R, G, B).
        max_pixels: H x W above which a file is refused, by its header, before it is decoded.
            Above 178,956,970 `PIL.Image.MAX_IMAGE_PIXELS` has to be raised as well.
        allow_truncated: of a file that is cut off or damaged keep what can be decoded, the
            rest black or grey, and say so in the log, instead of refusing it.
        at_least: (h, w) that the upright picture will be resized to, in pixels. A JPEG is then
            decoded at 1/2, 1/4 or 1/8 of its size (by its discrete cosine transform, several
            times as fast) so long as that divides both sides and leaves them at least twice
            as large. Once resized with antialiasing, photographs differ from the full decode
            by less than 0.5 of 255 levels in the mean and 12 at most, drawings by up to 2.

    Returns:
        (3, H, W) uint8. It is a view of (H, W, 3) in memory ("channels last").

    Raises:
        ImageError: one line with the picture's name, what is wrong, and the way out.
    """
    image = open_rgb(
        source, background=background, max_pixels=max_pixels, allow_truncated=allow_truncated, at_least=at_least
    )
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def open_rgb(
    source: ImageSource,
    *,
    background: Colour = WHITE,
    max_pixels: int = MAX_PIXELS,
    allow_truncated: bool = False,
    at_least: Size | None = None,
) -> Image.Image:
    """`read_image`, as a Pillow image of mode RGB; an upright RGB Pillow image comes back itself, not a copy."""

    def read() -> Image.Image:
        with _opened(source, max_pixels) as image:
            settle_transparency(image)
            turned = 1
            if image.format in ("JPEG", "MPO") and at_least is not None and not isinstance(source, Image.Image):
                _decode_reduced(image, at_least if orientation(image) < 5 else at_least[::-1])
            _load(image, name, allow_truncated)
            turned = orientation(image)  # after loading: Pillow turns a TIFF itself, and a PNG's EXIF may come last
            return upright(flatten(image, background), turned)

    name = _name(source)
    if len(background) != 3 or not all(isinstance(level, int) and 0 <= level <= 255 for level in background):
        raise ImageError(f"{name}: the background must be (R, G, B) from 0 to 255, got {background!r}")
    try:
        try:
            return read()
        except Warning:
            # Where warnings are errors, Pillow's remarks on harmless damage would lose the picture. The filters
            # belong to the whole process: nothing else of ours may change them meanwhile.
            with _quiet, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return read()
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error.__cause__
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"{name}: too many pixels, as Pillow counts them; if you trust it, raise "
            f"PIL.Image.MAX_IMAGE_PIXELS and max_pixels ({_one_line(error)})"
        ) from error
    except MemoryError as error:
        raise ImageError(f"{name}: does not fit in memory; lower max_pixels to have such pictures refused") from error
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise ImageError(f"{name}: damaged, it cannot be decoded; get another copy ({_one_line(error)})") from error


@contextlib.contextmanager
def _opened(source: ImageSource, max_pixels: int) -> Iterator[Image.Image]:
    """The picture with its header read and its size checked, pixels not yet decoded."""
    if isinstance(source, Image.Image):
        _check_size(source.size, max_pixels)
        yield source
    elif isinstance(source, (np.ndarray, Tensor)):
        yield _from_array(source)
    elif isinstance(source, (str, os.PathLike)):
        with _open_file(Path(source)) as file, _identify(file) as image:
            _check_size(image.size, max_pixels)
            yield image
    elif isinstance(source, (bytes, bytearray, memoryview)):
        if not len(source):
            raise ImageError("empty (0 bytes): give the whole contents of a picture file")
        with _identify(io.BytesIO(source)) as image:
            _check_size(image.size, max_pixels)
            yield image
    else:
        raise ImageError("not a picture: give a path, bytes, a Pillow image, a numpy array or a torch tensor")


def _open_file(path: Path) -> IO[bytes]:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError("is a folder: give one of the picture files in it")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("is not a regular file: give a picture file, or its bytes")
        if not status.st_size:
            raise ImageError("empty (0 bytes): get another copy")
        return path.open("rb")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ImageError(f"no such file{where}: check the path") from None
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}") from error


def _identify(file: IO[bytes]) -> Image.Image:
    """Read the header, by the contents alone: the name of a file proves nothing."""
    try:
        return Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        file.seek(0)
        head = file.read(32)
        file.seek(0)
        if _HEIF.match(head):
            return _identify_heif(file)
        for kind, beginning in _BEGINNINGS.items():
            if re.match(beginning, head, re.DOTALL):
                raise ImageError(f"damaged, or a kind of {kind} that cannot be decoded: save it anew") from None
        raise ImageError(
            f"not a picture (it begins with {head[:12]!r}): give JPEG, PNG, WebP, GIF, TIFF, AVIF or the like"
        ) from None


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(format for format in FORMATS if format in Image.OPEN)  # older versions of Pillow lack some


def _identify_heif(file: IO[bytes]) -> Image.Image:
    heif = need("pillow_heif", extra="heif", for_="HEIC", error=ImageError)
    opened: Image.Image = heif.HeifImageFile(file)
    return opened


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise ImageError(
            f"{width}x{height} pixels are more than the {max_pixels:,} allowed; if you trust it, raise max_pixels"
        )
    if width < 1 or height < 1:
        raise ImageError(f"has no pixels ({width}x{height})")


def _decode_reduced(image: Image.Image, at_least: Size) -> None:
    """Set a JPEG to decode at the smallest scale that still has twice the pixels needed, each way.

    Only scales that divide both sides: otherwise the last column stands for less than a
    whole pixel, and the picture comes out stretched.
    """
    (width, height), (h, w) = image.size, at_least
    for n in _REDUCTIONS:
        if width % n == 0 and height % n == 0 and width // n >= 2 * w and height // n >= 2 * h:
            image.draft(None, (width // n, height // n))
            return


def _load(image: Image.Image, name: str, allow_truncated: bool) -> None:
    """Decode the pixels."""
    try:
        image.load()
    except OSError as error:
        reason = f"{'truncated' if 'truncated' in str(error) else 'damaged'} ({_one_line(error)})"
        if not allow_truncated:
            raise ImageError(f"{reason}: get another copy, or keep what can be decoded with allow_truncated") from error
        _keep_decoded(image)
        if getattr(image, "_im", None) is None or _one_colour(image):
            raise ImageError(f"{reason}, no part of it can be decoded: get another copy") from error
        _log.warning("%s: %s, the missing part is black or grey", name, reason)


def _keep_decoded(image: Any) -> None:
    """Have Pillow take what it could decode of a picture. Its own switch for this is one for the whole process."""
    if image.format in ("JPEG", "MPO"):
        end = iter([b"\xff\xd9"])  # the end-of-image marker, after which libjpeg hands out even a progressive picture
        image.load_read = lambda size: image.fp.read(size) or next(end, b"")
        with contextlib.suppress(OSError):
            image.load()
    image.tile = []  # nothing left to read: the pixels decoded before the error are in the picture already


def _one_colour(image: Image.Image) -> bool:
    levels: Any = image.getextrema()  # (low, high), of each channel where there are several
    return all(low == high for low, high in (levels if isinstance(levels[0], tuple) else (levels,)))


def _from_array(array: np.ndarray | Tensor) -> Image.Image:
    """Pixels in memory: numpy has the channels last, torch has them first."""
    if isinstance(array, Tensor):
        order, example = "(H, W) or (C, H, W)", "image.permute(2, 0, 1)"
        array = array.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).numpy()
        pixels = array.transpose(1, 2, 0) if array.ndim == 3 else array  # (H, W, C)
    else:
        order, example = "(H, W) or (H, W, C)", "image.transpose(1, 2, 0)"
        pixels = array
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and not 1 <= pixels.shape[2] <= 4):
        hint = f", such as {example}" if array.ndim == 3 else ", one picture at a time"
        raise ImageError(f"shape {tuple(array.shape)} where {order} with 1 to 4 channels is needed{hint}")
    if not pixels.size:
        raise ImageError(f"has no pixels (shape {tuple(array.shape)})")
    if pixels.dtype.kind == "u" and pixels.itemsize == 2:
        pixels = high_byte(pixels)
    elif pixels.dtype.kind == "f":
        pixels = from_floats(pixels)
    elif pixels.dtype != np.uint8:
        raise ImageError(f"{pixels.dtype} values do not say what white is: give uint8, uint16, or floats in [0, 1]")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(pixels))


def _name(source: object) -> str:
    """What to call a picture in a message: one line, printable whatever the file system holds."""
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
    elif isinstance(source, Image.Image):
        name = os.fspath(getattr(source, "filename", "")) or f"Pillow image of mode {source.mode}"
    elif isinstance(source, (bytes, bytearray, memoryview)):
        name = f"picture of {len(source)} bytes"
    else:
        name = f"{type(source).__module__}.{type(source).__name__}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in os.fsdecode(name))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
