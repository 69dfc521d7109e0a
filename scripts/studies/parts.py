"""What a long study has measured so far, kept in a file, so that one that was stopped goes on where it was."""

import json
import time
from collections.abc import Callable
from pathlib import Path


class Parts:
    """Numbers by name, each with the seconds of one core that it took; one line of JSON each.

    Args:
        path: the file that they are kept in, or None to keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.cached_seconds = path, 0.0  # of what an earlier run has measured and this one has asked for
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        self._known: dict[str, list[float]] = {key: found for key, *found in map(json.loads, lines)}

    def get(self, key: str, measure: Callable[[], float]) -> float:
        """What is known under this name, or what `measure` says now."""
        if key in self._known:
            value, *seconds = self._known[key]
            self.cached_seconds += sum(seconds)
            return value
        start = time.process_time()
        value = measure()
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, value, round(time.process_time() - start, 1)]) + "\n")
        return value
