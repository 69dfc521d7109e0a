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


def png(figure: "Figure") -> bytes:
    """The figure as the bytes of a PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    return data.getvalue()


def styled() -> Any:
    """A context in which matplotlib draws in this style."""
    import matplotlib  # takes longer than a command that draws nothing

    return matplotlib.rc_context(STYLE)  # type: ignore[arg-type, unused-ignore]
