"""What a map is: values in real units over the patches, what it can claim, and how to make it again."""

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitreous.base.version import __version__
from vitreous.explain.question import Question

Details = dict[str, Tensor]
Compute = Callable[[Question], tuple[Tensor, Details]]


class Kind(enum.Enum):
    """What a map can claim; it decides its colours and its words."""

    DESCRIPTIVE = "descriptive"  # what a part of the model computed; nothing was tested
    GRADIENT = "gradient"  # how the score would follow small changes
    INTERVENTION = "intervention"  # the input was changed, and the output measured
    CONTROL = "control"  # made without the model, to compare with


@dataclass(frozen=True, kw_only=True, eq=False)
class Map:
    """A map over the patches of each picture, with all that it takes to read and to check it.

    Args:
        values: (B, h, w) float32, signed and unnormalised, in `unit`.
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

    values: Tensor
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
        return len(self.values)

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

    def stamp(self, image: int = 0, verdict: str = "UNTESTED") -> str:
        """One line with everything that a reader of the map must know; burnt into each exported picture."""

        about = [f"{self.method} ({self.kind.value})"]
        if self.question.target is not None:
            about.append(f"of {self.question.label(image)}, p = {float(self.probability[image]):.3f}")
            if self.kind in (Kind.GRADIENT, Kind.INTERVENTION):
                about.append(f"score: {self.question.score_name(image)}")
        about += [f"{key} {value}" for key, value in self.settings.items() if value is not None]
        return "; ".join([*about, verdict, f"vitreous {__version__}"])

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
            "map": self.values[image].tolist(),
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
