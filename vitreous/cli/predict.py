"""`vitreous predict`: what is in these pictures?"""

import enum
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from vitreous.cli.arguments import (
    BatchSize,
    Device,
    ImageSize,
    MeasureAgain,
    Model,
    PrecisionOption,
    Runtime,
    Weights,
    Workers,
)
from vitreous.cli.opening import predictor
from vitreous.cli.output import errors, results, share, table

if TYPE_CHECKING:
    from vitreous.bulk.tables import Predictions


class Format(str, enum.Enum):
    """How predictions are written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.", show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="Guesses for every picture.")] = 5,
    format: Annotated[Format, typer.Option("--format", help="How to write them.")] = Format.table,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of the terminal.")] = None,
    image_size: ImageSize = None,
    weights: Weights = None,
    runtime: Runtime = None,
    measure_again: MeasureAgain = False,
    batch_size: BatchSize = 16,
    workers: Workers = None,
    device: Device = None,
    precision: PrecisionOption = None,
) -> None:
    """Say what is in pictures, with probabilities.

    Many pictures are shared among the processes of `torchrun -m vitreous predict ...`, and come out as one file.
    MODEL may be a file that `vitreous export` wrote, too.

    A picture that cannot be read is named on stderr, the others are predicted all the same, and the exit code is 1.
    """
    if format is Format.parquet and output is None:
        raise typer.BadParameter("--format parquet needs --output FILE")
    from vitreous.base.processes import is_first
    from vitreous.bulk.pictures import find_pictures
    from vitreous.bulk.tables import predict_all

    pictures = find_pictures(images)  # before a model is loaded
    ready = predictor(
        model, runtime=runtime, batch_size=min(len(pictures), batch_size), measure_again=measure_again,
        image_size=image_size, weights=weights, device=device, precision=precision,
    )  # fmt: skip
    found = predict_all(ready, pictures, top_k=top_k, batch_size=batch_size, num_workers=workers)
    if is_first():
        _write(found, format, output)
        for _, error in found.failed:
            errors.print("[bold red]error:[/]", escape(str(error)), soft_wrap=True)
    if found.failed:
        raise typer.Exit(1)


def _write(found: "Predictions", format: Format, out: Path | None) -> None:
    """To the file, or to stdout."""
    if format is Format.table:
        _write_table(found, out)
    elif out is not None:
        found.save(out, format.value)
    else:
        sys.stdout.write(found.to_csv() if format is Format.csv else found.to_json())


def _write_table(found: "Predictions", out: Path | None) -> None:
    made = table("picture", "class", "probability", "", right=("probability",))
    for name, guesses in found.found:
        for rank, guess in enumerate(guesses):
            bar = "█" * round(20 * guess.probability)
            made.add_row(name if rank == 0 else "", guess.label, share(guess.probability), bar)
    if out is None:
        results.print(made)
        return
    from rich.console import Console

    from vitreous.base.files import write_text

    text = io.StringIO()
    Console(file=text, width=120).print(made)
    write_text(out, text.getvalue())
