"""`vitreous models`: which published checkpoints can be had by name?"""

from typing import Annotated

import typer

from vitreous.cli.arguments import Json
from vitreous.cli.output import errors, print_json, results, table


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILTER", help="Only those with all of: B/16, 384, augreg, ...", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """List the official Google checkpoints, which load as google:NAME.

    The last two columns are the ImageNet top-1 accuracy in per cent: as Google reports it, and as timm measures
    it with its own preprocessing. What no source says is left out.
    """
    from vitreous.weights import catalog

    found = catalog.search(words or [])
    if json:
        print_json([entry.to_dict() for entry in found])
        return
    if not found:
        errors.print(f"no checkpoint matches {' '.join(words or [])}")
        raise typer.Exit(1)
    rows = table("name", "px", "Google", "timm", right=("px", "Google", "timm"))
    for entry in found:
        rows.add_row(entry.name, str(entry.image_size or "-"), _top1(entry.google_top1), _top1(entry.timm_top1))
    results.print(rows)
    errors.print(f"{len(found)} of {len(catalog.entries())}; load one as google:NAME")


def _top1(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
