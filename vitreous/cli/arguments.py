"""Arguments that several commands share, so that they are called and explained the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        help="A model file or folder, hf:owner/name, google:NAME, https://... or vitreous:NAME.", show_default=False
    ),
]
Data = Annotated[
    Path, typer.Argument(help="A folder or zip with a folder of pictures for every class.", show_default=False)
]
Out = Annotated[Path, typer.Option("--out", help="Folder for everything that is written.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", help="Processes that decode pictures; half of the cores, 0 on two.", show_default=False),
]
RecipeName = Annotated[str, typer.Option("--recipe", help="A named recipe, or a .toml file.")]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Training steps; the warm-up scales along.", show_default=False)
]
ImageSize = Annotated[
    str | None,
    typer.Option("--image-size", help="Pixels to take: 384, or 192x320 (height x width).", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a value of the recipe, e.g. --set base_lr=0.01.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """`"384"` or `"192x320"` as (height, width)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.strip().isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r} is not a size: write 384, or 192x320 (height x width)")
    numbers = [int(part) for part in parts]
    return numbers[0], numbers[-1]
