"""WebDataset shards: tar files in which `key.jpg` lies beside `key.cls`, `key.txt` or `key.json`."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.base.errors import DataError
from vitreous.data.archive import Member, Packed, scan_tar
from vitreous.data.dataset import SPLITS, DataSet, LeftOut, Split, in_order, split_by_label
from vitreous.data.folder import is_hidden, is_picture
from vitreous.data.names import Names, printable

LABELS = ("cls", "json", "txt")  # what says the class, the surest first
JSON_KEYS = ("label", "cls", "class", "class_name")
CLASS_NAMES = ("classnames.txt", "classes.txt")  # a name a line, beside the shards: what the numbers stand for
MAX_LABEL = 2**20  # bytes of a file that says a class
_MAGIC = re.compile(r"[*?\[]")


class Shards(Packed):
    """Pictures in many tars.

    Args:
        root: the folder that all shards lie in.
        shards: their paths.
        shard: (n,) which of them each picture lies in.
    """

    def __init__(
        self,
        root: Path,
        names: Names,
        offsets: np.ndarray,
        sizes: np.ndarray,
        shards: Sequence[Path],
        shard: np.ndarray,
    ) -> None:
        super().__init__(root, names, offsets, sizes)
        self.shards, self.shard = tuple(shards), shard

    def open(self, row: int) -> bytes:
        return self.read(self.shards[self.shard[row]], int(self.offsets[row]), int(self.sizes[row]))

    def location(self, row: int) -> str:
        return printable(f"{self.shards[self.shard[row]]}/{self.names[row]}")


@dataclass(frozen=True)
class Index:
    """What one shard holds: pictures, and the text of their labels."""

    names: Names
    offsets: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray
    words: list[str]


def open_shards(root: Path, paths: Sequence[Path]) -> DataSet:
    """Index shards by their headers, once; pictures can then be read in any order.

    The split is told by the names of shards or of the folders they lie in (`train-000012.tar`,
    `val/0001.tar`). Labels that are numbers are counted as such, and stand for the lines of a
    `classnames.txt` or `classes.txt` beside the shards where there is one.

    Args:
        root: the folder that they lie in, or the one shard.
        paths: of the shards.

    Raises:
        DataError: a broken shard, a picture without a label, or no pictures.
    """
    paths = sorted(paths)
    with ThreadPoolExecutor(min(8, len(paths))) as pool:
        indexed = list(pool.map(lambda path: index(path, scan_tar(path)), paths))
    if not sum(len(part.names) for part in indexed):
        raise DataError(f"{root}: there are no pictures in {_count(len(paths), 'shard')}")
    words = sorted({word for part in indexed for word in part.words})
    place = {word: i for i, word in enumerate(words)}
    labels = np.concatenate([np.array([place[w] for w in p.words], np.int64)[p.labels] for p in indexed])
    folder = root if root.is_dir() else root.parent
    source = Shards(
        root,
        Names.concatenate([part.names for part in indexed]),
        np.concatenate([part.offsets for part in indexed]),
        np.concatenate([part.sizes for part in indexed]),
        paths,
        np.repeat(np.arange(len(paths), dtype=np.int32), [len(part.names) for part in indexed]),
    )
    names = _class_names(folder, words)
    told = [_split_of(path.relative_to(folder).as_posix()) for path in paths]
    if not any(told):
        told = ["all"] * len(paths)
    splits = {}
    for name in {name for name in told if name is not None}:
        rows = np.flatnonzero(np.isin(source.shard, [i for i, other in enumerate(told) if other == name]))
        if not len(rows):
            continue
        if names is None:
            splits[name] = split_by_label(source, rows, labels[rows], words)
        else:
            numbers = np.array([int(word) for word in words], dtype=np.int64)
            splits[name] = Split(source, rows, numbers[labels[rows]], tuple(names))
    ignored = tuple(printable(str(path)) for path, name in zip(paths, told, strict=True) if name is None)
    return DataSet(root, in_order(splits.items()), LeftOut(others=ignored))


def expand(pattern: str) -> list[Path]:
    """The files that a pattern names: `train-{0000..0127}.tar`, `{train,val}-*.tar`; every number must be there."""
    found: list[Path] = []
    for one in _braces(pattern):
        path = Path(one)
        matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))) if _MAGIC.search(one) else [path]
        if not matches or not matches[0].exists():
            raise DataError(f"{one}: no such file" + ("" if one == pattern else f" (of {pattern})"))
        found += matches
    return found


def is_pattern(source: str) -> bool:
    """Whether a source names several files."""
    return bool(_MAGIC.search(source) or re.search(r"\{.+(,|\.\.).+\}", source))


def is_shard(members: Sequence[Member]) -> bool:
    """Whether a tar is a shard and no tar of class folders: labels lie beside the pictures."""
    names = [name for name, _, _ in members]
    if any(name.endswith(".cls") for name in names):
        return True
    loose = {_split_key(name)[0] for name in names if is_picture(name) and "/" not in name}
    return bool(loose) and any(_split_key(name)[1] in LABELS for name in names if _split_key(name)[0] in loose)


def index(path: Path, members: Iterable[Member]) -> Index:
    """One shard's pictures and labels; files that belong together follow one another."""
    names, offsets, sizes, labels = [], [], [], []
    words: dict[str, int] = {}
    shown = (member for member in members if member[2] >= 0 and not is_hidden(member[0]))
    with path.open("rb") as file:
        for key, group in itertools.groupby(shown, lambda member: _split_key(member[0])[0]):
            sample = {_split_key(member[0])[1]: member for member in group}
            pictures = [member for member in sample.values() if is_picture(member[0])]
            if not pictures:
                continue
            name, offset, size = pictures[0]
            word = _label(file, path, key, sample)
            names.append(name)
            offsets.append(offset)
            sizes.append(size)
            labels.append(words.setdefault(word, len(words)))
    return Index(Names.pack(names), _integers(offsets), _integers(sizes), _integers(labels), list(words))


