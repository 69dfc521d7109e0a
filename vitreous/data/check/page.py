"""The findings of a check as one self-contained HTML page, with thumbnails."""

import base64
import io
from pathlib import Path
from typing import Any

from vitreous.base.errors import VitreousError
from vitreous.base.files import write_text
from vitreous.data.check.findings import Check, Finding, Item
from vitreous.data.dataset import DataSet
from vitreous.pictures.images import open_rgb

THUMBNAIL = 160  # pixels of the longer side
MOST_ITEMS = 24  # shown of each finding
MOST_OF_A_GROUP = 6
MOST_CLASSES = 60


def write_page(path: Path, check: Check, data: DataSet) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        check: what was found.
        data: in which data set, to show its pictures.
    """
    import jinja2

    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    )
    labels = sorted({label for counts in check.counts.values() for label in counts})
    rows = [(label, [counts.get(label, 0) for counts in check.counts.values()]) for label in labels]
    page = template.render(
        check=check,
        errors=sum(finding.severity == "error" for finding in check.findings),
        findings=[_shown(finding, data) for finding in check.findings],
        rows=rows[:MOST_CLASSES],
        more_classes=max(len(rows) - MOST_CLASSES, 0),
        most=max((count for _, counts in rows for count in counts), default=1),
        size=f"{check.size / 1e6:,.1f} MB",
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


def thumbnail(data: DataSet, split: str, index: int) -> str:
    """A picture as the `data:` address of a small JPEG; empty where it cannot be read."""
    try:
        picture = open_rgb(data.splits[split].open(index), at_least=(THUMBNAIL, THUMBNAIL)).copy()
    except (VitreousError, OSError):
        return ""
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"
