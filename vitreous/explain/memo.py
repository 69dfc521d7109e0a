"""Work that several questions about the same pictures share: computed once, whoever asks first."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Memo:
    """Results by what they are results of. One memo serves one model and one batch of pictures."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result under `key`, made by `make` where it is not known yet."""
        if key not in self._known:
            self._known[key] = make()
        made: T = self._known[key]
        return made
