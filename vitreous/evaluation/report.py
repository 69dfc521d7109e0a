"""One self-contained HTML page: how good the classifier is, where it errs, and what it was shown."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.base.files import write_text
from vitreous.classifier import Classifier
from vitreous.data.dataset import Split
from vitreous.evaluation.evaluate import Evaluation
from vitreous.pictures.images import read_image

THUMBNAIL = 160  # pixels of the longer side
EXAMPLES = 12


def write_report(
    path: Path,
    evaluation: Evaluation,
    clf: Classifier,
    split: Split,
    *,
    log: Sequence[dict[str, float]] = (),
    title: str | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        evaluation: what `evaluate` measured on `split`.
        clf: the classifier it belongs to.
        split: the pictures, to show some of them.
        log: the steps of the training run, for its curves.
        title: of the page; None for the data's name.
        notes: sentences to put under the headline figure.
    """
    import jinja2

    from vitreous.evaluation import figures

    matrix = evaluation.confusion if len(evaluation.classes) <= figures.MOST_CLASSES_SHOWN else None
    labels = [c.label for c in evaluation.classes]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        (Path(__file__).parent / "report.html").read_text(encoding="utf-8")
    )
    page = template.render(
        title=title or f"{evaluation.data}: {evaluation.top1:.1%}",
        e=evaluation,
        interval=evaluation.interval(),
        chance=max(c.n for c in evaluation.classes) / evaluation.n,
        config=clf.model.config,
        parameters=sum(p.numel() for p in clf.model.parameters()),
        preprocess=clf.preprocess,
        provenance=clf.provenance,
        notes=notes,
        curves=figures.curves(log, evaluation.top1) if log else None,
        confusion=None if matrix is None else figures.confusion(matrix, labels),
        bars=figures.class_bars(evaluation.classes),
        bars_cut=sum(c.n > 0 for c in evaluation.classes) > figures.MOST_CLASSES_SHOWN,
        mistakes=_examples(_mistakes(evaluation), evaluation, clf, split),
        right=_examples(_right(evaluation), evaluation, clf, split),
    )
    write_text(path, page)


def _mistakes(evaluation: Evaluation) -> list[int]:
    """The mistakes that the model was surest of."""
    wrong = np.flatnonzero(evaluation.guesses[:, 0] != evaluation.labels)
    return wrong[np.argsort(-evaluation.probabilities[wrong, 0], kind="stable")][:EXAMPLES].tolist()


def _right(evaluation: Evaluation) -> list[int]:
    """Some that were put right, spread over the classes."""
    right = np.flatnonzero(evaluation.guesses[:, 0] == evaluation.labels)
    return right[np.linspace(0, len(right) - 1, min(EXAMPLES, len(right))).astype(int)].tolist() if len(right) else []


def _examples(chosen: Sequence[int], evaluation: Evaluation, clf: Classifier, split: Split) -> list[dict[str, Any]]:
    return [
        {
            "picture": thumbnail(read_image(split.open(i))),
            "name": evaluation.names[i],
            "true": clf.label(int(evaluation.labels[i])),
            "guesses": [
                (clf.label(int(c)), float(p))
                for c, p in zip(evaluation.guesses[i][:3], evaluation.probabilities[i][:3], strict=True)
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
