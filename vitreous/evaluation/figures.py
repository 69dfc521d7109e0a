"""The pictures of a report: curves, confusion, bars; as SVG text to put into a page."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitreous.report.style import BLUE, FAINT, GREEN, INK, ORANGE, inline, shades, styled

MOST_CLASSES_SHOWN = 40


def curves(log: Sequence[dict[str, float]], final: float) -> str:
    """Training and held-out loss, held-out accuracy up to the `final` one with its best marked, and the learning rate.

    The training loss is faint as it was, and firm as its running mean.
    """
    with styled():
        figure = Figure(figsize=(10.6, 2.9), layout="constrained")
        measured = [entry for entry in log if "val_top1" in entry]
        panels = figure.subplots(1, 3 if measured else 2, squeeze=False)[0]
        steps, last = np.array([entry["step"] + 1 for entry in log]), log[-1]["step"] + 1
        loss = np.array([entry["loss"] for entry in log])
        panels[0].plot(steps, loss, color=BLUE, alpha=0.25, linewidth=0.8)
        panels[0].plot(steps, running_mean(loss, max(len(loss) // 40, 1)), color=BLUE, linewidth=1.6, label="training")
        panels[0].set(xlabel="step", ylabel="loss (nats)")
        if measured:
            places = [entry["step"] + 1 for entry in measured]
            held_out = [entry["val_loss"] for entry in measured]
            panels[0].plot(places, held_out, color=ORANGE, marker="o", markersize=3.5, linewidth=1.4, label="held out")
            panels[0].legend(frameon=False, fontsize=8)
            places, top1 = [*places, last], [*(entry["val_top1"] for entry in measured), final]
            panels[1].plot(places, top1, color=ORANGE, marker="o", markersize=3.5, linewidth=1.4)
            best = int(np.argmax(top1))
            panels[1].plot(places[best], top1[best], "o", color=GREEN, markersize=7, label=f"best, {top1[best]:.1%}")
            panels[1].set(xlabel="step", ylabel="held-out accuracy", ylim=(0, 1))
            panels[1].yaxis.set_major_formatter(PercentFormatter(1.0))
            panels[1].legend(frameon=False, fontsize=8, loc="lower right")
        panels[-1].plot(steps, [entry["lr"] for entry in log], color=FAINT, linewidth=1.6)
        panels[-1].set(xlabel="step", ylabel="learning rate")
        for axes in panels:
            axes.set_xlim(0, last * 1.02)
            axes.set_ylim(bottom=0)
        return inline(figure)


def confusion(matrix: np.ndarray, labels: Sequence[str]) -> str:
    """True class by predicted class, coloured by the share of the true class; the counts are written in."""
    with styled():
        k = len(labels)
        size = 2.0 + 0.34 * k
        figure = Figure(figsize=(size, size * 0.92), layout="constrained")
        axes = figure.subplots()
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap=shades(), vmin=0, vmax=1)
        for row in range(k):
            for column in range(k):
                if count := int(matrix[row, column]):
                    colour = "white" if shares[row, column] > 0.55 else INK
                    axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(k), labels, rotation=0 if max(map(len, labels)) < 4 else 60)
        axes.set_yticks(range(k), labels)
        axes.set(xlabel="predicted", ylabel="true")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return inline(figure)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over the last `width` values, over fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)
