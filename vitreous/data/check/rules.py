"""From what was seen to what is wrong."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from PIL import Image

from vitreous.data.check.duplicates import alike, groups, near, same
from vitreous.data.check.findings import Item
from vitreous.data.check.look import Look, readable_formats
from vitreous.data.dataset import SPLITS, DataSet
from vitreous.data.folder import is_picture

ENORMOUS = 40_000_000  # pixels
TINY = 16  # pixels of the shorter side
OUTLIER = 100  # times as many pixels as the median picture, or as few
ELONGATED = 4  # longer side by shorter side
IMBALANCE = 10  # pictures of the largest class by those of the smallest
FEW = 5  # pictures of a class
PLAIN_MODES = ("RGB", "L", "P")

Found = Iterator[tuple[str, Item]]  # the kind, and one instance


@dataclass(frozen=True)
class Seen:
    """All pictures of all splits in a row.

    Args:
        data: they belong to.
        splits, indices: where each is.
        looks: at each.
    """

    data: DataSet
    splits: list[str]
    indices: list[int]
    looks: list[Look]

    def name(self, place: int) -> str:
        """Of a picture, within the data set."""
        return self.data.splits[self.splits[place]].names[self.indices[place]]

    def label(self, place: int) -> str:
        """The class of a picture."""
        split = self.data.splits[self.splits[place]]
        return split.classes[split.labels[self.indices[place]]]

    def item(self, places: Sequence[int], detail: str = "") -> Item:
        """A picture, or a group of them."""
        where = tuple((self.splits[place], self.indices[place]) for place in places)
        return Item(tuple(self.name(place) for place in places), detail, where)


def of_pictures(seen: Seen) -> Found:
    """What is wrong with single pictures."""
    sizes = [look.width * look.height for look in seen.looks if look.error is None]
    median = float(np.median(sizes)) if sizes else 0.0
    for place, look in enumerate(seen.looks):
        if look.error is not None:
            yield look.kind, seen.item([place], look.error)
            continue
        for kind, detail in _oddities(look, seen.name(place), median):
            yield kind, seen.item([place], detail)


def _oddities(look: Look, name: str, median: float) -> Iterator[tuple[str, str]]:
    size, pixels = f"{look.width}x{look.height} pixels", look.width * look.height
    usual = _formats(name)
    if look.format and usual and look.format not in usual:
        yield "wrong suffix", f"{look.format}"
    if look.turned != 1:
        yield "rotated", f"orientation {look.turned}"
    if look.mode not in PLAIN_MODES or look.transparent:
        yield "odd mode", look.mode + (", with transparency" if look.transparent else "")
    if look.animated:
        yield "animated", look.format
    if pixels > ENORMOUS or pixels > OUTLIER * median:
        yield "enormous", size
    elif min(look.width, look.height) < TINY or pixels * OUTLIER < median:
        yield "tiny", size
    if max(look.width, look.height) >= ELONGATED * min(look.width, look.height):
        yield "elongated", size
    if look.flat:
        yield "one colour", ""


def _formats(name: str) -> tuple[str, ...]:
    """What a file of this name should be; nothing where the name does not say."""
    Image.init()
    suffix = PurePosixPath(name).suffix.lower()
    said = Image.registered_extensions().get(suffix, "")
    if said in ("JPEG", "MPO"):
        return ("JPEG", "MPO")  # two pictures in one file, as some cameras write
    return (said,) if said else ()


def of_copies(seen: Seen) -> Found:
    """The same picture in several places."""
    exact = same([look.pixels for look in seen.looks])
    again = set()
    for group in exact:
        files = {seen.looks[place].contents for place in group}
        yield _where(seen, group, "copies"), seen.item(group, "the same file" if len(files) == 1 else "the same pixels")
        again |= set(group[1:])
    places = [
        place for place, look in enumerate(seen.looks) if look.error is None and not look.flat and place not in again
    ]
    if not places:
        return
    looks = [seen.looks[place] for place in places]
    grey, colour = np.stack([look.grey for look in looks]), np.stack([look.colour for look in looks])
    pairs = near(np.array([look.gradient for look in looks], dtype=np.uint64))
    for group in groups(len(places), pairs[alike(grey, colour, pairs)]):
        members = [places[i] for i in group]
        yield _where(seen, members, "near-copies"), seen.item(members)


def _where(seen: Seen, places: Sequence[int], what: str) -> str:
    if len({seen.splits[place] for place in places}) > 1:
        return f"{what} across splits"
    return f"{what} across classes" if len({seen.label(place) for place in places}) > 1 else f"{what} in a class"


def of_classes(data: DataSet) -> Found:
    """What is wrong with the classes, within and across splits."""
    counts = {name: dict(zip(s.classes, s.counts(), strict=True)) for name, s in data.splits.items()}
    present = {name: {c for c, n in classes.items() if n} for name, classes in counts.items()}
    training = "train" if "train" in counts else "all" if "all" in counts else None
    every = sorted(set().union(*present.values()))
    if len(every) == 1:
        yield "one class", Item((every[0],))
    for label in every:
        if label.startswith("_"):
            yield "odd class", Item((label,))
    for alikes in _grouped(every, _simplified):
        yield "similar names", Item(tuple(alikes))
    if training is None:
        return
    for name, found in present.items():
        for label in sorted(found - present[training]):
            yield "unknown class", Item((label,), f"{counts[name][label]:,} pictures in {name}")
    for label in sorted(present[training]):
        if len(counts) > 1 and not any(label in found for name, found in present.items() if name != training):
            yield "not measured", Item((label,))
        if counts[training][label] < FEW:
            yield "few pictures", Item((label,), f"{counts[training][label]}")
    ranked = sorted(present[training], key=lambda label: counts[training][label])
    if ranked and counts[training][ranked[-1]] >= IMBALANCE * counts[training][ranked[0]]:
        least, most = counts[training][ranked[0]], counts[training][ranked[-1]]
        yield "imbalance", Item((ranked[-1], ranked[0]), f"{most:,} and {least:,} pictures")


def _grouped(names: Sequence[str], key: Callable[[str], str]) -> list[list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[key(name)].append(name)
    return [group for group in found.values() if len(group) > 1]


def _simplified(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()


def of_folders(data: DataSet) -> Found:
    """What is wrong with where files lie, and with their names."""
    left = data.left_out
    yield from (("loose", Item((name,))) for name in left.loose)
    yield from (("empty class", Item((name,))) for name in left.empty)
    yield from _counted("left out", [name.partition("/")[0] if "/" in name else name for name in left.outside])
    yield from _counted("hidden", [_hidden_part(name) for name in left.hidden if is_picture(name) and not _apple(name)])
    yield from (("unseen", Item((name,), kind)) for name in left.others if (kind := _sniff(data, name)))
    inner: list[str] = []
    for name, split in data.splits.items():
        nested = split.root.is_dir() or split.root.suffix in (".zip", ".tar")
        depth = 1 if name == "all" else 2
        for index, (row, shown) in enumerate(zip(split.rows, split.names, strict=True)):
            if any("\udc80" <= c <= "\udcff" for c in split.source.name(int(row))):
                yield "bad name", Item((shown,), places=((name, index),))
            if nested and shown.count("/") > depth:
                inner.append(shown.rpartition("/")[0])
        if nested:
            outer = [label for label in split.classes if label.lower() in SPLITS]
            yield from (("split name", Item((label,), "a class")) for label in outer)
    yield from _counted("split name", [f for f in inner if any(p.lower() in SPLITS for p in f.split("/")[1:])])
    yield from _counted("nested", [f for f in inner if not any(p.lower() in SPLITS for p in f.split("/")[1:])])


def _counted(kind: str, folders: Sequence[str]) -> Found:
    for folder in sorted(set(folders)):
        count = folders.count(folder)
        yield kind, Item((folder,), f"{count:,} picture{'' if count == 1 else 's'}")


def _hidden_part(name: str) -> str:
    """The folder or file that starts with a dot, with those above it."""
    parts = name.split("/")
    first = next(i for i, part in enumerate(parts) if part.startswith((".", "__")))
    return "/".join(parts[: first + 1])


def _apple(name: str) -> bool:
    """What macOS puts beside files of other systems: never a picture."""
    parts = name.split("/")
    return "__MACOSX" in parts or parts[-1].startswith("._")


def _sniff(data: DataSet, name: str) -> str:
    """The format of a picture in a file that is not named like one."""
    path = data.root / name
    if not path.is_file():
        return ""
    try:
        with Image.open(path, formats=readable_formats()) as image:
            return image.format or ""
    except Exception:  # it is none, or one that cannot be read: nothing to tell of
        return ""
