"""Progress of long work on stderr: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[..., None]  # advance(images, note="loss 0.41")
SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(description: str, total: int, *, show: bool = True) -> Iterator[Advance]:
    """Count `total` images; yields `advance(images, note="")`, which shows images a second and the time left."""
    if not show:
        yield lambda images, note="": None
    elif sys.stderr.isatty():
        yield from _bar(description, total)
    else:
        yield from _lines(description, total)


def _bar(description: str, total: int) -> Iterator[Advance]:
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

        def advance(images: int, note: str = "") -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=images, note=note, speed=f"{speed:,.0f} images/s" if speed else "")

        yield advance


def _lines(description: str, total: int) -> Iterator[Advance]:
    start = last = time.monotonic()
    done = 0

    def advance(images: int, note: str = "") -> None:
        nonlocal done, last
        done += images
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES and done < total:
            return
        last = now
        speed = done / max(now - start, 1e-9)
        left = (total - done) / max(speed, 1e-9)
        print(
            f"{description}: {done:,} of {total:,}, {speed:,.0f} images/s, {left:,.0f} s left{', ' * bool(note)}{note}",
            file=sys.stderr,
            flush=True,
        )

    yield advance
