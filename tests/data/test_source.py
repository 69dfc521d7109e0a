"""Folders and zips of class folders."""

import pickle
import zipfile

import numpy as np
import pytest

from tests.conftest import write_pictures
from vitreous.data import open_data
from vitreous.errors import DataError


def zipped(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


@pytest.mark.parametrize("as_zip", [False, True])
def test_flat_folder(tmp_path, as_zip):
    root = write_pictures(tmp_path / "data", {"1": 3, "2": 1, "10": 2})
    (root / ".ipynb_checkpoints").mkdir()
    (root / ".ipynb_checkpoints" / "x.png").write_bytes(b"x")
    (root / "__MACOSX").mkdir()
    (root / "__MACOSX" / "x.png").write_bytes(b"x")
    (root / "LICENSE").write_text("free")
    (root / "1" / "notes.txt").write_text("hm")
    data = open_data(zipped(root, tmp_path / "data.zip") if as_zip else root)
    assert list(data.splits) == ["all"]
    split = data.split("all")
    assert split.classes == ("1", "10", "2")  # by code points, as torchvision sorts
    assert split.counts() == [3, 2, 1]
    assert split.names[:3] == ("1/000.png", "1/001.png", "1/002.png")
    assert sorted(data.ignored) == ["1/notes.txt", "LICENSE"]
    again = pickle.loads(pickle.dumps(split))  # as a worker process gets it
    for part in (split, again):
        picture = part.open(4)
        assert (picture if as_zip else picture.read_bytes()) == (root / "10" / "001.png").read_bytes()


def test_splits(tmp_path):
    write_pictures(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    write_pictures(tmp_path / "valid", {"a": 1, "c": 1})
    write_pictures(tmp_path / "extra", {"z": 1})  # not a split: left alone
    data = open_data(tmp_path)
    assert list(data.splits) == ["train", "val"]
    train, val = data.split("train"), data.split("val")
    mapped = val.with_classes(train.classes)
    assert mapped.labels.tolist() == [0, 2]
    assert mapped.counts() == [1, 0, 1]
    with pytest.raises(DataError, match="no split 'test': it has train, val"):
        data.split("test")


def test_an_unknown_class_is_named(tmp_path):
    write_pictures(tmp_path, {"a": 1, "d": 1, "e": 1})
    with pytest.raises(DataError, match="classes 'd', 'e' are not among the 2 classes"):
        open_data(tmp_path).split("all").with_classes(("a", "b"))


def test_held_out_pictures_depend_on_their_names_alone(tmp_path):
    split = open_data(write_pictures(tmp_path, {"a": 20, "b": 10, "c": 1})).split("all")
    train, val = split.hold_out(0.2)
    assert (train.counts(), val.counts()) == ([16, 8, 1], [4, 2, 0])
    assert not set(train.names) & set(val.names)
    shuffled = split.select(np.random.default_rng(0).permutation(31))
    assert sorted(shuffled.hold_out(0.2)[1].names) == sorted(val.names)
    assert split.hold_out(0.2, seed=1)[1].names != val.names
    assert split.fingerprint() == shuffled.fingerprint() != train.fingerprint()


def test_class_folders_named_like_splits_are_classes(tmp_path):
    data = open_data(write_pictures(tmp_path, {"train": 2, "car": 2}))
    assert data.split("all").classes == ("car", "train")


@pytest.mark.parametrize("case", ["missing", "empty", "file", "loose", "broken zip"])
def test_what_is_no_data_set_says_why(tmp_path, case):
    root = tmp_path / "data"
    says = {
        "missing": "no such file",
        "empty": "holds no pictures",
        "file": "neither a folder nor a whole zip",
        "loose": r"x\.png lies in no class folder",
        "broken zip": "neither a folder nor a whole zip",
    }[case]
    if case == "empty":
        root.mkdir()
    elif case == "file":
        root.write_text("hello")
    elif case == "loose":
        write_pictures(root, {"a": 1})
        (root / "x.png").write_bytes(b"x")
    elif case == "broken zip":
        whole = zipped(write_pictures(tmp_path / "pictures", {"a": 3}), tmp_path / "whole.zip").read_bytes()
        root.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=says):
        open_data(root)
