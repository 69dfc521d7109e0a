"""529 files that break image loaders, and thousands of damaged ones: read rightly, or refused in one line."""

import io
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features
from torch import Tensor

from tests.conftest import ROOT, shared
from vitreous.base.errors import ImageError
from vitreous.pictures.images import read_image

SECONDS, MEGABYTES = 2.0, 500  # that no file may take more of, in processor time and at the peak
MUTATIONS = 2000

# What cannot be read, and a word of why. All the others can.
REFUSED = {
    "pillow/broken.png": "PNG",
    "pillow/broken_data_stream.png": "damaged",
    "pillow/crash-2020-10-test.tif": "damaged",
    "pillow/decompression_bomb.gif": "too many pixels",
    "pillow/decompression_bomb.ico": "too many pixels",
    "pillow/oom-225817ca0f8c663be7ab4b9e717b02c661e66834.tif": "TIFF",
    "pillow/png_decompression_dos.png": "damaged",
    "pillow/seek_too_large.tif": "damaged",
    "pillow/timeout-6646305047838720": "truncated",
    "pillow/truncated_end_chunk.png": "damaged",
    "pillow/truncated_image.png": "truncated",
    "pillow/truncated_jpeg.jpg": "truncated",
    "pillow/unbound_variable.jp2": "JPEG 2000",
    "pillow/zero_width.gif": "GIF",
    "pillow/apng/syntax_num_frames_zero.png": "damaged",
    "libjpeg-turbo/testimages/monkey12.jpg": "JPEG",  # 12 bits
    "pngsuite/PngSuite.README": "not a picture",
    **{f"pngsuite/png/{name}.png": "PNG" for name in ("xc1n0g08", "xc9n2c08", "xcrn0g04", "xd0n2c08", "xd3n2c08")},
    **{f"pngsuite/png/{name}.png": "PNG" for name in ("xd9n2c08", "xhdn0g08", "xlfn0g04", "xs7n0g01")},
    **{f"pngsuite/png/{name}.png": "not a picture" for name in ("xs1n0g01", "xs2n0g01", "xs4n0g01")},
    "pngsuite/png/xdtn0g01.png": "damaged",
    "pillow_heif/tests/images/heif_corrupted/corrupted.heic": "damaged",
    "pillow_heif/tests/images/heif_corrupted/corrupted.hif": "damaged",
    "pillow_heif/tests/images/heif_corrupted/empty.heic": "empty",
}

READ_ALL = """
import json, resource, sys, time
from pathlib import Path
from vitreous.base.errors import ImageError
from vitreous.pictures.images import read_image

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

results = {}
for line in sys.stdin.read().splitlines():
    error, shape, before, start = None, None, peak(), time.process_time()
    try:
        shape = list(read_image(Path(sys.argv[1]) / line).shape)
    except ImageError as refusal:
        error = str(refusal)
    results[line] = dict(error=error, shape=shape, seconds=time.process_time() - start, megabytes=peak() - before)
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """Every file read in a process of its own, where each warning is an error and any other exception ends it."""
    pytest.importorskip("resource")
    folder = shared("odd-images")
    names = [line.split("\t")[0] for line in (folder / "INDEX.tsv").read_text().splitlines()[1:]]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", READ_ALL, folder],
        cwd=ROOT,
        input="\n".join(names),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found) == len(names) == 529
    return found


def is_heif(name: str) -> bool:
    return name.startswith("pillow_heif/") or name.endswith(".heif")


def test_every_file_is_read_or_refused_as_the_table_says(results: dict[str, dict[str, Any]]) -> None:
    for name, result in results.items():
        error = result["error"]
        if error is not None:
            assert name in error
            assert "\n" not in error
        if is_heif(name) and not find_spec("pillow_heif"):
            assert "vitreous[heif]" in error or "empty" in error
        elif name in REFUSED:
            assert error is not None, f"{name} was read"
            assert REFUSED[name] in error, error
        elif not name.endswith("truncated.heic"):  # of which some versions of libheif can show the rest
            assert error is None, error
            assert result["shape"][0] == 3


def test_no_file_takes_long_or_much_memory(results: dict[str, dict[str, Any]]) -> None:
    for name, result in results.items():
        assert result["seconds"] < SECONDS, name
    assert sum(result["megabytes"] for result in results.values()) < MEGABYTES


# --- right values, where they are known ------------------------------------------------------------------------


def read(name: str, **options: Any) -> Tensor:
    return read_image(shared(f"odd-images/{name}"), **options).float()


def test_pngsuite_equals_its_own_reference() -> None:
    """RGBA values from PngSuite's files, over white; 16-bit ones by their high byte. And the BMP version of each."""
    folder = shared("odd-images/pngsuite")
    compared = 0
    for file in sorted((folder / "json").glob("*.json")):
        name = f"pngsuite/png/{file.stem}.png"
        if file.stem.endswith("_to8") or name in REFUSED:
            continue
        image = read(name)
        rgba = torch.tensor(json.loads(file.read_text())).view(*image.shape[1:], 4)
        if rgba.max() > 255:
            rgba = rgba >> 8
        alpha = rgba[..., 3:].double() / 255
        want = (rgba[..., :3] * alpha + 255 * (1 - alpha)).permute(2, 0, 1)
        assert (image - want).abs().max() <= 0.5, file.stem
        if (folder / "bmp" / f"{file.stem}.bmp").exists():
            assert (image - read(f"pngsuite/bmp/{file.stem}.bmp")).abs().max() <= 1, file.stem
        compared += 1
    assert compared == 162


