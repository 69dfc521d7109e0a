"""The pictures of the walk-through, without words, so that they serve every language."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitreous import Classifier
from vitreous.base.files import write_text
from vitreous.model import patchify
from vitreous.report.style import BLUE, FAINT, INK, styled, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / "docs" / "walkthrough"


def patches(clf: Classifier, pixels: Tensor, x: Tensor) -> None:
    """The picture, the picture as the model sees it, and its patches pulled apart: `patches.svg`."""
    from matplotlib.figure import Figure

    (rows, columns), size = clf.model.config.grid, clf.model.config.patch_size
    with styled():
        made = Figure(figsize=(7.4, 2.5), layout="constrained")
        left, middle, right = made.subplots(1, 3)
        left.imshow(pixels.permute(1, 2, 0).numpy())
        seen = _seen(clf, x)
        middle.imshow(seen)
        for n in range(1, rows):
            middle.axhline(n * size[0] - 0.5, color="white", linewidth=1)
        for n in range(1, columns):
            middle.axvline(n * size[1] - 0.5, color="white", linewidth=1)
        gap = 2
        canvas = np.ones((rows * (size[0] + gap) - gap, columns * (size[1] + gap) - gap, 3))
        flat = patchify(x, size)[0]  # (N, C*P1*P2)
        for i, patch in enumerate(flat):
            top, side = i // columns * (size[0] + gap), i % columns * (size[1] + gap)
            one = _seen(clf, patch.view(1, -1, *size))
            canvas[top : top + size[0], side : side + size[1]] = one
            right.text(side, top + 1.2, str(i + 1), fontsize=6, color="white", va="center")
        right.imshow(canvas)
        _save(made, "patches", (left, middle, right))


def attention(clf: Classifier, x: Tensor, weights: Tensor) -> None:
    """What CLS reads in the last layer, head by head: (h, N) weights; `attention.svg`."""
    from matplotlib.figure import Figure

    config = clf.model.config
    with styled():
        made = Figure(figsize=(7.4, 1.9), layout="constrained")
        first, *others = made.subplots(1, 1 + config.num_heads)
        first.imshow(_seen(clf, x))
        top = float(weights.max())
        for axes, row in zip(others, weights, strict=True):
            picture = axes.imshow(row.view(config.grid).numpy(), cmap="cividis", vmin=0, vmax=top)
        bar = made.colorbar(picture, ax=others, shrink=0.8)
        bar.outline.set_visible(False)
        _save(made, "attention", (first, *others))


def probabilities(labels: tuple[str, ...], values: Tensor) -> None:
    """A bar a class, the largest in blue: `probabilities.svg`."""
    from matplotlib.figure import Figure

    with styled():
        made = Figure(figsize=(7.4, 1.7), layout="constrained")
        axes = made.subplots()
        best = int(values.argmax())
        axes.bar(labels, values.tolist(), color=[BLUE if i == best else FAINT for i in range(len(labels))], width=0.7)
        for i, value in enumerate(values.tolist()):
            axes.text(i, value + 0.02, f"{value:.3f}", ha="center", fontsize=8, color=INK)
        axes.set(ylim=(0, 1.1), yticks=[])
        axes.spines["left"].set_visible(False)
        write_text(FOLDER / "probabilities.svg", _xml(made))


def _seen(clf: Classifier, x: Tensor) -> Any:
    """(1, C, h, w) normalised -> (h, w, C) from 0 to 1."""
    mean, std = (np.asarray(values) for values in (clf.preprocess.mean, clf.preprocess.std))
    return (x[0].permute(1, 2, 0).numpy() * std + mean).clip(0, 1)


def _save(made: "Figure", name: str, panels: "tuple[Axes, ...]") -> None:
    for axes in panels:
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
    write_text(FOLDER / f"{name}.svg", _xml(made))


def _xml(made: "Figure") -> str:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "vitreous"}):
        return f'<?xml version="1.0" encoding="utf-8"?>\n{svg(made)}'
