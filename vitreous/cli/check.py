"""`vitreous check`: everything wrong with a data set, before training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.arguments import Data, Json
from vitreous.cli.output import print_json, results, table

if TYPE_CHECKING:
    from vitreous.data.check import Check, Item

MOST_ITEMS = 3  # instances of a finding that are named on the terminal
WIDTH = 80


def check(
    data: Data,
    json: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for a page with thumbnails.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=0, help="Processes that read pictures; one a core.", show_default=False),
    ] = None,
) -> None:
    """Read every picture of a data set, and say what is wrong with it.

    Errors would spoil training or its measurement: pictures that cannot be read or lie in no class,
    the same picture in several classes or splits, classes that are measured and never trained on,
    or whose names differ in case or spaces alone. The exit code is then 1. All else is a warning.
    """
    from vitreous.data.check import check as run
    from vitreous.data.open import open_as_it_is

    dataset = open_as_it_is(data)
    found = run(dataset, num_workers=workers)
    report = None if out is None else out / "report.html"
    if report is not None:
        from vitreous.data.check.page import write_page

        write_page(report, found, dataset)
    if json:
        print_json(found.to_dict())
    else:
        show(found)
        if report is not None:
            results.print(f"\nreport  {report}", soft_wrap=True, markup=False)
    if not found.ok:
        raise typer.Exit(1)


def show(found: "Check") -> None:
    """A summary, and each finding with some of its instances, in at most 80 columns."""
    classes = {label for counts in found.counts.values() for label in counts}
    parts = ", ".join(f"{sum(counts.values()):,} {name}" for name, counts in found.counts.items())
    rows = table("", "")
    rows.add_row("data", found.data)
    rows.add_row("pictures", f"{found.pictures:,} ({parts}), {found.size / 1e6:,.1f} MB")
    rows.add_row("classes", f"{len(classes):,}")
    results.print(rows, width=WIDTH)
    if not found.findings:
        results.print("\nnothing is wrong with it")
        return
    made = table("", "found", "what", right=("found",))
    for finding in found.findings:
        colour = "bold red" if finding.severity == "error" else "yellow"
        made.add_row(f"[{colour}]{finding.severity}[/]", f"{len(finding.items):,}", f"[bold]{finding.title}[/]")
        for item in finding.items[:MOST_ITEMS]:
            made.add_row("", "", _line(item, " = " if finding.copies else ", "))
        more = len(finding.items) - MOST_ITEMS
        if more > 0:
            made.add_row("", "", f"and {more:,} more")
        made.add_row("", "", f"[dim italic]-> {finding.advice}[/]")
    results.print()
    results.print(made, width=WIDTH)


def _line(item: "Item", between: str) -> str:
    from rich.markup import escape

    names = between.join(escape(name) for name in item.names[:4])
    more = f" and {len(item.names) - 4} more" if len(item.names) > 4 else ""
    return f"{names}{more}{f'  [dim]({escape(item.detail)})[/]' if item.detail else ''}"
