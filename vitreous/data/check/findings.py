"""What a check can find, how bad it is, and what to do about it."""

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Fault:
    """One thing that can be wrong.

    Args:
        severity: `"error"` for what would spoil training or its measurement, `"warning"` for what may.
        title: what one instance is.
        advice: what to do.
    """

    severity: Severity
    title: str
    advice: str


KINDS: dict[str, Fault] = {
    # Training stops, or lacks them.
    "missing": Fault("error", "listed picture that is not there", "correct the path, or take the row out"),
    "empty": Fault("error", "empty file", "get it anew, or delete it"),
    "cut off": Fault("error", "picture cut off before its end", "get it anew, or delete it"),
    "unreadable": Fault("error", "picture that cannot be read", "get it anew, or delete it"),
    "too large": Fault("error", "picture with more pixels than are allowed", "make it smaller"),
    "loose": Fault("error", "picture in no class folder", "move it into the folder of its class"),
    # Training learns, or measures, what is wrong.
    "one class": Fault("error", "no other class than this", "a classifier needs two at least"),
    "unknown class": Fault(
        "error", "class to measure that is never trained on", "add training pictures, or take it out"
    ),
    "similar names": Fault("error", "classes named alike but for case or spaces", "make them one, or tell them apart"),
    "copies across splits": Fault("error", "leakage: the same picture in several splits", "keep it in one"),
    "copies across classes": Fault("error", "the same picture in several classes", "decide which is right"),
    # Training goes on, maybe not as meant.
    "near-copies across splits": Fault(
        "warning", "nearly the same picture in several splits", "look: it may be leakage"
    ),
    "near-copies across classes": Fault("warning", "nearly the same picture in several classes", "is a label wrong?"),
    "copies in a class": Fault("warning", "the same picture several times in a class", "keep one of them"),
    "near-copies in a class": Fault("warning", "nearly the same picture in a class", "look: they may be one picture"),
    "imbalance": Fault("warning", "largest class far above the smallest", "look at the accuracy of each class"),
    "few pictures": Fault("warning", "class with very few pictures to train on", "add some"),
    "not measured": Fault("warning", "class that is trained on and not measured", "add some of it to val or test"),
    "empty class": Fault("warning", "class folder without pictures", "fill it, or delete it"),
    "split name": Fault(
        "warning", "folder named like a split, in the wrong place", "splits come first: train/CLASS/picture"
    ),
    "nested": Fault("warning", "folder within a class folder", "its pictures count for the outer one: is that meant?"),
    "left out": Fault("warning", "folder beside the splits, left out", "move it if it belongs to one"),
    "hidden": Fault("warning", "hidden folder or file with pictures, left out", "rename it if they belong to the data"),
    "odd class": Fault("warning", "class whose name starts with _", "is it meant to be one?"),
    "unseen": Fault("warning", "picture left out, as its name does not say so", "give it its suffix"),
    "wrong suffix": Fault("warning", "picture of another format than its name says", "other programs may refuse it"),
    "bad name": Fault("warning", "name that is not UTF-8", "rename it: other programs may fail"),
    "rotated": Fault("warning", "picture stored rotated (EXIF)", "vitreous turns it upright; other programs may not"),
    "odd mode": Fault("warning", "picture with an unusual colour mode", "vitreous converts it; other programs may not"),
    "animated": Fault("warning", "animated picture", "its first frame is used"),
    "enormous": Fault("warning", "very large picture", "make it smaller, and training faster"),
    "tiny": Fault("warning", "very small picture", "is there anything to see?"),
    "elongated": Fault("warning", "very long or very high picture", "much of it is cut off or squashed"),
    "one colour": Fault("warning", "picture of one colour", "delete it if it shows nothing"),
}


@dataclass(frozen=True)
class Item:
    """One instance of a finding: a picture, a group of them that belong together, or a class or folder.

    Args:
        names: of them.
        detail: what was seen, for this one.
        places: (split, index) of the pictures, to show them.
    """

    names: tuple[str, ...]
    detail: str = ""
    places: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Finding:
    """All instances of one kind."""

    kind: str
    items: tuple[Item, ...]

    @property
    def severity(self) -> Severity:
        """`"error"` or `"warning"`."""
        return KINDS[self.kind].severity

    @property
    def title(self) -> str:
        """What one instance is."""
        return KINDS[self.kind].title

    @property
    def advice(self) -> str:
        """What to do about it."""
        return KINDS[self.kind].advice

    @property
    def copies(self) -> bool:
        """Whether an item's names are of the same picture."""
        return "copies" in self.kind

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "title": self.title,
            "advice": self.advice,
            "count": len(self.items),
            "items": [{"names": list(item.names), "detail": item.detail} for item in self.items],
        }


@dataclass(frozen=True)
class Check:
    """What a check found.

    Args:
        data: the name of the data set.
        pictures: how many were looked at.
        size: bytes of their files.
        counts: split -> class -> pictures.
        findings: errors first, each kind once.
        sides: (width, height) in pixels -> how many pictures have them.
    """

    data: str
    pictures: int
    size: int
    counts: dict[str, dict[str, int]]
    findings: tuple[Finding, ...] = ()
    sides: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would spoil training."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "data": self.data,
            "ok": self.ok,
            "pictures": self.pictures,
            "bytes": self.size,
            "classes": self.counts,
            "findings": [finding.to_dict() for finding in self.findings],
        }
