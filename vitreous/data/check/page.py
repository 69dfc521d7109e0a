"""The findings of a check as one self-contained HTML page, with thumbnails."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.base.errors import VitreousError
from vitreous.base.files import write_text
from vitreous.data.check.findings import Check, Finding, Item
from vitreous.data.dataset import DataSet
from vitreous.pictures.images import open_rgb
from vitreous.report import page as pages
from vitreous.report.style import BLUE, ORANGE, inline, styled

MOST_ITEMS = 24  # shown of each finding
MOST_OF_A_GROUP = 6
MOST_CLASSES = 60
SOME = 6  # pictures shown of each class
SIDE = 120  # pixels of them


def write_page(path: Path, check: Check, data: DataSet) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        check: what was found.
        data: in which data set, to show its pictures.
    """
    labels = sorted({label for counts in check.counts.values() for label in counts})
    counted = [(label, [counts.get(label, 0) for counts in check.counts.values()]) for label in labels]
    page = pages.render(
        "data/check/page.html",
        check=check,
        errors=sum(finding.severity == "error" for finding in check.findings),
        findings=[_shown(finding, data) for finding in check.findings],
        rows=[
            {"label": label, "counts": counts, "some": _some(data, label)} for label, counts in counted[:MOST_CLASSES]
        ],
        more_classes=max(len(counted) - MOST_CLASSES, 0),
        most=max((count for _, counts in counted for count in counts), default=1),
        size=f"{check.size / 1e6:,.1f} MB",
        sizes=_sizes(check) if len(check.sides) > 1 else "",
    )
    write_text(path, page)


def _shown(finding: Finding, data: DataSet) -> dict[str, Any]:
    items = [_card(item, data) for item in finding.items[:MOST_ITEMS]]
    return {
        "finding": finding,
        "items": items,
        "pictures": any(item["pictures"] for item in items),
        "more": max(len(finding.items) - MOST_ITEMS, 0),
    }


def _card(item: Item, data: DataSet) -> dict[str, Any]:
    pictures = [
        {"name": name, "source": thumbnail(data, *place)}
        for name, place in zip(item.names[:MOST_OF_A_GROUP], item.places, strict=False)
    ]
    return {"item": item, "pictures": pictures, "more": max(len(item.names) - max(len(pictures), 1), 0)}


def _some(data: DataSet, label: str) -> list[dict[str, str]]:
    """A few pictures of a class, evenly spread over those of its first split."""
    for name, split in data.splits.items():
        if label not in split.classes:
            continue
        places = np.flatnonzero(split.labels == split.classes.index(label))
        if len(places):
            chosen: Sequence[int] = places[:: max(len(places) // SOME, 1)][:SOME].tolist()
            return [{"name": split.names[i], "source": thumbnail(data, name, i, SIDE)} for i in chosen]
    return []


def _sizes(check: Check) -> str:
    """How many pictures have which shorter side and which shape; SVG."""
    from matplotlib.figure import Figure  # takes longer than a small check

    sides = np.array(list(check.sides), dtype=np.float64)  # (m, 2): width, height
    many = np.array(list(check.sides.values()))
    with styled():
        figure = Figure(figsize=(9.6, 2.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        shorter = sides.min(axis=1)
        edges = np.geomspace(shorter.min() * 0.9, shorter.max() * 1.1, 25)
        left.hist(shorter, bins=edges.tolist(), weights=many, color=BLUE)
        left.set(xscale="log", xlabel="shorter side (pixels)", ylabel="pictures")
        ticks = [n for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192) if edges[0] <= n <= edges[-1]]
        left.set_xticks(ticks, [f"{n:,}" for n in ticks])
        left.minorticks_off()
        ratio = sides[:, 0] / sides[:, 1]
        right.hist(np.clip(ratio, 0.25, 4), bins=np.geomspace(0.25, 4, 25).tolist(), weights=many, color=ORANGE)
        right.set(xscale="log", xlabel="width / height", xlim=(0.25, 4))
        right.set_xticks([0.25, 0.5, 1, 2, 4], ["1:4", "1:2", "1:1", "2:1", "4:1"])
        right.minorticks_off()
        return inline(figure)


def thumbnail(data: DataSet, split: str, index: int, side: int = pages.THUMBNAIL) -> str:
    """A picture as the `data:` address of a small JPEG; empty where it cannot be read."""
    try:
        return pages.thumbnail(open_rgb(data.splits[split].open(index), at_least=(side, side)), side)
    except (VitreousError, OSError):
        return ""
