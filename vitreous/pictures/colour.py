"""From any Pillow picture to upright 8-bit RGB: depth, alpha, colour space, orientation.

Pillow's own `convert("RGB")` turns 16-bit pictures white, floats in [0, 1] black, shows the
colours hidden under transparent pixels, and ignores colour profiles.
"""

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from vitreous.base.errors import ImageError

Colour = tuple[int, int, int]

# EXIF orientation (tag 274) and what brings the picture upright; 1 and unknown values stay as they are.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) where there is none or it cannot be read."""
    try:
        found = image.getexif().get(0x0112, 1)
    except Exception:  # damaged EXIF: no reason to lose the picture
        return 1
    return found if found in _UPRIGHT else 1


def upright(image: Image.Image, turned: int) -> Image.Image:
    """Undo an EXIF orientation."""
    return image.transpose(_UPRIGHT[turned]) if turned in _UPRIGHT else image


def settle_transparency(image: Image.Image) -> None:
    """Bring a PNG's one transparent colour (tRNS) to 8 bits, as Pillow brings the pixels.

    Pillow leaves the colour in the file's own depth, and then it matches the wrong pixels or
    none. The file's depth is known only until the pixels are loaded, so this comes before.
    """
    key, raw = image.info.get("transparency"), _raw_mode(image)
    if isinstance(key, int) and raw in ("L;2", "L;4"):
        image.info["transparency"] = key * (85 if raw == "L;2" else 17)
    elif isinstance(key, tuple) and raw == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in key)


def _raw_mode(image: Image.Image) -> Any:
    tiles = getattr(image, "tile", None)
    return tiles[0][3] if tiles and image.format == "PNG" else None


def flatten(image: Image.Image, background: Colour) -> Image.Image:
    """Any mode to RGB: 8 bits a channel, in sRGB, transparent parts over the background.

    Args:
        image: of any Pillow mode, pixels loaded.
        background: 0 to 255 each, seen through transparent pixels.

    Returns:
        An RGB picture; the one given, when there was nothing to do.

    Raises:
        ImageError: floats outside [0, 1], negative whole numbers.
    """
    colour, alpha = _split(image)
    colour = _to_srgb(colour, image.info.get("icc_profile"))
    if alpha is None:
        return colour
    flat = Image.new("RGB", image.size, background)
    flat.paste(colour, mask=alpha)
    return flat


def _split(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """The colours with 8 bits a channel (L, RGB, CMYK or LAB), and the alpha channel where there is one."""
    mode = image.mode
    if mode.startswith("I;16"):
        return _from_16_bits(image)
    if mode in ("I", "F"):
        values = np.asarray(image)
        return Image.fromarray(from_floats(values) if mode == "F" else _from_integers(values, image)), None
    if image.has_transparency_data and mode != "CMYK":
        if mode in ("LA", "La"):
            grey, alpha = image.convert("LA").split()
            return grey, alpha
        rgba = image.convert("RGBA")
        return rgba.convert("RGB"), rgba.getchannel("A")
    if mode in ("RGB", "L", "CMYK", "LAB"):
        return image, None
    return image.convert("L" if mode == "1" else "RGB"), None


def _from_16_bits(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    values = np.asarray(image)  # (H, W) uint16
    key = image.info.get("transparency")
    alpha = Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)) if isinstance(key, int) else None
    bits = _tiff_tag(image, 258, (16,))[0]  # 12 in some
    if _tiff_tag(image, 262, 1) == 0:  # "white is zero", which Pillow heeds at 8 bits alone
        values = 2**bits - 1 - values
    return Image.fromarray((values >> (bits - 8)).astype(np.uint8)), alpha


def high_byte(values: np.ndarray) -> np.ndarray:
    """uint16 -> uint8 by the high byte, as libpng and Pillow do for 16-bit colour: v // 256."""
    return (values >> 8).astype(np.uint8)


def from_floats(values: np.ndarray) -> np.ndarray:
    """Floats in [0, 1] -> uint8: round(255 v).

    Raises:
        ImageError: for any other value, NaN included.
    """
    low, high = float(values.min()), float(values.max())  # NaN if any is
    if not (low >= 0 and high <= 1):
        found = "NaN" if math.isnan(low) else f"values from {low:.4g} to {high:.4g}"
        raise ImageError(f"{found} among its floats, where a picture has 0 to 1: rescale, or give uint8 from 0 to 255")
    return np.rint(values.astype(np.float32) * np.float32(255)).astype(np.uint8)


def _from_integers(values: np.ndarray, image: Image.Image) -> np.ndarray:
    """32-bit integers -> uint8.

    Their type does not say what white is. It is taken to be the largest value of 8, 16 or
    all bits, whichever is the first to hold them: with a larger one all would be black.
    """
    if image.format in ("PPM", "PNG"):
        return high_byte(values)  # 16 bits in the file, 32 in Pillow
    whole = 31
    if image.format == "TIFF" and _tiff_tag(image, 339, (1,)) == (1,):  # unsigned, which Pillow reads as signed
        values, whole = values.view(np.uint32), 32
    low, high = int(values.min()), int(values.max())
    if low < 0:
        raise ImageError(f"negative values (down to {low}), which no picture has: rescale, or give floats in [0, 1]")
    bits = next(bits for bits in (8, 16, whole) if high < 2**bits)
    return (values >> (bits - 8)).astype(np.uint8)


def _tiff_tag(image: Image.Image, tag: int, default: Any) -> Any:
    return getattr(image, "tag_v2", {}).get(tag, default)


def _to_srgb(colour: Image.Image, profile: bytes | None) -> Image.Image:
    """Through the embedded profile where it makes a difference; one that does not fit leaves the pixels alone."""
    if colour.mode == "LAB":
        return _lab_to_srgb().apply(colour)
    if profile and (transform := _srgb_transform(profile, colour.mode)) is not None:
        return transform.apply(colour)
    if colour.mode == "L" and profile and _srgb_transform(profile, "RGB") is not None:
        return _to_srgb(colour.convert("RGB"), profile)  # a grey picture may carry an RGB profile
    return colour if colour.mode == "RGB" else colour.convert("RGB")


@lru_cache(maxsize=1)
def _lab_to_srgb() -> Any:
    from PIL import ImageCms

    return ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB")


@lru_cache(maxsize=32)
def _srgb_transform(profile: bytes, mode: str) -> Any | None:
    """The transform from a profile to sRGB, or None: not for this mode, broken, or sRGB by another name."""
    try:
        from PIL import ImageCms

        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK"}.get(source.profile.xcolor_space.strip()) != mode:
            return None
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
        if mode == "CMYK":
            return transform
        probe = _every_colour().convert(mode)
        moved = np.abs(np.asarray(transform.apply(probe), np.int16) - np.asarray(probe.convert("RGB"), np.int16))
    except Exception:  # no littlecms, or a profile it refuses
        return None
    return transform if moved.max() > 2 else None


def _every_colour() -> Image.Image:
    """A cube of 18 levels a channel, black to white."""
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1)  # (18, 18, 18, 3)
    return Image.fromarray(cube.reshape(18 * 18, 18, 3))
