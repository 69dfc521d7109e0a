"""Damaged copies of every format: one kind of error, at once, with the file's name, and without taking memory."""

import json
import logging
import random
import resource
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import tiny
from vitreous.base.errors import WeightsError
from vitreous.classifier import Classifier
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.checkpoint import Hints
from vitreous.weights.convert import convert
from vitreous.weights.npz import NpzReader
from vitreous.weights.sniff import read_checkpoint

ROUNDS = 100
SECONDS = 1.0  # of the processor, so that a busy machine does not matter
MEMORY = 200 * 2**20  # bytes that may be mapped besides what Python and torch have


def classifier(**overrides: object) -> Classifier:
    model = tiny(**overrides)
    return Classifier(model, Preprocess(size=model.config.image_size), [f"class {i}" for i in range(7)])


def writer(to: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        convert(classifier(), path, to=to, allow_changes=True)

    return write


def write_deflated_npz(path: Path) -> None:
    writer("google")(path)
    arrays = dict(np.load(path))
    np.savez_compressed(path, **arrays)


def write_old_pth(path: Path) -> None:
    """As torch wrote them before 1.6."""
    writer("timm")(path)
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)


def write_shards(path: Path) -> None:
    """A Hugging Face folder whose tensors lie in two files."""
    writer("huggingface")(path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    table = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in sorted(set(table.values())):
        save_file({name: tensors[name] for name in tensors if table[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


FORMATS: dict[str, tuple[Callable[[Path], None], str, str]] = {  # how it is written, as what, and what gets damaged
    "native": (writer("native"), "model.safetensors", ""),
    "google": (writer("google"), "model.npz", ""),
    "google, deflated": (write_deflated_npz, "model.npz", ""),
    "timm": (writer("timm"), "model.safetensors", ""),
    "timm .pth": (writer("timm"), "model.pth", ""),
    "timm old .pth": (write_old_pth, "model.pth", ""),
    "timm config": (writer("timm"), "folder", "config.json"),
    "torchvision": (writer("torchvision"), "model.pth", ""),
    "huggingface": (writer("huggingface"), "folder", "model.safetensors"),
    "huggingface config": (writer("huggingface"), "folder", "config.json"),
    "huggingface processor": (writer("huggingface"), "folder", "preprocessor_config.json"),
    "huggingface index": (write_shards, "folder", "model.safetensors.index.json"),
    "huggingface shard": (write_shards, "folder", "model-00002-of-00002.safetensors"),
}


@dataclass(frozen=True)
class Whole:
    """A sound model; `path` is what is loaded, `file` what gets damaged."""

    path: Path
    file: Path


def made(kind: str, folder: Path) -> Whole:
    write, name, inside = FORMATS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with warnings_off():
        write(path)
    return Whole(path, path / inside if inside else path)


@contextmanager
def warnings_off() -> Iterator[None]:
    """What a format does not keep is no matter here."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture(params=FORMATS)
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Whole:
    return made(request.param, tmp_path)


def header_places(path: Path) -> list[int]:
    """Where the headers of a file lie: bytes that say what the others mean."""
    content = path.read_bytes()
    if content.startswith(b"PK"):
        with zipfile.ZipFile(path) as archive:
            heads = [(i.header_offset, i.file_size if i.filename.endswith(".pkl") else 180) for i in archive.infolist()]
            places = {start + i for start, size in heads for i in range(size)} | {
                *range(archive.start_dir, len(content))
            }
        return sorted(places & set(range(len(content))))
    if path.suffix == ".json":
        return list(range(len(content)))
    return list(range(4000 if path.suffix == ".pth" else 8 + struct.unpack("<Q", content[:8])[0]))


def attempt(path: Path) -> str:
    """Try to load; anything but success or a WeightsError with the name of the file fails the test."""
    start = time.process_time()
    try:
        with warnings_off():
            read_checkpoint(path, Hints(num_heads=3)).build(str(path))
        message = ""
    except WeightsError as error:
        message = str(error)
        assert str(path) in message
        assert "\n" not in message
    assert time.process_time() - start < SECONDS
    return message


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_truncated(whole: Whole, share: float) -> None:
    content = whole.file.read_bytes()
    whole.file.write_bytes(content[: int(share * len(content))])
    assert attempt(whole.path)


def test_one_byte_short(whole: Whole) -> None:
    whole.file.write_bytes(whole.file.read_bytes()[:-1])
    assert attempt(whole.path)


def test_mutations_end_in_one_kind_of_error(whole: Whole) -> None:
    content, places = whole.file.read_bytes(), header_places(whole.file)
    numbers, refused = random.Random(0), 0
    assert attempt(whole.path) == ""
    for _ in range(ROUNDS):
        mutated, place = bytearray(content), numbers.choice(places)
        match numbers.randrange(4):
            case 0:
                mutated[place] ^= 1 << numbers.randrange(8)
            case 1:
                mutated[place] = numbers.randrange(256)
            case 2:
                del mutated[place : place + numbers.randrange(1, 9)]
            case _:
                for _ in range(4):
                    mutated[numbers.choice(places)] = numbers.randrange(256)
        whole.file.write_bytes(mutated)
        refused += bool(attempt(whole.path))
    assert refused > ROUNDS / 2  # the rest changed a time stamp, a label or the like


def rewrite_header(path: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """Change the JSON header of a `.safetensors` file."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def huge_length(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 2**42) + content[8:])


def in_header(**changes: object) -> Callable[[Path], None]:
    """What the header says of the last tensor, changed."""

    def change(header: dict[str, dict[str, object]]) -> None:
        header[max(name for name in header if name != "__metadata__")] |= changes

    return lambda path: rewrite_header(path, change)


huge_tensor = in_header(shape=[2**40])
huge_place = in_header(shape=[2**40], data_offsets=[0, 2**42])
integers = in_header(dtype="I32")


def huge_config(field: str, value: object) -> Callable[[Path], None]:
    def change(header: dict[str, dict[str, object]]) -> None:
        meta = header["__metadata__"]
        meta["vitreous.config"] = json.dumps(json.loads(str(meta["vitreous.config"])) | {field: value})

    return lambda path: rewrite_header(path, change)


def in_json(**changes: object) -> Callable[[Path], None]:
    """What `config.json` says, changed."""

    def lie(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return lie


def huge_storage(path: Path) -> None:
    """A pickle whose tensor strides over 4 TB of a storage of 28 bytes."""
    tensors = torch.load(path, weights_only=True)
    tensors[list(tensors)[-1]] = torch.zeros(1).expand(2**40)
    torch.save(tensors, path)


def integer_tensor(path: Path) -> None:
    tensors = torch.load(path, weights_only=True)
    name = list(tensors)[-1]
    torch.save(tensors | {name: tensors[name].view(torch.int32)}, path)


def huge_array(path: Path) -> None:
    """An array header that claims 4 TB in a zip that is otherwise sound."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117) + b"\n"
    members["head/bias.npy"] = header + bytes(28)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def huge_member(path: Path) -> None:
    """A zip directory that claims 4 GB of an array of some bytes, deflated or not."""
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    content = bytearray(path.read_bytes())
    content[start + 24 : start + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(content)


def integer_array(path: Path) -> None:
    arrays = dict(np.load(path))
    arrays["head/bias"] = arrays["head/bias"].view(np.int32)
    np.savez(path, **arrays)


def many_blocks(path: Path) -> None:
    """A stack of a thousand million blocks, each of nothing."""
    arrays = dict(np.load(path)) | {"Transformer/encoderblock/LayerNorm_0/bias": np.empty((10**9, 0), np.float32)}
    np.savez(path, **arrays)


LIES: list[tuple[str, Callable[[Path], None]]] = [
    ("native", huge_length),
    ("native", huge_tensor),
    ("native", huge_place),
    ("native", huge_config("num_layers", 10**12)),
    ("native", huge_config("hidden_size", 3 * 10**12)),
    ("native", huge_config("patch_size", [10**9, 10**9])),
    ("native", huge_config("num_classes", 10**15)),
    ("native", huge_config("resnet", {"num_layers": [10**9], "width_factor": 1.0})),
    ("native", integers),
    ("google", huge_array),
    ("google", huge_member),
    ("google", integer_array),
    ("google", many_blocks),
    ("google, deflated", huge_array),
    ("google, deflated", huge_member),
    *[(kind, lie) for kind in ("timm", "huggingface", "huggingface shard") for lie in (huge_length, huge_tensor)],
    *[(kind, lie) for kind in ("timm", "huggingface", "huggingface shard") for lie in (huge_place, integers)],
    *[(kind, lie) for kind in ("timm .pth", "torchvision") for lie in (huge_member, huge_storage, integer_tensor)],
    ("huggingface config", in_json(num_hidden_layers=10**12)),
    ("huggingface config", in_json(hidden_size=10**12)),
    ("huggingface config", in_json(intermediate_size=10**15, patch_size=10**9)),
    ("timm config", in_json(num_classes=10**15)),
    ("timm config", in_json(model_args={"depth": 10**12})),
]


def write_lies(folder: Path) -> list[Path]:
    paths = []
    for number, (kind, lie) in enumerate(LIES):
        whole = made(kind, folder / str(number))
        lie(whole.file)
        paths.append(whole.path)
    return paths


def test_lies_are_refused_at_once_and_take_no_memory(tmp_path: Path) -> None:
    """In a process that cannot have the memory."""
    paths = write_lies(tmp_path)
    command = [sys.executable, "-c", f"from {__name__} import limited; limited()", *map(str, paths)]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    messages = run.stdout.splitlines()
    assert len(messages) == len(LIES)
    for (kind, _), path, message in zip(LIES, paths, messages, strict=True):
        assert str(path) in message
        assert not message.endswith(": loaded") or "config" in kind  # where the tensors' own shapes count instead


def limited() -> None:
    """Attempt the files that the command line names, with no more memory than `MEMORY` to be had."""
    for kind in FORMATS:  # so that imports and thread pools are there before the limit
        attempt(made(kind, Path(sys.argv[1]).parents[1] / kind).path)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in map(Path, sys.argv[1:]):
        print(attempt(path) or f"{path}: loaded")


def test_a_flipped_bit_in_the_numbers_of_an_npz_is_noticed(tmp_path: Path) -> None:
    """Every array of a zip has a checksum."""
    path = made("google", tmp_path).path
    with NpzReader(path) as archive:
        info = archive.members["head/kernel"].info
    content = bytearray(path.read_bytes())
    content[info.header_offset + 500] ^= 1
    path.write_bytes(content)
    assert "CRC" in attempt(path)
