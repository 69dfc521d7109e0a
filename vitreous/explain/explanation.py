"""What every method returns: a map that can be tested and drawn."""

import time
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.explain import draw
from vitreous.explain.question import Question
from vitreous.explain.record import Compute, Details, Kind, Map
from vitreous.explain.verification.check import Report
from vitreous.explain.verification.verify import verify

__all__ = ["Compute", "Details", "Explanation", "Kind", "explain", "given"]


class Explanation(Map):
    """A map over the patches of each picture, to be tested with `verify` and drawn with `save`."""

    def verify(self, budget: str = "full", **settings: Any) -> Report:
        """Test the map against interventions and controls: `vitreous.explain.verify`."""
        return verify(self, budget=budget, **settings)

    def save(self, path: str | Path, image: int = 0, report: Report | None = None) -> None:
        """Write the map over its picture as a PNG, caption and colour bar included."""
        draw.save(self, Path(path), image, report)


def explain(
    question: Question,
    compute: Compute,
    *,
    method: str,
    kind: Kind,
    caption: str,
    unit: str | None = None,
    **settings: Any,
) -> Explanation:
    """Run a method and put what it found together with how it was found."""
    start = time.perf_counter()
    values, details = compute(question)
    return Explanation(
        values=values.detach().float(),
        kind=kind,
        method=method,
        caption=caption,
        unit=unit or question.unit,
        settings=settings,
        seconds=time.perf_counter() - start,
        question=question,
        compute=compute,
        details=details,
    )


def given(
    question: Question, values: Tensor, *, method: str, caption: str, kind: Kind = Kind.DESCRIPTIVE, unit: str = ""
) -> Explanation:
    """A map from elsewhere, to be verified like our own.

    Args:
        question: what it is said to explain; see `ask`.
        values: (B, h, w), one value a patch.
        method: its name.
        caption: what it shows.
        kind: what it claims.
        unit: of its values.

    Raises:
        ConfigError: a map of another shape.
    """
    shape = (len(question.images), *question.grid)
    if tuple(values.shape) != shape:
        raise ConfigError(f"the map must be (B, h, w) = {shape}, got {tuple(values.shape)}")
    values = values.detach().float().to(question.images.device)
    return Explanation(
        values=values, kind=kind, method=method, caption=caption, unit=unit, settings={}, seconds=0.0, question=question
    )