@pytest.mark.parametrize("name", ["Landscape", "Portrait"])
def test_exif_orientation_examples_are_all_the_same_picture(name: str) -> None:
    """A number is drawn on each, and each was compressed anew: hence not quite."""
    want = read(f"exif-orientation-examples/{name}_1.jpg")
    assert want.shape == ((3, 1200, 1800) if name == "Landscape" else (3, 1800, 1200))
    for orientation in range(9):
        image = read(f"exif-orientation-examples/{name}_{orientation}.jpg")
        assert (image - want).abs().mean() < 4, orientation


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_hopper_is_upright_in_every_orientation(suffix: str) -> None:
    want = read("pillow/hopper.ppm")
    for orientation in range(2, 9):
        image = read(f"pillow/hopper_orientation_{orientation}.{suffix}")
        assert (image - want).abs().mean() < 6, orientation


@pytest.mark.parametrize(
    ("one", "other", "tolerance"),
    [
        ("pillow/hopper.ppm", "pillow/hopper.bmp", 2),
        ("pillow/hopper.ppm", "pillow/hopper.psd", 2),
        ("pillow/hopper.ppm", "pillow/hopper.gif", 4),
        ("pillow/hopper.ppm", "pillow/avif/hopper.avif", 5),
        ("pillow/flower.jpg", "pillow/flower.webp", 3),
        ("pillow/tiff_16bit_RGB.tiff", "pillow/tiff_16bit_RGB_target.png", 0),
        ("pillow/16bit.cropped.tif", "pillow/16bit.cropped.jp2", 0),
        ("pillow/pil_sample_cmyk.jpg", "pillow/tiff_strip_cmyk_jpeg.tif", 0.1),
        ("pillow/pil_sample_cmyk.jpg", "pillow/pil_sample_rgb.jpg", 6),
        ("pillow/pil123p.png", "pillow/pil123rgba.png", 2),
        ("pillow/iss634.gif", "pillow/iss634.webp", 1),
        ("pillow/iss634.gif", "pillow/iss634.apng", 1),
        ("pillow/xmp_tags_orientation.png", "pillow/avif/xmp_tags_orientation.avif", 4),
        ("libjpeg-turbo/testimages/testorig.ppm", "libjpeg-turbo/testimages/testorig.jpg", 1),
        ("libjpeg-turbo/testimages/testimgari.jpg", "libjpeg-turbo/testimages/testimgint.jpg", 0),
    ],
)
def test_the_same_picture_in_two_formats(one: str, other: str, tolerance: float) -> None:
    assert (read(one) - read(other)).abs().mean() <= tolerance


@pytest.mark.parametrize("name", ["i_trns", "l_trns", "rgb_trns", "p_trns_single"])
def test_the_transparent_middle_shows_the_background_alone(name: str) -> None:
    pink = torch.tensor([255.0, 0.0, 255.0]).view(3, 1, 1)
    image = read(f"pillow/{name}.png", background=(255, 0, 255))
    assert (image[:, 28:36, 28:36] == pink).all()
    assert not (image[:, :4] == pink).all()


def test_some_single_values() -> None:
    assert (read("pillow/uint16_1_4660.tif") == 4660 >> 8).all()
    assert (read("pillow/lab.tif") >= 254).all()  # L* = 100
    assert read("pillow/orientation_rectangle.jpg").shape == (3, 2, 1)
    assert read("pillow/g4_orientation_6.tif").shape == (3, 88, 590)
    assert read("pillow/apng/delay.png")[:, 0, 0].tolist() == [255, 0, 0]  # the first frame; the last is green
    assert read("pillow/frozenpond.mpo").shape == (3, 480, 640)


# --- damage ----------------------------------------------------------------------------------------------------


