"""Any picture to RGB: every depth, colour mode, profile and transparency."""

import struct

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from tests.pictures.making import BLACK, BLUE, GREEN, RED, WHITE, colour, encode, lazily, noise, png, tiff
from vitreous.pictures.images import read_image

# --- depth and colour ------------------------------------------------------------------------------------------


def test_16_bit_ramp_keeps_its_mean_and_order() -> None:
    ramp = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    image = Image.fromarray(ramp)
    data = encode(image)
    pgm = b"P5 64 64 65535\n" + ramp.astype(">u2").tobytes()
    for source in (ramp, data, lazily(data), encode(image, "TIFF"), pgm, encode(image, "JPEG2000")):
        values = read_image(source)[0].flatten().int()
        assert abs(values.float().mean() - 127.5) < 1
        assert (values.diff() >= 0).all()
        assert (values[0], values[-1]) == (0, 255)
        assert torch.equal(read_image(source), read_image(ramp))


def test_16_bit_colour_is_reduced_as_16_bit_grey_is() -> None:
    levels = np.arange(0, 65536, 97, dtype=np.uint16)
    row = b"\0" + np.repeat(levels, 3).astype(">u2").tobytes()
    image = read_image(png(len(levels), 1, 16, 2, row))
    assert torch.equal(image, read_image(levels[None]))


@pytest.mark.parametrize(("bits", "full"), [(12, 4095), (16, 65535)])
def test_tiff_of_12_and_16_bits_either_way_up(bits: int, full: int) -> None:
    values = np.array([0, full // 3, full // 2 + 1, full])
    if bits == 16:
        data = values.astype("<u2").tobytes()
    else:  # two samples in three bytes
        packed = [(a << 12 | b).to_bytes(3, "big") for a, b in values.reshape(2, 2).tolist()]
        data = b"".join(packed)
    want = torch.tensor([0, 85, 128, 255])
    assert torch.equal(read_image(tiff(4, 1, bits, data))[0, 0].long(), want)
    if bits == 16:
        flipped = read_image(tiff(4, 1, bits, data, white_is_zero=True))[0, 0].long()
        assert torch.equal(flipped, torch.tensor([255, 170, 127, 0]))


@pytest.mark.parametrize("full", [255, 65535, 2**31 - 1])
def test_32_bit_integers_count_from_black_to_the_smallest_full_scale(full: int) -> None:
    values = (np.linspace(0, 1, 101) * full).astype(np.int32)[None]
    image = Image.fromarray(values)
    for source in (image, encode(image, "TIFF")):
        seen = read_image(source)[0, 0].int()
        assert (seen[0], seen[-1]) == (0, 255)
        assert (seen - torch.linspace(0, 255, 101)).abs().max() <= 1


def test_unsigned_32_bit_tiff_is_not_read_as_negative() -> None:
    values = np.array([0, 2**31, 2**32 - 1], dtype="<u4")
    assert read_image(tiff(3, 1, 32, values.tobytes()))[0, 0].tolist() == [0, 128, 255]


def test_float_tiff_is_not_black() -> None:
    values = np.linspace(0, 1, 256, dtype=np.float32)[None]
    image = Image.fromarray(values)
    for source in (values, image, encode(image, "TIFF")):
        assert torch.equal(read_image(source)[0, 0].int(), torch.arange(256))


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "LAB", "RGBX", "RGBa", "La", "PA", "L", "1", "P"])
def test_red_stays_red_and_grey_grey_in_every_mode(mode: str) -> None:
    if mode == "LAB":
        to_lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
        image, want = to_lab.apply(Image.new("RGB", (5, 4), (200, 90, 30))), (200, 90, 30)
    elif mode in ("L", "La"):
        image, want = Image.new("LA" if mode == "La" else "L", (5, 4), (77, 255) if mode == "La" else 77), (77,) * 3
        image = image.convert(mode)
    elif mode == "1":
        image, want = Image.new("1", (5, 4), 1), WHITE
    else:
        red = Image.new("RGB", (5, 4), RED)
        image, want = (red.convert("RGBA") if mode == "RGBa" else red.convert("P") if mode == "PA" else red), RED
        image = image.convert(mode)
    assert image.mode == mode
    assert (read_image(image).int() - colour(want).int()).abs().max() <= 2


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk_files_keep_their_colours(format: str) -> None:
    """Pillow writes CMYK JPEGs inverted, as Adobe does."""
    for want in (RED, BLUE, WHITE, BLACK, (40, 120, 200)):
        image = read_image(encode(Image.new("RGB", (16, 16), want).convert("CMYK"), format))
        assert (image.int() - colour(want).int()).abs().max() <= 4


