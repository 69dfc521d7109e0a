"""`vitreous check`: a folder with one of every fault, of which each is named and nothing else; and clean ones."""

import io
import json
import os
import shutil
import struct
import tarfile
import zlib

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from typer.testing import CliRunner

from tests.conftest import shared
from vitreous.cli.main import app
from vitreous.data.check import KINDS, check
from vitreous.data.check.page import MOST_ITEMS


def picture(number, size=(96, 96)):
    """A picture unlike all others: blurred noise with sharp noise upon it."""
    noise = np.random.default_rng(number)
    coarse = Image.fromarray(noise.integers(0, 256, (6, 6, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    fine = Image.fromarray(noise.integers(0, 256, (24, 24, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    return Image.blend(coarse, fine, 0.4)


def clean(root, counts, start=0):
    """A split as it should be."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            start += 1
            picture(start).save(root / name / f"{i:02}.jpg", quality=92)
    return start


def header_only_png(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A data set with one of every fault, and what a check should say: kind -> the names in its items."""
    root = tmp_path_factory.mktemp("faulty") / "pets"
    train, val = root / "train", root / "val"
    last = clean(train, {"cat": 12, "dog": 12, "Red Fox": 12, "cow": 12, "owl": 120, "red_fox": 7, "_tmp": 6, "ant": 2})
    last = clean(
        val, {"cat": 5, "dog": 5, "Red Fox": 5, "cow": 5, "owl": 5, "red_fox": 5, "_tmp": 5, "ant": 5, "bee": 6}, last
    )
    clean(train, {"elk": 7}, last)
    expected = {
        "unknown class": [("bee",)],
        "not measured": [("elk",)],
        "similar names": [("Red Fox", "red_fox")],
        "odd class": [("_tmp",)],
        "few pictures": [("ant",)],
        "imbalance": [("owl", "ant")],
    }

    def add(kind, name, data=None, *more):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, Image.Image):
            data.save(path, quality=92)
        elif data is not None:
            path.write_bytes(data)
        expected.setdefault(kind, []).append((name, *more))
        return path

    def jpeg(image, **how):
        written = io.BytesIO()
        image.save(written, "JPEG", quality=92, **how)
        return written.getvalue()

    add("empty", "train/cat/empty.jpg", b"")
    add("cut off", "train/cat/half.jpg", jpeg(picture(2001))[:2500])
    add("unreadable", "train/cat/text.png", b"hello, I am no picture")
    add("too large", "train/dog/bomb.png", header_only_png(20000, 10000))
    add("loose", "train/loose.jpg", picture(2002))
    shutil.copy(root / "train/cat/00.jpg", root / "val/cat/copy.jpg")
    expected["copies across splits"] = [("train/cat/00.jpg", "val/cat/copy.jpg")]
    picture(2003).save(root / "train/cow/x.png")
    picture(2003).save(root / "train/dog/x.bmp")  # other bytes, the same pixels
    expected["copies across classes"] = [("train/cow/x.png", "train/dog/x.bmp")]
    shutil.copy(root / "train/owl/07.jpg", root / "train/owl/again.jpg")
    expected["copies in a class"] = [("train/owl/07.jpg", "train/owl/again.jpg")]
    add("near-copies across splits", "train/dog/01.jpg", None, "val/dog/bright.jpg")
    ImageEnhance.Brightness(Image.open(root / "train/dog/01.jpg")).enhance(1.1).save(root / "val/dog/bright.jpg")
    add("near-copies across classes", "train/cow/02.jpg", None, "train/dog/small.jpg")
    Image.open(root / "train/cow/02.jpg").resize((60, 60)).save(root / "train/dog/small.jpg")
    add("near-copies in a class", "train/cow/03.jpg", None, "train/cow/q40.jpg")
    Image.open(root / "train/cow/03.jpg").save(root / "train/cow/q40.jpg", quality=40)
    (train / "yak").mkdir()
    expected["empty class"] = [("train/yak",)]
    add("split name", "train/cow/test/y.jpg", picture(2004))
    expected["split name"] = [("train/cow/test",)]
    add("nested", "train/cow/night/z.jpg", picture(2005))
    expected["nested"] = [("train/cow/night",)]
    add("left out", "spare/cat/a.jpg", picture(2006))
    expected["left out"] = [("spare",)]
    add("hidden", "train/cat/.trash/a.jpg", picture(2007))
    expected["hidden"] = [("train/cat/.trash",)]
    (root / "__MACOSX").mkdir()
    (root / "__MACOSX" / "._00.jpg").write_bytes(b"never a picture")
    add("unseen", "train/cat/IMG_0001", jpeg(picture(2008)))
    (root / "LICENSE").write_text("free")
    add("wrong suffix", "train/cat/really.png", jpeg(picture(2009)))
    exif = Image.Exif()
    exif[0x0112] = 6
    add("rotated", "train/cat/phone.jpg", jpeg(picture(2010), exif=exif))
    add("odd mode", "train/cat/print.jpg", jpeg(picture(2011).convert("CMYK")))
    transparent = picture(2012).convert("RGBA")
    transparent.putalpha(Image.linear_gradient("L").resize(transparent.size))
    add("odd mode", "train/cat/logo.png", transparent)
    gif = io.BytesIO()
    picture(2013).save(gif, "GIF", save_all=True, append_images=[picture(2014)])
    add("animated", "train/cat/wave.gif", gif.getvalue())
    add("enormous", "train/cat/poster.png", picture(2015, (1200, 1000)))
    add("tiny", "train/cat/icon.png", picture(2016, (12, 12)))
    add("elongated", "train/cat/banner.png", picture(2017, (320, 40)))
    add("one colour", "train/cat/blank.png", Image.new("RGB", (96, 96), "navy"))
    try:
        picture(2018).save(root / os.fsdecode(b"train/cat/caf\xe9.jpg"))
        expected["bad name"] = [("train/cat/caf\\udce9.jpg",)]
    except OSError:
        pass  # this file system takes UTF-8 names alone
    return root, expected


@pytest.fixture(scope="module")
def found(faulty):
    return check(faulty[0], num_workers=0, progress=False)


def test_every_fault_is_named_and_nothing_else(faulty, found):
    expected = faulty[1]
    named = {finding.kind: sorted(item.names for item in finding.items) for finding in found.findings}
    assert named == {kind: sorted(names) for kind, names in expected.items()}
    assert len(named) >= 30
    assert not found.ok
    untested = {"missing", "one class"} | ({"bad name"} - set(expected))
    assert set(KINDS) - set(named) == untested
    severities = [finding.severity for finding in found.findings]
    assert severities == sorted(severities)  # errors first
    assert {f.kind: f.items[0].detail for f in found.findings if f.kind in ("rotated", "odd mode", "enormous")} == {
        "rotated": "orientation 6",
        "odd mode": "RGBA, with transparency",
        "enormous": "1200x1000 pixels",
    }


def test_any_number_of_workers_finds_the_same(faulty, found):
    assert check(faulty[0], num_workers=2, progress=False) == found


def test_the_command_prints_a_table_json_and_a_page(faulty, found, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["check", str(faulty[0]), "--workers", "0", "--out", str(page.parent)])
    assert done.exit_code == 1
    table, report = done.stdout.rsplit("\nreport ", 1)
    assert str(page) in report
    assert max(map(len, table.splitlines())) <= 80
    for finding in found.findings:
        assert finding.title in table
    html, classes = page.read_text().split("<h2>Classes</h2>")
    assert classes.count("data:image/jpeg;base64,") > 10
    shown = sum(len(item.places[:6]) for f in found.findings for item in f.items[:MOST_ITEMS])
    broken = sum(len(f.items) for f in found.findings if f.kind in ("empty", "cut off", "unreadable", "too large"))
    assert html.count("data:image/jpeg;base64,") == shown - broken
    assert html.count('class="none"') == broken
    assert "http" not in html
    machine = CliRunner().invoke(app, ["check", str(faulty[0]), "--workers", "0", "--json"])
    assert machine.exit_code == 1
    assert json.loads(machine.stdout) == found.to_dict()


def test_a_clean_data_set_has_nothing_wrong(tmp_path):
    clean(tmp_path / "data", {"a": 6, "b": 8})
    done = CliRunner().invoke(app, ["check", str(tmp_path / "data"), "--workers", "0"])
    assert done.exit_code == 0, done.output
    assert "nothing is wrong with it" in done.stdout
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(tmp_path / "data", ".")
    assert check(tmp_path / "data.tar", num_workers=0, progress=False).findings == ()


def test_a_manifest_is_checked_for_what_is_not_there(tmp_path):
    clean(tmp_path, {"a": 5, "b": 1})
    rows = "".join(f"a/{i:02}.jpg,a\n" for i in range(5))
    (tmp_path / "list.csv").write_text(f"path,label\n{rows}b/00.jpg,a\na/09.jpg,a\nb/00.jpg,a\n")
    found = check(tmp_path / "list.csv", num_workers=0, progress=False)
    assert {f.kind: [item.names for item in f.items] for f in found.findings} == {
        "missing": [("a/09.jpg",)],
        "one class": [("a",)],
        "copies in a class": [("b/00.jpg", "b/00.jpg")],
    }


def test_photographs_have_no_duplicates_that_are_none():
    """Hands before the same wall, and the photographs of a benchmark known to have no duplicates among these."""
    digits = check(shared("data/sign-language-digits"), num_workers=2, progress=False)
    assert {finding.kind: len(finding.items) for finding in digits.findings} == {"rotated": 3, "enormous": 3}
    assert digits.ok


def test_what_cannot_be_opened_is_one_line(tmp_path):
    done = CliRunner().invoke(app, ["check", str(tmp_path / "nowhere")])
    assert done.exit_code == 1
    assert "no such file or folder" in done.stderr
    assert "Traceback" not in done.stderr
