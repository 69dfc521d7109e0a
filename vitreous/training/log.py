"""What a run writes down as it goes: a line a step, how fast it was, and curves for TensorBoard."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vitreous.base.errors import VitreousError
from vitreous.base.extras import need
from vitreous.base.files import write_text
from vitreous.base.processes import is_first

LOG, SPEED, CURVES = "log.jsonl", "speed.jsonl", "tensorboard"


class Log:
    """The steps of a run.

    `log.jsonl` is a function of the run alone, so that a resumed one ends with the same bytes; what
    depends on the machine, images/s, stands in `speed.jsonl` beside it. The first process writes.

    Args:
        out: the run's folder.
        first: steps that the state has seen: what a killed run wrote of later ones is dropped.
        tensorboard: write the same numbers as curves, too.

    Raises:
        VitreousError: TensorBoard is asked for and not installed, or the disk is full.
    """

    def __init__(self, out: Path, first: int = 0, tensorboard: bool = False) -> None:
        self.out, self.first = out, first
        path = out / LOG
        lines = path.read_text(encoding="utf-8").splitlines()[:first] if first and path.exists() else []
        self.entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.curves = _curves(out, first) if tensorboard and is_first() else None
        self._files: dict[str, IO[str]] = {}
        if is_first():
            write_text(path, "".join(line + "\n" for line in lines))
            self._files = {name: (out / name).open("a", encoding="utf-8") for name in (LOG, SPEED)}

    def write(self, entry: dict[str, Any], images: int, seconds: float) -> None:
        """One step: what it gave, and the time that its images took."""
        self.entries.append(entry)
        if not is_first():
            return
        speed = {"step": entry["step"], "images_per_s": images / seconds, "seconds": seconds}
        with _disk(self.out):
            self._files[LOG].write(json.dumps(entry) + "\n")
            self._files[SPEED].write(json.dumps(speed) + "\n")
        if self.curves is not None:
            for name, value in {**entry, "images_per_s": speed["images_per_s"]}.items():
                if isinstance(value, (int, float)) and name != "step":
                    self.curves.add_scalar(name, value, entry["step"])

    def flush(self) -> None:
        """Wait until all lines are on the disk: a state must not be ahead of its log."""
        with _disk(self.out):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        if self.curves is not None:
            self.curves.flush()

    def close(self) -> None:
        """The end of the run, or of this part of it."""
        for file in self._files.values():
            try:
                file.close()
            except OSError:  # what is left in it cannot be written: `flush` has said so
                continue
        if self.curves is not None:
            self.curves.close()


@contextmanager
def _disk(out: Path) -> Iterator[None]:
    """An error of the disk gets the file's name and the way out."""
    try:
        yield
    except OSError as error:
        raise VitreousError(
            f"{out / LOG} cannot be written ({error.strerror}): make room there and go on with --resume"
        ) from None


def _curves(out: Path, first: int) -> Any:
    need("tensorboard", extra="tensorboard", for_="writing curves for TensorBoard")
    from torch.utils.tensorboard import SummaryWriter  # needs the package that was just asked for

    return SummaryWriter(str(out / CURVES), purge_step=first or None)