def _label(file: Any, path: Path, key: str, sample: dict[str, Member]) -> str:
    where = printable(f"{path}/{key}")
    for kind in LABELS:
        if kind not in sample:
            continue
        _, offset, size = sample[kind]
        if size > MAX_LABEL:
            raise DataError(f"{where}.{kind} has {size:,} bytes: that is no label")
        file.seek(offset)
        text = file.read(size).decode("utf-8", "replace").strip()
        if kind == "json":
            try:
                values = json.loads(text)
            except ValueError as error:
                raise DataError(f"{where}.json is not JSON ({error})") from None
            found = [values[k] for k in JSON_KEYS if k in values] if isinstance(values, dict) else []
            if not found:
                continue
            text = str(found[0])
        if not text or "\n" in text:
            raise DataError(f"{where}.{kind} is no label: a class name or number on one line is expected")
        return printable(text)
    raise DataError(f"{where} has a picture and no label: {key}.cls, .json (with a key 'label') or .txt is expected")


def _split_key(name: str) -> tuple[str, str]:
    """`"a/0001.seg.png"` -> (`"a/0001"`, `"seg.png"`): the key ends at the first dot of the file's own name."""
    folder, slash, file = name.rpartition("/")
    key, _, suffix = file.partition(".")
    return folder + slash + key, suffix.lower()


def _split_of(name: str) -> str | None:
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def _class_names(folder: Path, words: Sequence[str]) -> list[str] | None:
    """The lines of the file that says what numbers stand for, where labels are numbers and there is one."""
    path = next((folder / name for name in CLASS_NAMES if (folder / name).is_file()), None)
    if path is None or not all(word.isascii() and word.isdigit() for word in words):
        return None
    names = path.read_text(encoding="utf-8").splitlines()
    if (most := max(int(word) for word in words)) >= len(names):
        raise DataError(f"{path} has {_count(len(names), 'line')}, and the shards have the label {most}")
    return names


def _braces(pattern: str) -> Iterator[str]:
    """`"a{1..3}"` -> a1 a2 a3, `"a{01..10}"` with the zeros, `"{a,b}"` -> a b; several multiply."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        yield pattern
        return
    span = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if span:
        width = len(span[1]) if span[1].startswith("0") else 0
        options = [f"{n:0{width}}" for n in range(int(span[1]), int(span[2]) + 1)]
    else:
        options = found[1].split(",")
    for option in options:
        yield from _braces(pattern[: found.start()] + option + pattern[found.end() :])


def _integers(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