def test_ycck_jpeg_keeps_its_colours() -> None:
    """CMYK stored as YCC of its inverse and K, marked by transform 2 in Adobe's segment."""
    for want in (RED, BLUE, (40, 120, 200)):
        inverse = tuple(255 - level for level in want)
        y, cb, cr = Image.new("RGB", (16, 16), inverse).convert("YCbCr").split()
        k = Image.new("L", (16, 16), 255)  # stored inverted: no black
        stored = Image.merge("CMYK", [band.point(lambda v: 255 - v) for band in (y, cb, cr, k)])
        data = encode(stored, "JPEG", quality=100, subsampling=0)
        adobe = data.index(b"Adobe\0")
        assert data[adobe + 11] == 0
        data = data[: adobe + 11] + b"\2" + data[adobe + 12 :]
        assert (read_image(data).int() - colour(want).int()).abs().max() <= 4


def test_embedded_profile_is_converted_and_a_broken_or_equal_one_changes_nothing() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    offsets = {}
    for i in range(struct.unpack(">I", srgb[128:132])[0]):
        at = 132 + 12 * i
        offsets[srgb[at : at + 4]] = at + 4
    swapped = bytearray(srgb)  # the red and the blue primary changed places
    r, b = offsets[b"rXYZ"], offsets[b"bXYZ"]
    swapped[r : r + 8], swapped[b : b + 8] = srgb[b : b + 8], srgb[r : r + 8]
    array = noise()
    for format in ("PNG", "TIFF", "WEBP"):
        options = {"lossless": True} if format == "WEBP" else {}
        plain = Image.fromarray(array)
        assert torch.equal(read_image(encode(plain, format, icc_profile=srgb, **options)), read_image(array))
        assert torch.equal(read_image(encode(plain, format, icc_profile=b"nonsense", **options)), read_image(array))
        moved = read_image(encode(Image.new("RGB", (8, 8), RED), format, icc_profile=bytes(swapped), **options))
        assert (moved.int() - colour(BLUE).int()).abs().max() <= 2
    half = Image.new("RGBA", (8, 8), (*RED, 0))
    half.paste((*RED, 255), (0, 0, 4, 8))
    image = read_image(encode(half, icc_profile=bytes(swapped)), background=GREEN)
    assert (image[:, :, :4].int() - colour(BLUE).int()).abs().max() <= 2
    assert (image[:, :, 4:] == colour(GREEN)).all()  # the background is sRGB already
    grey = Image.new("L", (8, 8), 90)
    assert torch.equal(read_image(encode(grey, icc_profile=srgb)), read_image(grey))


# --- alpha -----------------------------------------------------------------------------------------------------


def hidden_green(mode: str) -> bytes:
    """A red square on the left; on the right green, hidden by transparency."""
    image = Image.new("RGBA", (8, 4), (*GREEN, 0))
    image.paste((*RED, 255), (0, 0, 4, 4))
    if mode == "RGBA":
        return encode(image)
    if mode.startswith("P"):
        image = Image.new("P", (8, 4), 1)
        image.putpalette([*RED, *GREEN, *BLUE])
        image.paste(0, (0, 0, 4, 4))
        return encode(image, "GIF" if "GIF" in mode else "PNG", transparency=bytes([255, 0, 255]) if "+" in mode else 1)
    if mode == "RGB tRNS":
        return encode(image.convert("RGB"), transparency=GREEN)
    if mode == "RGB 16-bit tRNS":  # the low byte of the colour must not be taken for the high one
        red, green = struct.pack(">3H", 65535, 0, 0), struct.pack(">3H", 0, 0x80FF, 0)
        return png(8, 4, 16, 2, (b"\0" + red * 4 + green * 4) * 4, transparent=green)
    return encode(image, mode, **({"lossless": True} if mode == "WEBP" else {"compression": None}))


@pytest.mark.parametrize("mode", ["RGBA", "P", "P+", "P GIF", "RGB tRNS", "RGB 16-bit tRNS", "WEBP", "TIFF"])
def test_colours_hidden_by_transparency_never_show(mode: str) -> None:
    data = hidden_green(mode)
    for source in (data, lazily(data)):
        for background in (WHITE, BLUE):
            image = read_image(source, background=background)
            assert (image[:, :, :4] == colour(RED)).all()
            assert (image[:, :, 4:] == colour(background)).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_grey_png_with_a_transparent_level_at_every_depth(bits: int) -> None:
    """Black pixels, then as many of the transparent level, which is white."""
    full = 2**bits - 1
    row = sum(full << (bits * i) for i in range(8)).to_bytes(2 * bits, "big")  # 8 black, 8 white
    data = png(16, 1, bits, 0, b"\0" + row, transparent=struct.pack(">H", full))
    for source in (data, lazily(data)):
        image = read_image(source, background=RED)
        assert (image[:, :, :8] == 0).all()
        assert (image[:, :, 8:] == colour(RED)).all()


def test_half_transparent_pixels_are_mixed_with_the_background() -> None:
    image = read_image(Image.new("RGBA", (4, 4), (200, 100, 0, 51)), background=(0, 0, 250))  # 51 = 20 %
    assert image[:, 0, 0].tolist() == [40, 20, 200]
    assert read_image(Image.new("LA", (4, 4), (200, 51)))[:, 0, 0].tolist() == [244, 244, 244]
