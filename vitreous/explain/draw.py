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
from vitreous.explain.explanation import Explanation, Kind
from vitreous.explain.lens import LogitLens
from vitreous.explain.methods.reads import ReadoutAttention
from vitreous.explain.question import Question
from vitreous.explain.verification.verdict import Verdict
from vitreous.report.style import BLUE, FAINT, INK, ORANGE, png, styled, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitreous.explain.verification.verify import Check, Report

READ, EFFECT = "cividis", "RdBu_r"
MARKED = 3  # patches outlined on the picture
SHOWN = 0.998  # of the values of all heads lie within their common scale
UNPROVEN = (Verdict.UNTESTED, Verdict.REFUTED)


def seen(question: Question, image: int) -> np.ndarray:
    """The picture as the model sees it: (H, W, 3) from 0 to 1."""
    x = question.images[image].cpu()  # (C, H, W)
    if question.preprocess is not None:
        mean, std = torch.tensor(question.preprocess.mean), torch.tensor(question.preprocess.std)
        x = x * std[:, None, None] + mean[:, None, None]
    else:  # nobody said how it was normalised
        x = (x - x.min()) / (x.max() - x.min()).clamp(min=1e-9)
    return x.clamp(0, 1)[[0, 0, 0] if len(x) == 1 else [0, 1, 2]].permute(1, 2, 0).numpy()


def figure(explanation: Explanation, image: int = 0, check: "Check | None" = None) -> "Figure":
    """The picture with the map's first patches outlined, the map, its colour bar, and its stamp."""
    from matplotlib.figure import Figure

    with styled():
        made = Figure(figsize=(7.4, 4.35), layout="constrained")
        left, right = made.subplots(1, 2)
        question, values = explanation.question, explanation.map[image].cpu()
        left.imshow(seen(question, image), extent=_extent(question), interpolation="nearest")
        mark(left, values)
        left.set_title("as the model sees it; the map's first patches outlined", fontsize=8, color=FAINT)
        draw(right, explanation, image, check)
        right.set_title("\n".join(textwrap.wrap(explanation.caption, 46)), fontsize=9.5)
        for axes in (left, right):
            axes.set(xticks=[], yticks=[])
        verdict = check.verdict.value if check is not None else Verdict.UNTESTED.value
        note = "\n".join(textwrap.wrap(explanation.stamp(image, verdict), 118))
        made.supxlabel(note, fontsize=7, color=FAINT, x=0.01, ha="left")
        return made


def draw(axes: "Axes", explanation: Explanation, image: int, check: "Check | None" = None) -> None:
    """The map itself with its colour bar; hatched as long as nothing supports it."""
    values = explanation.map[image].cpu()
    effect = explanation.kind in (Kind.GRADIENT, Kind.INTERVENTION)
    top = float(values.abs().max() if effect else values.max()) or 1.0
    low = -top if effect else min(float(values.min()), 0.0)
    picture = axes.imshow(
        values.cpu().numpy(), cmap=EFFECT if effect else READ, vmin=low, vmax=top, extent=_extent(explanation.question),
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
        axes.text(column + 1.15, row + 0.5, str(rank), color="white", fontsize=8, va="center", path_effects=_halo())


def heads(read: ReadoutAttention, question: Question, image: int) -> "Figure":
    """Every layer and head on one common scale."""
    from matplotlib.figure import Figure

    weights = read.weights[image, :, :, question.prefix :].cpu()  # (L, h, N)
    layers, number, _ = weights.shape
    rows, columns = question.grid
    canvas = torch.full((layers * (rows + 2), number * (columns + 2)), float("nan"))
    for i in range(layers):
        for j in range(number):
            top, left = i * (rows + 2), j * (columns + 2)
            canvas[top : top + rows, left : left + columns] = weights[i, j].view(rows, columns)
    with styled():
        width = 7.4
        height = 0.9 + (width - 1.2) * canvas.shape[0] / canvas.shape[1]
        made = Figure(figsize=(width, min(height, 14)), layout="constrained")
        axes = made.subplots()
        limit = float(weights.quantile(SHOWN)) if weights.numel() < 10**7 else float(weights.max())
        picture = axes.imshow(np.asarray(canvas), cmap=READ, vmin=0, vmax=limit, interpolation="nearest")
        axes.set_xticks([j * (columns + 2) + columns / 2 for j in range(number)], [str(j) for j in range(number)])
        axes.set_yticks([i * (rows + 2) + rows / 2 for i in range(layers)], [str(i) for i in range(layers)])
        axes.set(xlabel="head", ylabel="layer")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        label = f"attention mass a patch; 1 patch in {round(1 / (1 - SHOWN))} is above the scale"
        bar = made.colorbar(picture, ax=axes, shrink=0.5, extend="max", label=label)
        bar.outline.set_visible(False)
        who = "the CLS token" if question.model.config.classifier == "token" else "the mean over all patches"
        axes.set_title(f"Where every head of every layer reads from, for {who}", fontsize=9.5)
        return made


def curves(checks: "list[Check]", operator: str) -> str:
    """Deletion and insertion of some maps under one operator, with the band of random orders and the controls; SVG."""
    from matplotlib.figure import Figure

    colours = (BLUE, ORANGE, "#7a4fb5")
    with styled():
        made = Figure(figsize=(7.4, 2.9), layout="constrained")
        panels = made.subplots(1, 2, sharey=True)
        first = checks[0].curves[operator]
        x = np.array(first["fractions"])
        titles = {"deletion": "deletion: patches removed, best first", "insertion": "insertion: only these kept"}
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            low, high = np.array(first["random_low"]), np.array(first["random_high"])
            if name == "insertion":  # a random order read backwards is a random order
                low, high = low[::-1], high[::-1]
            axes.fill_between(
                x if name == "deletion" else 1 - x[::-1], low, high, color="#d5dae2", label="90 % of random orders"
            )
            axes.plot(x, first[f"contrast_{name}"], color=FAINT, linestyle=":", label="contrast (no model)")
            axes.plot(x, first[f"centre_{name}"], color=FAINT, linestyle="--", linewidth=1, label="centre (no model)")
            for check, colour in zip(checks, colours, strict=False):
                axes.plot(
                    x, check.curves[operator][name], color=colour, linewidth=1.8, label=check.method.replace("_", " ")
                )
            axes.set(xlabel="share of the patches", title=title, xlim=(0, 1), ylim=(0, 1.02))
            axes.title.set_fontsize(9)
        panels[0].set_ylabel(f"p({checks[0].label})")
        panels[1].legend(frameon=False, fontsize=7.5, loc="lower right")
        return svg(made)


def lens(read: LogitLens, image: int, label: str) -> str:
    """The target's probability as the head would read it on the way; SVG."""
    from matplotlib.figure import Figure

    with styled():
        made = Figure(figsize=(7.4, 2.1), layout="constrained")
        axes = made.subplots()
        p = read.probability[image].cpu().numpy()
        places = np.arange(len(p)) / 2
        axes.plot(places, p, color=BLUE, marker="o", markersize=3)
        axes.set(xlabel="blocks passed", ylabel=f"p({label})", ylim=(0, 1.02), xlim=(0, places[-1]))
        axes.set_xticks(range(int(places[-1]) + 1))
        return svg(made)


def save(explanation: Explanation, path: Path, image: int = 0, report: "Report | None" = None) -> None:
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
