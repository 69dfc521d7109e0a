"""Where output goes: results to stdout, everything else to stderr."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

results = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """A result for programs: plain JSON on stdout, never wrapped or coloured."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def table(*columns: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """An empty table in the house style; the columns named in `right` hold numbers."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
        show_header=any(columns),
    )
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def share(value: float | None) -> str:
    """0.9312 -> `93.1 %`; None -> a dash."""
    return "-" if value is None else f"{100 * value:.1f} %"
