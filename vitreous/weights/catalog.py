"""The official Google checkpoints by name, with what is published about each; the facts are in `catalog.csv`."""

import csv
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from vitreous.base.errors import WeightsError, did_you_mean
from vitreous.config import VARIANTS

# An AugReg file name: what was trained how, and then how it was fine-tuned.
_AUGREG = re.compile(
    r"(?P<model>augreg/\w+-i2?1k)-300ep-lr_0\.001-aug_(?P<aug>\w+)-wd_(?P<wd>[\d.]+)-do_(?P<do>[\d.]+)-sd_[\d.]+"
    r"(--imagenet2012-steps_20k-lr_(?P<lr>[\d.]+)-res_(?P<size>\d+))?"
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One published checkpoint; None where no source says it.

    Args:
        path: in the bucket, without `.npz`.
        variant: one of `config.VARIANTS`.
        image_size: pixels a side.
        pretrained: the pictures it was trained on first.
        finetuned: those it was fine-tuned on then.
        google_top1: ImageNet accuracy in per cent, as Google reports it.
        timm_top1: the same as timm measures it, with its own preprocessing.
    """

    path: str
    variant: str
    image_size: int | None
    pretrained: str
    finetuned: str | None
    google_top1: float | None
    timm_top1: float | None

    @property
    def name(self) -> str:
        """The path, or for AugReg what tells it from the others, e.g. `augreg/B_16-i21k-medium1-wd_0.1-lr_0.03-384`."""
        if not (found := _AUGREG.fullmatch(self.path)):
            return self.path
        name = f"{found['model']}-{found['aug']}-wd_{found['wd']}"
        if found["do"] != "0.0":
            name += f"-do_{found['do']}"
        return f"{name}-lr_{found['lr']}-{found['size']}" if found["lr"] else name

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the name among them."""
        return {"name": self.name, **asdict(self)}


@cache
def entries() -> tuple[Entry, ...]:
    """Every checkpoint that is known, in the order of the collections."""
    text = (resources.files("vitreous.weights") / "catalog.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Entry(
            path=row["path"],
            variant=row["variant"],
            image_size=int(row["image_size"]) if row["image_size"] else None,
            pretrained=row["pretrained"],
            finetuned=row["finetuned"] or None,
            google_top1=float(row["google_top1"]) if row["google_top1"] else None,
            timm_top1=float(row["timm_top1"]) if row["timm_top1"] else None,
        )
        for row in rows
    )


def search(words: Iterable[str] = ()) -> list[Entry]:
    """The entries that match every word: a variant (`B/16`), a resolution (`384`), or a part of the name."""
    wanted = list(words)
    return [entry for entry in entries() if all(_matches(entry, word) for word in wanted)]


def resolve(name: str) -> str:
    """The path in the bucket of a checkpoint's name, or of its path.

    A path that is not listed is taken as it is, as there are far more files than entries.

    Raises:
        WeightsError: for what can be neither, with the nearest name.
    """
    wanted = name.removesuffix(".npz")
    for entry in entries():
        if wanted in (entry.name, entry.path):
            return entry.path
    folder, _, file = wanted.partition("/")
    known = {entry.path.partition("/")[0] for entry in entries()}
    if folder not in known or not re.fullmatch(r"[\w.+-]+", file) or (folder == "augreg" and "-aug_" not in file):
        near = did_you_mean(name, [entry.name for entry in entries()])
        raise WeightsError(f"google:{name} is no published checkpoint{near}: `vitreous models` lists them")
    return wanted


def _matches(entry: Entry, word: str) -> bool:
    if variant := _VARIANTS.get(word.lower().removeprefix("vit-").replace("_", "/")):
        return entry.variant == variant
    if word.isdecimal():
        return str(entry.image_size) == word
    texts = (entry.name, entry.path, entry.pretrained, entry.finetuned or "")
    return any(word.lower() in text.lower() for text in texts)


_VARIANTS = {name.lower(): name for name in VARIANTS}
