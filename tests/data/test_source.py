"""The same pictures from folders, archives, manifests, shards and Hugging Face data sets; and what is none of them."""

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import write_pictures
from vitreous.base.errors import DataError, ImageError
from vitreous.data.open import open_data

CLASSES = {"1": 3, "2": 1, "10": 2}
FLAT = ("folder", "zip", "stored zip", "tar", "csv", "tsv", "parquet", "shards", "one shard", "saved", "hf parquet")


def zipped(folder, path, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


def tarred(folder, path):
    with tarfile.open(path, "w") as archive:
        archive.add(folder, ".")
    return path


def shard(path, samples):
    """samples: [(key, {suffix: bytes})]"""
    with tarfile.open(path, "w") as archive:
        for key, files in samples:
            for suffix, data in files.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


def made(kind, root, folder):
    """The pictures of a folder of class folders as another kind of data set."""
    pictures = sorted(folder.rglob("*.png"))
    classes = [picture.parent.name for picture in pictures]
    if kind == "folder":
        return folder
    if kind in ("zip", "stored zip"):
        return zipped(folder, root / "data.zip", zipfile.ZIP_STORED if kind == "stored zip" else zipfile.ZIP_DEFLATED)
    if kind == "tar":
        return tarred(folder, root / "data.tar")
    if kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        lines = ["label,note,path".replace(",", mark)]
        lines += [mark.join((c, "x", str(p.relative_to(root)))) for p, c in zip(pictures, classes, strict=True)]
        (root / f"list.{kind}").write_text("\n".join(lines))
        return root / f"list.{kind}"
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(
            pyarrow.table({"path": list(map(str, pictures)), "label": [int(c) for c in classes]}), root / "list.parquet"
        )
        return root / "list.parquet"
    if kind in ("shards", "one shard"):
        samples = [(f"{i:03}", {"png": p.read_bytes(), "cls": p.parent.name.encode()}) for i, p in enumerate(pictures)]
        (root / "shards").mkdir()
        if kind == "one shard":
            return shard(root / "shards" / "all.tar", samples)
        shard(root / "shards" / "data-00.tar", samples[:4])
        shard(root / "shards" / "data-01.tar", samples[4:])
        return root / "shards"
    datasets = pytest.importorskip("datasets")
    names = sorted(CLASSES)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    rows = {"image": list(map(str, pictures)), "label": [names.index(c) for c in classes]}
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict(rows, features=features)
    if kind == "saved":
        table.save_to_disk(root / "saved")
        return root / "saved"
    (root / "hub" / "data").mkdir(parents=True)
    table.to_parquet(root / "hub" / "data" / "train-00000-of-00001.parquet")
    return root / "hub"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Whatever the datasets package keeps goes to the test's folder."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    try:
        import datasets
    except ImportError:
        return
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("kind", FLAT)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the datasets package
def test_the_same_pictures_from_every_kind_of_source(tmp_path, kind):
    folder = write_pictures(tmp_path / "pictures", CLASSES)
    data = open_data(made(kind, tmp_path, folder))
    (split,) = data.splits.values()
    assert list(data.splits) == (["train"] if kind == "hf parquet" else ["all"])
    by_value = kind in ("csv", "tsv", "parquet", "shards", "one shard")
    assert split.classes == (("1", "2", "10") if by_value else ("1", "10", "2"))  # folders: as torchvision sorts them
    again = pickle.loads(pickle.dumps(split))  # as a worker process gets it
    for part in (split, again, split.select([5, 0]), split.with_classes(("x", "10", "2", "1"))):
        found = sorted((part.classes[part.labels[i]], contents(part.open(i))) for i in range(len(part)))
        rows = [part.names[i] for i in range(len(part))]
        assert len(rows) == len(set(rows)) == len(part)
        expected = [(p.parent.name, p.read_bytes()) for p in sorted(folder.rglob("*.png"))]
        assert found == sorted(expected) or (len(part) == 2 and set(found) < set(expected))
    assert dict(zip(split.classes, split.counts(), strict=True)) == CLASSES
    assert [len(part) for part in split.hold_out(0.5)] == [3, 3]
    assert split.fingerprint() == split.select(np.arange(6)[::-1]).fingerprint() != split.select([0]).fingerprint()


def contents(picture):
    return picture if isinstance(picture, bytes) else Path(picture).read_bytes()


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_what_is_no_picture_is_left_out(tmp_path, kind):
    root = write_pictures(tmp_path / "data", CLASSES)
    for hidden in (".ipynb_checkpoints", "__MACOSX"):
        (root / hidden).mkdir()
        (root / hidden / "x.png").write_bytes(b"x")
    (root / "1" / "._000.png").write_bytes(b"x")
    (root / "LICENSE").write_text("free")
    (root / "1" / "notes.txt").write_text("hm")
    data = open_data(made(kind, tmp_path, root))
    split = data.split("all")
    assert split.counts() == [3, 2, 1]
    assert split.names[:3] == ("1/000.png", "1/001.png", "1/002.png")
    assert sorted(data.left_out.others) == ["1/notes.txt", "LICENSE"]


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_splits_of_folders(tmp_path, kind):
    root = tmp_path / "data"
    write_pictures(root / "train", {"a": 2, "b": 2, "c": 2})
    write_pictures(root / "Valid", {"a": 1, "c": 1})
    write_pictures(root / "extra", {"z": 1})  # not a split: left alone
    data = open_data(made(kind, tmp_path, root))
    assert list(data.splits) == ["train", "val"]
    train, val = data.split("train"), data.split("val")
    mapped = val.with_classes(train.classes)
    assert mapped.labels.tolist() == [0, 2]
    assert mapped.counts() == [1, 0, 1]
    with pytest.raises(DataError, match="no split 'test': it has train, val"):
        data.split("test")


def test_splits_of_manifests_and_shards(tmp_path):
    folder = write_pictures(tmp_path / "pictures", {"cat": 2, "dog": 2})
    (tmp_path / "list.csv").write_text(
        "path,label,split\n"
        "pictures/cat/000.png,cat,train\npictures/dog/000.png,dog,validation\n"
        "pictures/dog/001.png,dog,train\npictures/cat/001.png,cat,Test\n"
    )
    data = open_data(tmp_path / "list.csv")
    assert list(data.splits) == ["train", "val", "test"]
    assert data.split("train").names == ("pictures/cat/000.png", "pictures/dog/001.png")  # in the order of the rows
    assert data.split("val").classes == ("dog",)
    samples = [
        (f"{i}", {"png": p.read_bytes(), "json": b'{"label": "%s"}' % p.parent.name.encode()})
        for i, p in enumerate(sorted(folder.rglob("*.png")))
    ]
    for name, some in (("train-0", samples[:1]), ("train-1", samples[1:3]), ("val-0", samples[3:]), ("spare", samples)):
        shard(tmp_path / f"{name}.tar", some)
    for source in (f"{tmp_path}/{{train,val}}-*.tar", f"{tmp_path}/*.tar"):
        shards = open_data(source)
        assert {name: split.counts() for name, split in shards.splits.items()} == {"train": [2, 1], "val": [1]}
        assert shards.split("train").classes == ("cat", "dog")
    assert [Path(name).name for name in shards.left_out.others] == ["spare.tar"]
    assert open_data(f"{tmp_path}/train-{{0..1}}.tar").split("train").location(2) == f"{tmp_path}/train-1.tar/2.png"
    with pytest.raises(DataError, match=r"train-2\.tar: no such file \(of .*train-\{0\.\.2\}\.tar\)"):
        open_data(f"{tmp_path}/train-{{0..2}}.tar")


def test_numbers_of_shards_have_names_where_a_file_says_so(tmp_path):
    shard(tmp_path / "a.tar", [("x", {"png": b"1", "cls": b"2\n"}), ("y", {"png": b"2", "cls": b"0"})])
    (tmp_path / "classnames.txt").write_text("ant\nbee\ncow\n")
    split = open_data(tmp_path / "a.tar").split("all")
    assert (split.classes, split.labels.tolist(), split.counts()) == (("ant", "bee", "cow"), [2, 0], [1, 0, 1])
    (tmp_path / "classnames.txt").write_text("ant\nbee\n")
    with pytest.raises(DataError, match=r"classnames\.txt has 2 lines, and the shards have the label 2"):
        open_data(tmp_path / "a.tar")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_hugging_face_splits_and_labels(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    picture = str(write_pictures(tmp_path / "p", {"a": 1}) / "a" / "000.png")
    label = datasets.ClassLabel(names=["zebra", "ant"])  # the feature's order, not the alphabet's
    features = datasets.Features({"img": datasets.Image(), "fine_label": label, "coarse": label})

    def table(labels):
        return datasets.Dataset.from_dict(
            {"img": [picture] * len(labels), "fine_label": labels, "coarse": [0] * len(labels)}, features=features
        )

    parts = {"train": table([0, 1, 1]), "validation": table([1]), "test": table([-1, -1]), "extra": table([0])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = open_data(tmp_path / "saved")
    assert (list(data.splits), data.left_out.others) == (["train", "val"], ("test", "extra"))
    assert data.split("train").classes == data.split("val").classes == ("zebra", "ant")
    assert data.split("val").labels.tolist() == [1]
    assert data.split("val").location(0) == f"{tmp_path}/saved/validation/0"
    with pytest.raises(
        DataError, match=r"hf:nobody/nothing cannot be opened by the datasets package: .*nobody/nothing"
    ):
        open_data("hf:nobody/nothing")


def test_a_manifest_of_many_rows_keeps_nothing_per_row_in_python(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import gc

    from pyarrow import parquet

    n = 200_000
    number = pyarrow.array(np.arange(n)).cast(pyarrow.string())
    table = pyarrow.table({"path": number, "label": pyarrow.array(np.arange(n) % 1000).cast(pyarrow.string())})
    parquet.write_table(table, tmp_path / "many.parquet", row_group_size=30_000)
    del table, number
    gc.collect()
    before = len(gc.get_objects())
    split = open_data(tmp_path / "many.parquet").split("all")
    assert len(gc.get_objects()) - before < 5000
    assert len(pickle.dumps(split)) < 32 * n  # name, offset, row and label
    assert split.names[123_456] == "123456"
    assert split.counts() == [200] * 1000
    assert split.classes[17] == "17"


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
    assert list(split.hold_out(0.2, seed=1)[1].names) != list(val.names)
    assert split.fingerprint() == shuffled.fingerprint() != train.fingerprint()
    # By the sha256 of "seed/name", which anybody can compute.
    import hashlib

    by_hand = sorted((n for n in split.names if n[0] == "b"), key=lambda n: hashlib.sha256(f"0/{n}".encode()).digest())
    assert {n for n in val.names if n[0] == "b"} == set(by_hand[:2])


def test_class_folders_named_like_splits_are_classes(tmp_path):
    data = open_data(write_pictures(tmp_path, {"train": 2, "car": 2}))
    assert data.split("all").classes == ("car", "train")


def test_names_that_are_no_text(tmp_path):
    root = write_pictures(tmp_path / "data", {"a": 1, "b": 1})
    try:
        (root / "a" / "000.png").rename(root / "a" / os.fsdecode(b"caf\xe9.png"))
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    for source in (root, tarred(root, tmp_path / "data.tar")):
        split = open_data(source).split("all")
        assert split.names[0] == "a/caf\\udce9.png"
        split.location(0).encode()  # can be printed
        assert contents(split.open(0))[:4] == b"\x89PNG"
        assert len(split.hold_out(0.1)[0]) == 2


def test_links_in_a_circle_end(tmp_path):
    root = write_pictures(tmp_path / "data", {"a": 2, "b": 1})
    (root / "a" / "again").symlink_to(root, target_is_directory=True)
    assert open_data(root).split("all").counts() == [2, 1]


WRONG = {
    "missing": "no such file",
    "empty": "holds no pictures",
    "file": "neither a folder nor a whole zip",
    "loose": r"x\.png lies in no class folder",
    "broken zip": "neither a folder nor a whole zip",
    "encrypted": r"'a/000.png' is encrypted: unpack the zip",
    "compressed tar": "is compressed, so that single pictures in it cannot be reached",
    "broken tar": "is not a whole tar|is cut off",
    "no columns": "has no column 'path' .did you mean 'pat'.*it has 'pat', 'label'; a manifest has",
    "no label": "row 2 has no label",
    "unknown split": "row 2 is of the split 'dev': train, val or test are known",
    "no rows": "has no rows",
    "broken parquet": "is not a whole PARQUET table",
    "unlabelled shard": r"data\.tar/x has a picture and no label: x\.cls, \.json .* or \.txt",
    "bad json": r"x\.json is not JSON",
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_data_set_says_why(tmp_path, case):
    root = tmp_path / "data"
    if case == "empty":
        root.mkdir()
    elif case == "file":
        root.write_text("hello")
    elif case == "loose":
        write_pictures(root, {"a": 1})
        (root / "x.png").write_bytes(b"x")
    elif case.startswith("broken") and case != "broken parquet":
        kind = case.split()[1]
        whole = made(kind, tmp_path, write_pictures(tmp_path / "pictures", {"a": 3}))
        root = tmp_path / f"half.{kind}"
        root.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    elif case == "encrypted":
        root = zipped(write_pictures(tmp_path / "pictures", {"a": 1}), tmp_path / "data.zip")
        data = bytearray(root.read_bytes())
        data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag in the directory
        root.write_bytes(data)
    elif case == "compressed tar":
        root = tmp_path / "data.tar"
        with tarfile.open(root, "w:gz") as archive:
            archive.add(write_pictures(tmp_path / "pictures", {"a": 1}), ".")
    elif case in ("no columns", "no label", "unknown split", "no rows"):
        root = tmp_path / "data.csv"
        lines = {
            "no columns": "pat,label\nx.png,a\n",
            "no label": "path,label\nx.png,a\ny.png,\n",
            "unknown split": "path,label,split\nx.png,a,train\ny.png,b,dev\n",
            "no rows": "path,label\n",
        }
        root.write_text(lines[case])
    elif case == "broken parquet":
        root = tmp_path / "data.parquet"
        root.write_bytes(b"PAR1 no more")
    elif case == "unlabelled shard":
        root = shard(tmp_path / "data.tar", [("w", {"png": b"", "cls": b"1"}), ("x", {"png": b""})])
    elif case == "bad json":
        root = shard(tmp_path / "data.tar", [("x", {"png": b"", "json": b"{"})])
    with pytest.raises(DataError, match=WRONG[case]) as error:
        open_data(root)
    assert "\n" not in str(error.value)


def test_a_picture_damaged_inside_a_zip_is_named_when_it_is_read(tmp_path):
    source = zipped(write_pictures(tmp_path / "pictures", {"a": 2}), tmp_path / "data.zip")
    data = bytearray(source.read_bytes())
    data[200] ^= 0xFF
    source.write_bytes(data)
    split = open_data(source).split("all")
    with pytest.raises(ImageError, match=r"data\.zip/a/000\.png is damaged inside the zip"):
        split.open(0)
    assert split.open(1)[:4] == b"\x89PNG"