def good_files() -> list[bytes]:
    """Small pictures of every format that Pillow writes, with EXIF and a colour profile where they go."""
    y, x = np.mgrid[0:18, 0:22]
    rgb = Image.fromarray(np.stack([y * 14, x * 11, (y * x) % 256], -1).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    deep = Image.fromarray((y * x * 170).astype(np.uint16))
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (rgb, "JPEG", {"exif": exif}),
        (rgb, "JPEG", {"progressive": True, "icc_profile": shared_profile()}),
        (rgb.convert("CMYK"), "JPEG", {}),
        (rgb, "MPO", {"save_all": True, "append_images": [rgb]}),
        (rgb, "PNG", {"exif": exif, "icc_profile": shared_profile()}),
        (rgb.convert("RGBA"), "PNG", {"save_all": True, "append_images": [rgb.convert("RGBA").rotate(90)]}),
        (rgb.convert("P"), "PNG", {"transparency": bytes(range(200))}),
        (rgb.convert("1"), "PNG", {}),
        (deep, "PNG", {}),
        (rgb, "GIF", {"save_all": True, "append_images": [rgb.rotate(90)]}),
        (rgb, "WEBP", {"exif": exif}),
        (rgb.convert("RGBA"), "WEBP", {"lossless": True}),
        (rgb, "TIFF", {"exif": exif}),
        (rgb, "TIFF", {"compression": "tiff_lzw"}),
        (rgb, "TIFF", {"compression": "jpeg"}),
        (rgb.convert("1"), "TIFF", {"compression": "group4"}),
        (deep, "TIFF", {"compression": "tiff_adobe_deflate"}),
        (rgb, "BMP", {}),
        (rgb.convert("P"), "BMP", {}),
        (rgb, "PPM", {}),
        (deep, "PPM", {}),
        (rgb, "JPEG2000", {}),
        (rgb, "ICO", {"sizes": [(16, 16)]}),
        (rgb, "ICNS", {}),
        (rgb, "TGA", {"rle": True}),
        (rgb, "PCX", {}),
        (rgb, "SGI", {}),
        (rgb, "DDS", {}),
        (rgb, "DIB", {}),
    ]
    if features.check("avif"):
        kinds.append((rgb, "AVIF", {"exif": exif}))
    files = []
    for image, format, options in kinds:
        buffer = io.BytesIO()
        image.save(buffer, format, **options)
        files.append(buffer.getvalue())
    return files


def shared_profile() -> bytes:
    from PIL import ImageCms

    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """One way in which files go wrong: bits flipped, an end cut off, a piece lost or doubled, a length made absurd."""
    changed = bytearray(data)
    at = int(random.integers(len(changed)))
    match int(random.integers(6)):
        case 0:
            for place in random.integers(len(changed), size=int(random.integers(1, 9))):
                changed[place] ^= 1 << int(random.integers(8))
        case 1:
            del changed[at:]
        case 2:
            del changed[at : at + int(random.integers(1, 40))]
        case 3:
            changed[at:at] = changed[at : at + 40]
        case 4:
            changed[at : at + 4] = random.choice(
                [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\xff\xff"]
            )
        case 5:  # the header: where formats keep sizes and counts
            changed[at % min(64, len(changed))] = int(random.integers(256))
    return bytes(changed)


def test_mutated_files_are_read_or_refused_and_nothing_else() -> None:
    """Of each of 30 kinds of file as many, seeded. The libraries within may talk on stderr meanwhile."""
    files = good_files()
    for data in files:
        assert read_image(data).shape[0] == 3
    random, messages = np.random.default_rng(0), []
    for number in range(MUTATIONS):
        data = mutate(files[number % len(files)], random)
        start = time.process_time()
        try:
            image = read_image(data, allow_truncated=number % 5 == 0, max_pixels=10_000_000)
        except ImageError as error:
            messages.append(str(error))
        else:
            assert image.dtype == torch.uint8
            assert image.shape[0] == 3
            assert 0 < image.shape[1] * image.shape[2] <= 10_000_000
        assert time.process_time() - start < SECONDS, f"mutation {number}"
    assert all(message.startswith("picture of ") and "\n" not in message for message in messages)
    # Else the mutations are too mild, or too wild, to say much.
    assert MUTATIONS // 4 < len(messages) < MUTATIONS * 3 // 4


def test_noise_of_any_length_is_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for length in (1, 2, 3, 4, 7, 8, 15, 16, 33, 100, 5000):
        path = tmp_path / f"{length}.jpg"
        path.write_bytes(random.bytes(length))
        with pytest.raises(ImageError, match=f"{length}.jpg: not a picture"):
            read_image(path)
