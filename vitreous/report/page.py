"""What all pages are made with: the template, small pictures inside the page, and settings as rows for people."""

import base64
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

THUMBNAIL = 320  # pixels of the longer side: sharp on a phone, and enough to enlarge
HOUSE = Path(__file__).parents[1]


def render(template: str, **values: Any) -> str:
    """One self-contained page.

    Args:
        template: its place in the package, as `"evaluation/report.html"`; it extends `report/base.html`.
        values: what the template names.
    """
    import jinja2  # takes longer than a command that writes no page

    loader = jinja2.FileSystemLoader(HOUSE)
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["share"] = lambda value: "-" if value is None else f"{value:.1%}"
    made.filters["count"] = "{:,}".format
    made.filters["capital"] = lambda text: text[:1].upper() + text[1:]
    return made.get_template(template).render(**values)


def thumbnail(picture: "Image", side: int = THUMBNAIL) -> str:
    """The picture as a JPEG of at most `side` pixels, as a `data:` address."""
    small = picture.convert("RGB")
    small.thumbnail((side, side))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=82)
    return data_address(data.getvalue(), "jpeg")


def data_address(data: bytes, kind: str = "png") -> str:
    """The bytes of a picture as an address that a page can hold."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def rows(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as rows of a table, a name and a value in words: `{"data": {"n": 3}}` -> `("data, n", "3")`."""
    return list(_rows(values, prefix))


def _rows(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{', ' if prefix else ''}{str(key).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _rows(value, name)
        else:
            yield name, words(value)


def words(value: Any) -> str:
    """A setting as a person would write it."""
    if value is None or value == [] or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        shown = ", ".join(words(v) for v in value[:12])
        return shown if len(value) <= 12 else f"{shown} and {len(value) - 12:,} more"
    return str(value)
