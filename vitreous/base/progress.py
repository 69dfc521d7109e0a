"""Progress of long work on stderr: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[..., None]  # advance(count, note="loss 0.41")
SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(description: str, total: int, *, unit: str = "images", show: bool = True) -> Iterator[Advance]:
    """Count `total` images, or other units; yields `advance(count, note="")`, which shows speed and time left."""
    if not show:
        yield lambda count, note="": None
    elif sys.stderr.isatty():
        yield from _bar(description, total, unit)
    else:
        yield from _lines(description, total, unit)


def _bar(description: str, total: int, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, note="", speed="")

        def advance(count: int, note: str = "") -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=count, note=note, speed=_rate(speed, unit) if speed else "")

        yield advance


def _lines(description: str, total: int, unit: str) -> Iterator[Advance]:
    start = last = time.monotonic()
    done, ended = 0, False

    def advance(count: int, note: str = "") -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if ended:  # whoever kept `advance` counts for nobody
            return
        if now - last < SECONDS_BETWEEN_LINES and done < total:
            return
        last = now
        speed = done / max(now - start, 1e-9)
        left = (total - done) / max(speed, 1e-9)
        print(
            f"{description}: {done:,} of {total:,}, {_rate(speed, unit)}, {left:,.0f} s left{', ' * bool(note)}{note}",
            file=sys.stderr,
            flush=True,
        )

    yield advance
    ended = True


def _rate(speed: float, unit: str) -> str:
    return f"{speed:,.{0 if speed >= 10 else 1}f} {unit}/s"
