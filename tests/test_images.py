"""Any picture to RGB: the same pixels whichever way it comes, and one clear error where it cannot be."""

import io
import logging
import os
import struct
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageFile, features
from torch import Tensor

from tests.conftest import shared
from vitreous.errors import ImageError, VitreousError
from vitreous.images import read_image

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


# --- the same picture whichever way it comes -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"])
def test_path_bytes_pillow_array_and_tensor_give_the_same_pixels(mode: str, tmp_path: Path) -> None:
    channels = {"RGB": 3, "RGBA": 4, "LA": 2}.get(mode)
    if mode == "I;16":
        array = noise(channels=None).astype(np.uint16) * 201
        image = Image.fromarray(array)
    elif mode in ("P", "1"):
        image = Image.fromarray(noise()).convert(mode)
        array = np.asarray(image.convert("RGB"))
    else:
        array = noise(channels=channels)
        image = Image.fromarray(array)
    data = encode(image)
    path = tmp_path / "picture.wrong-suffix"
    path.write_bytes(data)
    loaded = lazily(data)
    loaded.load()
    tensor = torch.from_numpy(array.copy())
    tensor = tensor.permute(2, 0, 1) if tensor.ndim == 3 else tensor
    want = read_image(path)
    assert want.shape == (3, 13, 9)
    assert want.dtype == torch.uint8
    for source in (str(path), data, bytearray(data), memoryview(data), lazily(data), loaded, image, array, tensor):
        assert torch.equal(read_image(source), want), type(source)
    if mode == "L":
        assert torch.equal(read_image(array[:, :, None]), want)
        assert torch.equal(read_image(tensor[None]), want)
        assert torch.equal(read_image(image.convert("RGB")), want)


def test_floats_from_0_to_1_are_the_8_bit_picture() -> None:
    array = noise()
    want = read_image(array)
    assert torch.equal(want, torch.from_numpy(array).permute(2, 0, 1))
    for dtype in (np.float16, np.float32, np.float64):
        assert torch.equal(read_image((array / 255).astype(dtype)), want)
    tensor = torch.from_numpy(array).permute(2, 0, 1) / 255
    assert torch.equal(read_image(tensor), want)
    assert torch.equal(read_image(tensor.requires_grad_()), want)
    assert (read_image(tensor.bfloat16()).int() - want.int()).abs().max() <= 1  # 8 bits of mantissa


def test_arrays_of_any_byte_order_and_stride_are_read_and_not_kept() -> None:
    array = noise(channels=None).astype(np.uint16) * 257
    assert torch.equal(read_image(array.astype(">u2")), read_image(array))
    assert torch.equal(read_image(noise()[::-1, ::2]), read_image(noise()).flip(1)[:, :, ::2])
    array = noise()
    image = read_image(array)
    before = image.clone()
    array[:] = 0
    assert torch.equal(image, before)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (9, 1)])
@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", AVIF])
def test_pictures_one_pixel_wide(size: tuple[int, int], format: str) -> None:
    image = read_image(encode(Image.new("RGB", size[::-1], RED), format))
    assert image.shape == (3, *size)
    assert (image.int() - colour(RED).int()).abs().max() <= 3


# --- orientation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", AVIF])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_eight_exif_orientations_come_out_upright(orientation: int, format: str) -> None:
    want = photo(48, 80)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the inverse of each, as a `Image.Transpose`
    stored = want if orientation == 1 else want.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(stored, format, exif=exif, **({} if format in ("PNG", "TIFF") else {"quality": 95}))
    for source in (data, lazily(data)):
        image = read_image(source)
        assert image.shape == (3, 48, 80)
        assert (image.float() - read_image(want).float()).abs().mean() < 3


