"""What is no picture, is too large or is broken: one clear error, and no harm to threads."""

import logging
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from tests.conftest import shared
from tests.pictures.making import RED, encode, photo, png
from vitreous.base.errors import ImageError, VitreousError
from vitreous.pictures.images import read_image


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
