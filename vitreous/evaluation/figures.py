"""The pictures of a report: curves, confusion, bars; as SVG text to put into a page."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitreous.evaluation.scores import ClassResult
from vitreous.report.style import BLUE, FAINT, INK, ORANGE, styled, svg

MOST_CLASSES_SHOWN = 40


def curves(log: Sequence[dict[str, float]], final: float) -> str:
    """Training loss by step, faint as it was and firm as its running mean; accuracy on the way to the `final` one."""
    with styled():
        figure = Figure(figsize=(7.2, 2.6), layout="constrained")
        measured = [(entry["step"] + 1, entry["val_top1"]) for entry in log if "val_top1" in entry]
        axes = figure.subplots(1, 3 if measured else 2, squeeze=False)[0]
        steps = np.array([entry["step"] + 1 for entry in log])
        loss = np.array([entry["loss"] for entry in log])
        axes[0].plot(steps, loss, color=BLUE, alpha=0.25, linewidth=0.8)
        axes[0].plot(steps, running_mean(loss, max(len(loss) // 40, 1)), color=BLUE, linewidth=1.6)
        axes[0].set(xlabel="step", ylabel="training loss (nats)")
        axes[0].set_ylim(bottom=0)
        axes[1].plot(steps, [entry["lr"] for entry in log], color=ORANGE, linewidth=1.6)
        axes[1].set(xlabel="step", ylabel="learning rate")
        axes[1].set_ylim(bottom=0)
        if measured:
            points = [*measured, (log[-1]["step"] + 1, final)]
            axes[2].plot(*zip(*points, strict=True), color=INK, marker="o", markersize=3.5, linewidth=1.4)
            axes[2].set(xlabel="step", ylabel="held-out accuracy", ylim=(0, 1))
            axes[2].yaxis.set_major_formatter(PercentFormatter(1.0))
        return svg(figure)


def confusion(matrix: np.ndarray, labels: Sequence[str]) -> str:
    """True class by predicted class, each row as shares of its class; the counts are written in."""
    with styled():
        k = len(labels)
        size = 2.0 + 0.34 * k
        figure = Figure(figsize=(size, size * 0.92), layout="constrained")
        axes = figure.subplots()
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
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
        bar = figure.colorbar(image, ax=axes, shrink=0.7, label="share of the true class")
        bar.outline.set_visible(False)
        return svg(figure)


def class_bars(classes: Sequence[ClassResult]) -> str:
    """Accuracy of every class, the worst on top, with its number of pictures."""
    with styled():
        shown = sorted((c for c in classes if c.n), key=lambda c: c.accuracy or 0.0)[:MOST_CLASSES_SHOWN]
        figure = Figure(figsize=(3.6, 0.6 + 0.26 * len(shown)), layout="constrained")
        axes = figure.subplots()
        places = range(len(shown))
        axes.barh(places, [c.accuracy or 0.0 for c in shown], color=BLUE, height=0.7)
        for place, c in zip(places, shown, strict=True):
            axes.text(1.02, place, f"{c.correct} of {c.n}", va="center", fontsize=8, color=FAINT)
        axes.set_yticks(places, [c.label for c in shown])
        axes.set(xlim=(0, 1))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.invert_yaxis()
        return svg(figure)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over the last `width` values, over fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)