def test_orientation_6_turns_left_red_into_top_red() -> None:
    stored = Image.new("RGB", (40, 20), BLUE)
    stored.paste(RED, (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    image = read_image(encode(stored, "JPEG", quality=95, exif=exif))
    assert image.shape == (3, 40, 20)
    assert (image[:, :18].int() - colour(RED).int()).abs().max() <= 8
    assert (image[:, 22:].int() - colour(BLUE).int()).abs().max() <= 8


def test_an_orientation_that_means_nothing_changes_nothing() -> None:
    want = photo(24, 40)
    exif = Image.Exif()
    exif[0x0112] = 9
    assert torch.equal(read_image(encode(want, exif=exif)), read_image(want))


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


# --- several frames, and formats -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF", "MPO", AVIF])
def test_of_several_frames_the_first_counts(format: str) -> None:
    frames = [Image.new("RGB", (24, 16), c) for c in (RED, GREEN, BLUE)]
    data = encode(frames[0], format, save_all=True, append_images=frames[1:])
    assert getattr(lazily(data), "n_frames", 1) == 3
    assert (read_image(data).int() - colour(RED).int()).abs().max() <= 6


def test_heic_without_its_reader_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    path = tmp_path / "phone.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    with pytest.raises(ImageError, match=r"phone\.heic: .*pip install 'vitreous\[heif\]'"):
        read_image(path)


def test_heic_is_read_upright_with_its_reader() -> None:
    heif = pytest.importorskip("pillow_heif")
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    stored = heif.from_pillow(photo(48, 64).transpose(Image.Transpose.ROTATE_90))
    stored.save(buffer, quality=95, exif=exif.tobytes())
    image = read_image(buffer.getvalue())
    assert image.shape == (3, 48, 64)
    assert (image.float() - read_image(photo(48, 64)).float()).abs().mean() < 4


# --- decoding at a reduced scale -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_least", "scale"),
    [((56, 75), 4), ((57, 75), 2), ((112, 150), 2), ((28, 37), 8), ((28, 38), 4), ((1, 1), 8), ((300, 300), 1)],
)
def test_jpeg_is_reduced_to_no_less_than_twice_what_is_needed(at_least: tuple[int, int], scale: int) -> None:
    data = encode(photo(448, 600), "JPEG", quality=90)
    assert read_image(data, at_least=at_least).shape == (3, 448 // scale, 600 // scale)
    exif = Image.Exif()
    exif[0x0112] = 8  # stored on its side: what is needed is of the upright picture
    data = encode(photo(600, 448), "JPEG", quality=90, exif=exif)
    assert read_image(data, at_least=at_least).shape == (3, 448 // scale, 600 // scale)


def test_reduced_pictures_resize_to_nearly_the_same() -> None:
    photographs = [encode(photo(1600, 1200), "JPEG", quality=92)]
    photographs += [
        shared(f"odd-images/exif-orientation-examples/{n}_1.jpg").read_bytes() for n in ("Landscape", "Portrait")
    ]
    for data in photographs:
        whole, reduced = read_image(data), read_image(data, at_least=(224, 224))
        assert reduced.shape[1] < whole.shape[1]
        small = [Image.fromarray(x.permute(1, 2, 0).numpy()).resize((224, 224), 3) for x in (whole, reduced)]
        off = np.abs(np.asarray(small[0], np.int16) - np.asarray(small[1], np.int16))
        assert off.mean() < 0.5
        assert off.max() <= 12


def test_only_jpegs_whose_sides_divide_are_reduced() -> None:
    whole = read_image(encode(photo(401, 600), "JPEG"))
    assert torch.equal(read_image(encode(photo(401, 600), "JPEG"), at_least=(8, 8)), whole)
    assert read_image(encode(photo(400, 600)), at_least=(8, 8)).shape == (3, 400, 600)
    assert read_image(lazily(encode(photo(400, 600), "JPEG")), at_least=(8, 8)).shape == (3, 400, 600)
    mpo = encode(photo(400, 600), "MPO", save_all=True, append_images=[photo(400, 600)])
    assert read_image(mpo, at_least=(8, 8)).shape == (3, 50, 75)


# --- refused ---------------------------------------------------------------------------------------------------


def refuse(source: object, *words: str, **options: object) -> str:
    with pytest.raises(ImageError) as caught:
        read_image(source, **options)
    message = str(caught.value)
    assert isinstance(caught.value, VitreousError)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


def test_files_that_are_no_pictures_say_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "empty.jpg": (b"", "empty"),
        "text.png": (b"These are not the pixels you are looking for.\n", "not a picture", "These are no"),
        "zeros.tiff": (bytes(5000), "not a picture"),
        "header.jpg": (b"\xff\xd8\xff\xe0" + bytes(50), "JPEG", "damaged"),
        "page.html": (b"<!DOCTYPE html><html></html>", "not a picture"),
        "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not a picture"),
    }
    for name, (data, *words) in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        refuse(path, name, *words)
        refuse(data, *words)
    refuse(tmp_path / "missing.png", "missing.png", "no such file")
    refuse(tmp_path, tmp_path.name, "folder")
    refuse(tmp_path / "text.png" / "inside.png", "inside.png")
    monkeypatch.chdir(tmp_path)
    refuse("missing.png", "missing.png", f"in {tmp_path}")
    refuse("nul\0.png", r"nul\x00.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    refuse(tmp_path / "pipe.png", "pipe.png", "not a regular file")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are not bytes here")
def test_names_with_odd_characters_stay_on_one_line(tmp_path: Path) -> None:
    for name in (b"two\nlines.png", b"caf\xe9.png"):
        path = os.fsdecode(bytes(tmp_path) + b"/" + name)
        Path(path).write_bytes(b"no picture")
        assert refuse(path, ascii(os.fsdecode(name))[1:-1]).isprintable()
        Path(path).write_bytes(encode(Image.new("RGB", (3, 2), RED)))
        assert read_image(path).shape == (3, 2, 3)


def test_arrays_that_are_no_pictures_say_how_to_give_them() -> None:
    refuse(np.zeros((4, 4), bool), "bool", "uint8")
    refuse(np.zeros((4, 4, 3), np.int64), "int64", "uint8")
    refuse(torch.zeros(3, 4, 4, dtype=torch.int32), "int32", "uint8")
    refuse(np.full((4, 4), 200.0), "200", "0 to 1")
    refuse(torch.full((3, 4, 4), -1.0), "-1", "0 to 1")
    refuse(np.full((4, 4), np.nan), "NaN")
    refuse(np.full((4, 4), np.inf, np.float32), "inf")
    refuse(np.zeros((3, 40, 50), np.uint8), "(3, 40, 50)", "transpose(1, 2, 0)")
    refuse(torch.zeros(40, 50, 3, dtype=torch.uint8), "(40, 50, 3)", "permute(2, 0, 1)")
    refuse(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), "(1, 3, 4, 4)", "one picture at a time")
    refuse(np.zeros((0, 4, 3), np.uint8), "no pixels")
    refuse(Image.new("RGB", (0, 4)), "no pixels")
    refuse(Image.fromarray(np.full((2, 2), -5, np.int32)), "negative")
    refuse(Image.fromarray(np.full((2, 2), 200, np.float32)), "200")
    refuse(Image.new("RGBA", (2, 2)), "background", "256", background=(0, 0, 256))
    refuse(None, "NoneType", "give a path")
    refuse(7, "int", "give a path")


