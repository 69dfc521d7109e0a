"""One self-contained HTML page: how good the classifier is, where it errs, and what it was shown."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.anatomy.cost import cost
from vitreous.base.files import write_text
from vitreous.evaluation.scores import Scores
from vitreous.pictures.images import read_image

THUMBNAIL = 160  # pixels of the longer side
EXAMPLES = 12


def write_report(
    path: Path,
    scores: Scores,
    *,
    log: Sequence[dict[str, float]] = (),
    title: str | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        scores: what was measured; some of its pictures are shown.
        log: the steps of the training run, for its curves.
        title: the page's title; None for the data's name and the accuracy.
        notes: sentences to put under the headline figure.
    """
    import jinja2

    from vitreous.evaluation import figures

    matrix = scores.confusion if len(scores.classes) <= figures.MOST_CLASSES_SHOWN else None
    labels = [c.label for c in scores.classes]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        (Path(__file__).parent / "report.html").read_text(encoding="utf-8")
    )
    page = template.render(
        title=title or f"{scores.data}: {scores.top1:.1%}",
        e=scores,
        interval=scores.interval(),
        chance=max(c.n for c in scores.classes) / scores.n,
        config=scores.predictor.config,
        parameters=cost(scores.predictor.config).params,
        preprocess=scores.predictor.preprocess,
        provenance=scores.predictor.provenance,
        notes=notes,
        curves=figures.curves(log, scores.top1) if log else None,
        confusion=None if matrix is None else figures.confusion(matrix, labels),
        bars=figures.class_bars(scores.classes),
        bars_cut=sum(c.n > 0 for c in scores.classes) > figures.MOST_CLASSES_SHOWN,
        mistakes=_examples(_mistakes(scores), scores),
        right=_examples(_right(scores), scores),
    )
    write_text(path, page)


def _mistakes(scores: Scores) -> list[int]:
    """The mistakes that the model was surest of."""
    wrong = np.flatnonzero(scores.guesses[:, 0] != scores.labels)
    return wrong[np.argsort(-scores.probabilities[wrong, 0], kind="stable")][:EXAMPLES].tolist()


def _right(scores: Scores) -> list[int]:
    """Some that were put right, spread over the classes."""
    right = np.flatnonzero(scores.guesses[:, 0] == scores.labels)
    return right[np.linspace(0, len(right) - 1, min(EXAMPLES, len(right))).astype(int)].tolist() if len(right) else []


def _examples(chosen: Sequence[int], scores: Scores) -> list[dict[str, Any]]:
    return [
        {
            "picture": thumbnail(read_image(scores.split.open(i))),
            "name": scores.names[i],
            "true": scores.predictor.label(int(scores.labels[i])),
            "guesses": [
                (scores.predictor.label(int(c)), float(p))
                for c, p in zip(scores.guesses[i][:3], scores.probabilities[i][:3], strict=True)
            ],
        }
        for i in chosen
    ]


def thumbnail(image: torch.Tensor, side: int = THUMBNAIL) -> str:
    """(3, H, W) uint8 -> a JPEG of at most `side` pixels as a `data:` address."""
    from PIL import Image

    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    picture.thumbnail((side, side))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
