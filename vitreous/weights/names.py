"""Tables of names: what a family calls the tensors of ours, both ways."""

import re
from collections.abc import Collection, Sequence

_KINDS = {"#": r"(\d+)", "*": "(weight|bias)"}


class Names:
    """Pairs of our name and theirs.

    `#` stands for a number and `*` for `weight` or `bias`, in both in the same order. Of several
    rows for one name of ours, all are read and the first is written.
    """

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        self.rows = tuple(rows)
        self._to_ours = [(_pattern(theirs), _template(ours)) for ours, theirs in rows]
        self._to_theirs = [(_pattern(ours), _template(theirs)) for ours, theirs in rows]

    def ours(self, theirs: str) -> str | None:
        """Our name for a tensor of theirs; None when it has none."""
        return _translate(theirs, self._to_ours)

    def theirs(self, ours: str) -> str | None:
        """Their name for a tensor of ours; None when they have no such thing."""
        return _translate(ours, self._to_theirs)

    def as_in(self, present: Collection[str]) -> "Names":
        """The same table with the rows in front that occur in a file: to name in its own way what it lacks."""
        used = [any(pattern.fullmatch(name) for name in present) for pattern, _ in self._to_ours]
        order = sorted(range(len(self.rows)), key=lambda i: not used[i])
        return Names([self.rows[i] for i in order])


def _translate(name: str, table: list[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, template in table:
        if match := pattern.fullmatch(name):
            return template.format(*match.groups())
    return None


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(_KINDS.get(character, re.escape(character)) for character in name))


def _template(name: str) -> str:
    return re.sub(r"[#*]", "{}", name)
