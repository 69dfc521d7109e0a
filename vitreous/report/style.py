"""How every figure looks: colours, fonts and lines, and how it is put into a page or a file."""

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, BLUE, ORANGE = "#1c2430", "#8a94a3", "#2f6fde", "#d9722e"
GREEN = "#2a9d6f"
DPI = 120
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
}


def svg(figure: "Figure") -> str:
    """The figure as one `<svg>` element."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def inline(figure: "Figure") -> str:
    """The figure as one `<svg>` element for a page of this package: it takes the page's light or dark colours."""
    import re

    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    found = svg(figure)
    for colour, name in ((INK, "ink"), (FAINT, "faint")):
        found = found.replace(colour, f"var(--{name})")
    size = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', found)
    assert size is not None
    width, height = (round(float(points) * 96 / 72) for points in size.groups())
    return found.replace(size.group(0), f'width="{width}" height="{height}"', 1)


def shades() -> Any:
    """A colour map from nothing to blue, for whatever page lies below."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    blue = to_rgb(BLUE)
    return LinearSegmentedColormap.from_list("shades", [(*blue, 0.0), (*blue, 1.0)])


def png(figure: "Figure") -> bytes:
    """The figure as the bytes of a PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    return data.getvalue()


def styled() -> Any:
    """A context in which matplotlib draws in this style."""
    import matplotlib  # takes longer than a command that draws nothing

    return matplotlib.rc_context(STYLE)  # type: ignore[arg-type, unused-ignore]
