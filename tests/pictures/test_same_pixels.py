"""Any picture to RGB: the same pixels whichever way it comes, upright, the first frame, whole or reduced."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import shared
from tests.pictures.making import AVIF, BLUE, GREEN, RED, colour, encode, lazily, noise, photo
from vitreous.base.errors import ImageError
from vitreous.pictures.images import read_image

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
