"""One self-contained HTML page: how good the classifier is, where it errs, and what it was shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.anatomy.cost import cost
from vitreous.base.files import write_text
from vitreous.evaluation.scores import Scores
from vitreous.pictures.images import open_rgb
from vitreous.report.page import rows, thumbnail, words

Facts = Sequence[tuple[str, str]]
EXAMPLES = 12
MOST_CLASSES = 1000  # rows of the table; the lowest
PAIRS = 5


@dataclass(frozen=True)
class Story:
    """What a page says besides what was measured.

    Args:
        title: the page's title; None for the data's name and the accuracy.
        notes: sentences under the headline figure.
        log: the steps of the training run, for its curves.
        facts: rows for the table of the model, a name and a value each.
        changed: the training settings that are not the recipe's defaults, likewise.
        commands: what to do next, a sentence and a command each.
    """

    title: str | None = None
    notes: Sequence[str] = ()
    log: Sequence[dict[str, Any]] = ()
    facts: Facts = ()
    changed: Facts = ()
    commands: Facts = ()


def write_report(path: Path, scores: Scores, story: Story | None = None) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        scores: what was measured; some of its pictures are shown.
        story: what else the page says.
    """
    from vitreous.evaluation import figures  # matplotlib takes longer than a small evaluation
    from vitreous.report.page import render

    story, matrix = story or Story(), scores.confusion
    labels = [c.label for c in scores.classes]
    ranked = sorted((c for c in scores.classes if c.n), key=lambda c: c.accuracy or 0.0)
    drawn = matrix is not None and len(labels) <= figures.MOST_CLASSES_SHOWN
    page = render(
        "evaluation/report.html",
        title=story.title or f"{scores.data}: {scores.top1:.1%}",
        e=scores,
        right_count=round(scores.top1 * scores.n),
        interval=scores.interval(),
        chance=max(c.n for c in scores.classes) / scores.n,
        notes=story.notes,
        curves=figures.curves(story.log, scores.top1) if story.log else None,
        confusion=figures.confusion(matrix, labels) if drawn and matrix is not None else None,
        classes=ranked[:MOST_CLASSES],
        more_classes=max(len(ranked) - MOST_CLASSES, 0),
        confused={} if matrix is None else _taken_for(matrix, labels),
        pairs=[] if matrix is None else _pairs(matrix, scores),
        mistakes=_examples(_mistakes(scores), scores),
        right=_examples(_right(scores), scores),
        model=[*_model(scores), *story.facts],
        changed=story.changed,
        everything=rows(scores.predictor.provenance),
        commands=story.commands,
    )
    write_text(path, page)


def _model(scores: Scores) -> list[tuple[str, str]]:
    config, prepare = scores.predictor.config, scores.predictor.preprocess
    antialias = ", antialias" if prepare.antialias else ""
    return [
        ("encoder", f"{config.num_layers} layers, {config.hidden_size} wide, {config.num_heads} heads, MLP "
                    f"{config.mlp_dim}; {cost(config).params:,} parameters"),
        ("pictures", f"{config.image_size[0]}x{config.image_size[1]} pixels in patches of "
                     f"{config.stride[0]}x{config.stride[1]}: {config.num_tokens} tokens"),
        ("preprocessing", f"{prepare.resize}, {prepare.interpolation}{antialias}"),
        ("normalisation", f"mean {words(prepare.mean)}; standard deviation {words(prepare.std)}"),
    ]  # fmt: skip


def _taken_for(matrix: np.ndarray, labels: Sequence[str]) -> dict[str, str]:
    """Class -> the class that its pictures are most often mistaken for, and how often."""
    wrong = matrix * (1 - np.eye(len(matrix), dtype=matrix.dtype))  # (K, K)
    most = wrong.argmax(axis=1)
    return {labels[i]: f"{labels[j]} ({wrong[i, j]:,})" for i, j in enumerate(most) if wrong[i, j]}


def _pairs(matrix: np.ndarray, scores: Scores) -> list[dict[str, Any]]:
    """The pairs of classes that are most often confused, with the picture that the model was surest of."""
    wrong = matrix * (1 - np.eye(len(matrix), dtype=matrix.dtype))
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    found = []
    for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if not wrong[true, predicted]:
            break
        mistaken = np.flatnonzero((scores.labels == true) & (scores.guesses[:, 0] == predicted))
        surest = int(mistaken[scores.probabilities[mistaken, 0].argmax()])
        found.append(
            {
                "true": scores.predictor.label(int(true)),
                "predicted": scores.predictor.label(int(predicted)),
                "count": int(wrong[true, predicted]),
                "share": float(wrong[true, predicted] / matrix[true].sum()),
                "name": scores.names[surest],
                "picture": _thumbnail(scores, surest),
            }
        )
    return found


def _mistakes(scores: Scores) -> list[int]:
    """The mistakes that the model was surest of."""
    wrong = np.flatnonzero(scores.guesses[:, 0] != scores.labels)
    return wrong[np.argsort(-scores.probabilities[wrong, 0], kind="stable")][:EXAMPLES].tolist()


def _right(scores: Scores) -> list[int]:
    """Some that were put right, spread over the classes."""
    right = np.flatnonzero(scores.guesses[:, 0] == scores.labels)
    return right[np.linspace(0, len(right) - 1, min(EXAMPLES, len(right))).astype(int)].tolist() if len(right) else []


def _examples(chosen: Sequence[int], scores: Scores) -> list[dict[str, Any]]:
    label = scores.predictor.label
    return [
        {
            "picture": _thumbnail(scores, i),
            "name": scores.names[i],
            "true": label(int(scores.labels[i])),
            "guesses": [
                (label(int(c)), float(p))
                for c, p in zip(scores.guesses[i][:3], scores.probabilities[i][:3], strict=True)
            ],
        }
        for i in chosen
    ]


def _thumbnail(scores: Scores, index: int) -> str:
    return thumbnail(open_rgb(scores.split.open(index)))
