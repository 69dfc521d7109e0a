"""What every method returns: a map in real units, with all that it takes to read and to check it."""

import enum
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.base.version import __version__
from vitreous.explain.question import Question

if TYPE_CHECKING:
    from vitreous.explain.verification.verify import Report

Details = dict[str, Tensor]
Compute = Callable[[Question], tuple[Tensor, Details]]


class Kind(enum.Enum):
    """What a map can claim; it decides its colours and its words."""

    DESCRIPTIVE = "descriptive"  # what a part of the model computed; nothing was tested
    GRADIENT = "gradient"  # how the score would follow small changes
    INTERVENTION = "intervention"  # the input was changed, and the output measured
    CONTROL = "control"  # made without the model, to compare with


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """A map over the patches of each picture.

    Args:
        map: (B, h, w) float32, signed and unnormalised, in `unit`.
        kind: what it can claim.
        method: its name.
        caption: what it shows, in words that its kind allows.
        unit: of the map's values.
        settings: what it was made with, as plain JSON values.
        seconds: that it took.
        question: the pictures, the class and the score.
        compute: makes the map again, of another model or class; None for a map that came from elsewhere.
        details: whatever else the method found: prefix mass, standard errors, completeness.
    """

    map: Tensor
    kind: Kind
    method: str
    caption: str
    unit: str
    settings: Mapping[str, Any]
    seconds: float
    question: Question = field(repr=False)
    compute: Compute | None = field(default=None, repr=False)
    details: Details = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.map)

    @property
    def target(self) -> Tensor | None:
        """(B,) the class in question; None of a model without a head."""
        return self.question.target

    @property
    def score(self) -> str:
        """Name of the score."""
        return self.question.score

    @property
    def probability(self) -> Tensor:
        """(B,) of the target on the whole picture."""
        return self.question.probability

    def verify(self, budget: str = "full", **settings: Any) -> "Report":
        """Test the map against interventions and controls: `vitreous.explain.verification.verify`."""
        from vitreous.explain.verification.verify import verify

        return verify(self, budget=budget, **settings)

    def stamp(self, image: int = 0, verdict: str = "UNTESTED") -> str:
        """One line with everything that a reader of the map must know; burnt into each exported picture."""

        about = [f"{self.method} ({self.kind.value})"]
        if self.question.target is not None:
            about.append(f"of {self.question.label(image)}, p = {float(self.probability[image]):.3f}")
            if self.kind in (Kind.GRADIENT, Kind.INTERVENTION):
                about.append(f"score: {self.question.score_name(image)}")
        about += [f"{key} {value}" for key, value in self.settings.items() if value is not None]
        return "; ".join([*about, verdict, f"vitreous {__version__}"])

    def save(self, path: str | Path, image: int = 0, report: "Report | None" = None) -> None:
        """Write the map over its picture as a PNG, caption and colour bar included."""
        from vitreous.explain.draw import save

        save(self, Path(path), image, report)

    def to_dict(self, image: int = 0) -> dict[str, Any]:
        """One picture's map and all about it, as plain JSON values."""

        made: dict[str, Any] = {
            "method": self.method,
            "kind": self.kind.value,
            "caption": self.caption,
            "unit": self.unit,
            "settings": dict(self.settings),
            "seconds": self.seconds,
            "vitreous": __version__,
            "map": self.map[image].tolist(),
            "details": {k: v[image].tolist() for k, v in self.details.items() if v.ndim and v[image].numel() < 10_000},
        }
        if self.question.target is not None:
            made |= {
                "score": self.score,
                "score_value": float(self.question.value[image]),
                "target": int(self.question.target[image]),
                "label": self.question.label(image),
                "probability": float(self.probability[image]),
            }
        return made

    def to_json(self, image: int = 0) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(image), indent=1)


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
        map=values.detach().float(),
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
        map=values, kind=kind, method=method, caption=caption, unit=unit, settings={}, seconds=0.0, question=question
    )
