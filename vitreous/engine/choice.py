"""Which runtime and how many threads: measured, with the reason, and remembered for this machine and model."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from vitreous.base.files import cache_folder, write_text
from vitreous.config import ViTConfig

PACKAGES = ("vitreous", "torch", "onnxruntime", "openvino")
FORMAT = 1


@dataclass(frozen=True)
class Row:
    """One runtime with so many threads.

    Args:
        runtime: its name.
        threads: of it; 0 where it was not opened.
        seconds: of one batch, the quickest of several; None where it was not measured.
        speed: how many times as fast as PyTorch eager, measured in turns; None likewise.
        difference: the largest of any logit from PyTorch eager's; None likewise.
        note: why it was left out, if it was.
        final: whether it was among those that were measured together in the end.
    """

    runtime: str
    threads: int = 0
    seconds: float | None = None
    speed: float | None = None
    difference: float | None = None
    note: str = ""
    final: bool = False


@dataclass(frozen=True)
class Choice:
    """What was chosen, out of what, and why.

    Args:
        runtime: the name.
        threads: of it.
        reason: in one sentence.
        rows: everything that was tried or left out.
        remembered: whether the measurement is from an earlier time.
    """

    runtime: str
    threads: int
    reason: str
    rows: tuple[Row, ...] = ()
    remembered: bool = False

    def __str__(self) -> str:
        before = " (measured before)" if self.remembered else ""
        return f"{self.runtime}, {self.threads} thread{'s' if self.threads > 1 else ''}: {self.reason}{before}"

    def table(self) -> str:
        """Every runtime in a line: milliseconds a batch, times as fast as eager, difference, or why it was left out."""
        lines = []
        for row in self.rows:
            threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}" if row.threads else ""
            values = "" if row.seconds is None else f"{1000 * row.seconds:9.1f} ms"
            if row.speed is not None and row.difference is not None:
                values += f"  {row.speed:5.2f} x  {row.difference:.0e}"
            mark = "*" if (row.runtime, row.threads) == (self.runtime, self.threads) else " "
            lines.append(f"{mark} {row.runtime:13s} {threads:10s} {values:34s} {row.note}".rstrip())
        return "\n".join(lines)


def key(config: ViTConfig, batch_size: int, precision: str, tried: Sequence[tuple[str, int]]) -> str:
    """A digest of all that the choice depends on: machine, versions, model, batch, precision, what there is."""
    content = [
        FORMAT,
        _cpu(),
        os.cpu_count(),
        sys.version_info[:2],
        {name: _version(name) for name in PACKAGES},
        config.replace(num_classes=config.num_classes and 1).to_dict(),  # the head is a thousandth of the work
        batch_size,
        precision,
        list(tried),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def remembered(digest: str) -> Choice | None:
    """What was chosen before, or None; a damaged note counts as none."""
    try:
        content: dict[str, Any] = json.loads((cache_folder("choices") / f"{digest}.json").read_text(encoding="utf-8"))
        rows = tuple(Row(**row) for row in content["rows"])
        return Choice(content["runtime"], int(content["threads"]), str(content["reason"]), rows, remembered=True)
    except (OSError, KeyError, TypeError, ValueError):
        return None


def remember(digest: str, choice: Choice) -> None:
    """Note a choice; where the folder cannot be written, nothing is noted."""
    try:
        content = json.dumps(asdict(replace(choice, remembered=False)), indent=1)
        write_text(cache_folder("choices") / f"{digest}.json", content + "\n")
    except OSError:
        return


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "cpu family", "model", "stepping")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return " ".join(value.strip() for name, value in lines.items() if name.strip() in wanted)
