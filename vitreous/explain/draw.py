"""Drawing maps so that none can pass for more than it is.

What was only read is drawn in one hue from zero up; what bears on the score in two, about zero. Patches
are squares with nothing interpolated between them. Every scale has its unit, and every exported picture
carries its caption and how it was made.
"""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitreous.base.files import atomic_write
from vitreous.explain.question import Question
from vitreous.explain.record import Kind, Map
from vitreous.explain.verification.check import MapCheck, Report
from vitreous.explain.verification.verdict import Verdict
from vitreous.report.style import FAINT, INK, png, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READ, EFFECT = "cividis", "RdBu_r"
OPAQUE = 0.75  # of the map where it is largest
MARKED = 3  # patches outlined on the picture
UNPROVEN = (Verdict.UNTESTED, Verdict.REFUTED)


def seen(question: Question, image: int) -> np.ndarray:
    """The picture as the model sees it: (H, W, 3) from 0 to 1."""
    x = question.images[image].cpu()  # (C, H, W)
    if question.preprocess is not None:
        x = question.preprocess.denormalise(x)
    else:  # nobody said how it was normalised
        x = (x - x.min()) / (x.max() - x.min()).clamp(min=1e-9)
    return x.clamp(0, 1)[[0, 0, 0] if len(x) == 1 else [0, 1, 2]].permute(1, 2, 0).numpy()


def figure(explanation: Map, image: int = 0, check: MapCheck | None = None) -> "Figure":
    """The picture with the map's first patches outlined, the map, its colour bar, and its stamp."""
    from matplotlib.figure import Figure

    with styled():
        made = Figure(figsize=(10.4, 4.35), layout="constrained")
        left, middle, right = made.subplots(1, 3)
        question, values = explanation.question, explanation.values[image].cpu()
        left.imshow(seen(question, image), extent=_extent(question), interpolation="nearest")
        mark(left, values)
        left.set_title("as the model sees it; the map's first patches outlined", fontsize=8, color=FAINT)
        overlay(middle, explanation, image)
        middle.set_title("the map over the picture in grey", fontsize=8, color=FAINT)
        draw(right, explanation, image, check)
        right.set_title("\n".join(textwrap.wrap(explanation.caption, 46)), fontsize=9.5)
        for axes in (left, middle, right):
            axes.set(xticks=[], yticks=[])
        verdict = check.verdict.value if check is not None else Verdict.UNTESTED.value
        note = "\n".join(textwrap.wrap(explanation.stamp(image, verdict), 165))
        made.supxlabel(note, fontsize=7, color=FAINT, x=0.01, ha="left")
        return made


def overlay(axes: "Axes", explanation: Map, image: int) -> None:
    """The map over the picture in grey, the more opaque the further from zero."""
    values = explanation.values[image].cpu()
    low, top = limits(explanation, values)
    grey = seen(explanation.question, image).mean(axis=2)
    extent = _extent(explanation.question)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest")
    opacity = (values.abs() / max(abs(low), top)).clamp(0, 1) * OPAQUE
    axes.imshow(
        values.numpy(), cmap=_colours(explanation), vmin=low, vmax=top, alpha=opacity.numpy(), extent=extent,
        interpolation="nearest",
    )  # fmt: skip
    for spine in axes.spines.values():
        spine.set_visible(False)


def limits(explanation: Map, values: Tensor) -> tuple[float, float]:
    """The ends of the colour scale: about zero for what bears on the score, from zero up for what was read."""
    effect = explanation.kind in (Kind.GRADIENT, Kind.INTERVENTION)
    top = float(values.abs().max() if effect else values.max()) or 1.0
    return -top if effect else min(float(values.min()), 0.0), top


def _colours(explanation: Map) -> str:
    return EFFECT if explanation.kind in (Kind.GRADIENT, Kind.INTERVENTION) else READ


def draw(axes: "Axes", explanation: Map, image: int, check: MapCheck | None = None) -> None:
    """The map itself with its colour bar; hatched as long as nothing supports it."""
    values = explanation.values[image].cpu()
    low, top = limits(explanation, values)
    picture = axes.imshow(
        values.numpy(), cmap=_colours(explanation), vmin=low, vmax=top, extent=_extent(explanation.question),
        interpolation="nearest",
    )  # fmt: skip
    _grid(axes, values.shape)
    if check is None or check.verdict in UNPROVEN:
        _hatch(axes, explanation.question, refuted=check is not None and check.verdict is Verdict.REFUTED)
    bar = axes.figure.colorbar(picture, ax=axes, shrink=0.78, pad=0.02, label=explanation.unit)
    bar.outline.set_visible(False)
    if "prefix_mass" in explanation.details and explanation.question.prefix:
        share = float(explanation.details["prefix_mass"][image])
        axes.set_xlabel(f"{share:.0%} of it goes to the CLS token itself: not drawn", fontsize=8)


def mark(axes: "Axes", values: Tensor) -> None:
    """Outline the patches that a map ranks first, with their ranks."""
    from matplotlib.patches import Rectangle

    columns = values.shape[1]
    for rank, place in enumerate(values.flatten().argsort(descending=True)[:MARKED].tolist(), start=1):
        row, column = divmod(place, columns)
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor="black", linewidth=2.6))
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor="white", linewidth=1.3))
        axes.text(
            column + 0.5, row + 0.5, str(rank), color="white", fontsize=8, ha="center", va="center",
            path_effects=_halo(),
        )  # fmt: skip


def save(explanation: Map, path: Path, image: int = 0, report: Report | None = None) -> None:
    """Write one map over its picture, with caption, colour bar and stamp, as a PNG."""
    data = png(figure(explanation, image, None if report is None else report[image]))
    with atomic_write(path) as file:
        file.write(data)


def _extent(question: Question) -> tuple[float, float, float, float]:
    rows, columns = question.grid
    return (0, columns, rows, 0)


def _grid(axes: "Axes", shape: torch.Size) -> None:
    rows, columns = shape
    axes.hlines(range(1, rows), 0, columns, color="white", linewidth=0.25)
    axes.vlines(range(1, columns), 0, rows, color="white", linewidth=0.25)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _hatch(axes: "Axes", question: Question, *, refuted: bool) -> None:
    from matplotlib.patches import Rectangle

    rows, columns = question.grid
    colour, pattern = (INK, "xx") if refuted else ("#9aa3af", "//")
    axes.add_patch(
        Rectangle((0, 0), columns, rows, fill=False, hatch=pattern, edgecolor=colour, linewidth=0, alpha=0.55)
    )


def _halo() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground="black")]
