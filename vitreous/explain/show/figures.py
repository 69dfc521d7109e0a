"""The figures of an explanation's page that are no maps: all heads, deletion and insertion, the logit lens."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from vitreous.explain.draw import READ
from vitreous.explain.lens import LogitLens
from vitreous.explain.methods.reads import ReadoutAttention
from vitreous.explain.question import Question
from vitreous.explain.verification.check import MapCheck
from vitreous.report.style import BLUE, FAINT, ORANGE, inline, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 0.998  # of the values of all heads lie within their common scale


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
        axes.set_title(f"Where every head of every layer reads from, for {question.reader}", fontsize=9.5)
        return made


def curves(checks: list[MapCheck], operator: str) -> str:
    """Deletion and insertion of some maps under one operator, with the band of random orders and the controls; SVG."""
    from matplotlib.figure import Figure

    colours = (BLUE, ORANGE, "#7a4fb5")
    with styled():
        made = Figure(figsize=(9.6, 3.6), layout="constrained")
        panels = made.subplots(1, 2, sharey=True)
        first = checks[0].curves[operator]
        x = np.array(first["fractions"])
        titles = {"deletion": "deletion: patches removed, best first", "insertion": "insertion: only these kept"}
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            low, high = np.array(first["random_low"]), np.array(first["random_high"])
            if name == "insertion":  # a random order read backwards is a random order
                low, high = low[::-1], high[::-1]
            axes.fill_between(
                x if name == "deletion" else 1 - x[::-1], low, high, color=FAINT, alpha=0.3, linewidth=0,
                label="90 % of random orders",
            )  # fmt: skip
            axes.plot(x, first[f"edges_{name}"], color=FAINT, linestyle=":", label="edges (no model)")
            axes.plot(x, first[f"centre_{name}"], color=FAINT, linestyle="--", linewidth=1, label="centre (no model)")
            for check, colour in zip(checks, colours, strict=False):
                axes.plot(
                    x, check.curves[operator][name], color=colour, linewidth=1.8, label=check.method.replace("_", " ")
                )
            axes.set(xlabel="share of the patches", title=title, xlim=(0, 1), ylim=(0, 1.02))
            axes.title.set_fontsize(9)
        panels[0].set_ylabel(f"p({checks[0].label})")
        handles, labels = panels[1].get_legend_handles_labels()
        made.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=3)
        return inline(made)


def lens(read: LogitLens, image: int, label: str) -> str:
    """The target's probability as the head would read it on the way; SVG."""
    from matplotlib.figure import Figure

    with styled():
        made = Figure(figsize=(9.6, 2.3), layout="constrained")
        axes = made.subplots()
        p = read.probability[image].cpu().numpy()
        places = np.arange(len(p)) / 2
        axes.plot(places, p, color=BLUE, marker="o", markersize=3)
        axes.set(xlabel="blocks passed", ylabel=f"p({label})", ylim=(0, 1.02), xlim=(0, places[-1]))
        axes.set_xticks(range(int(places[-1]) + 1))
        return inline(made)