def test_too_many_pixels_are_refused_before_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def decode(self: object) -> None:
        raise AssertionError("decoded")

    path = tmp_path / "huge.png"
    path.write_bytes(png(20_000, 10_000, 8, 2, b""))
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", decode)
        start = time.process_time()
        refuse(path, "huge.png", "max_pixels")
        assert time.process_time() - start < 1
        refuse(encode(Image.new("RGB", (30, 20))), "30x20", "599", max_pixels=599)
    assert read_image(encode(Image.new("RGB", (30, 20))), max_pixels=600).shape == (3, 20, 30)
    refuse(Image.new("RGB", (30, 20)), "30x20", max_pixels=599)


@pytest.mark.parametrize("options", [{"format": "JPEG"}, {"format": "JPEG", "progressive": True}, {"format": "PNG"}])
def test_truncated_files_are_refused_unless_allowed(
    options: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = encode(photo(300, 400), **options)
    path = tmp_path / "half.bin"
    path.write_bytes(whole[: len(whole) // 2])
    refuse(path, "half.bin", "truncated", "allow_truncated")
    with caplog.at_level(logging.WARNING, "vitreous"):
        image = read_image(path, allow_truncated=True)
    assert "half.bin" in caplog.text
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    off = (image[:, :100].float() - read_image(whole)[:, :100].float()).abs()
    assert off.mean() < 8  # a progressive picture is there as a whole, but not yet sharp


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP"])
def test_a_file_with_no_part_left_is_refused_even_where_truncated_ones_are_allowed(format: str) -> None:
    whole = encode(photo(30, 40), format)
    start = whole.index(b"IDAT") + 12 if format == "PNG" else {"BMP": 54, "GIF": 800}[format]
    refuse(whole[:start], "truncated", "no part of it", allow_truncated=True)


def test_many_threads_at_once_where_warnings_are_errors() -> None:
    """Pillow warns of the damaged EXIF; filters belong to the process, not to the thread."""
    source = shared("odd-images/pillow/hopper_orientation_6.jpg").read_bytes()
    at = source.index(b"Exif\0\0")
    damaged = source[: at + 14] + b"\xff\xff" + source[at + 16 :]
    want, failures = read_image(damaged), []

    def work() -> None:
        for _ in range(20):
            if not torch.equal(read_image(damaged), want):
                failures.append("other pixels")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
