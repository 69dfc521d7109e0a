"""`vitreous predict`: what is in these pictures?"""

import csv
import enum
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitreous.base.errors import ImageError
from vitreous.base.extras import need
from vitreous.cli.arguments import ImageSize, Model, Weights, kind_of_weights, parse_size
from vitreous.cli.output import errors, print_json, results, share, table

if TYPE_CHECKING:
    from vitreous.classifier import Classifier
    from vitreous.prediction import Prediction, Predictor

CHUNK = 16  # pictures decoded and computed at once


class Format(str, enum.Enum):
    """How predictions are written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


class Engine(str, enum.Enum):
    """What computes."""

    auto = "auto"
    torch = "torch"
    torch_compile = "torch.compile"
    onnxruntime = "onnxruntime"
    openvino = "openvino"


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.", show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="Guesses for every picture.")] = 5,
    format: Annotated[Format, typer.Option("--format", help="How to write them.")] = Format.table,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of the terminal.")] = None,
    image_size: ImageSize = None,
    weights: Weights = None,
    runtime: Annotated[
        Engine | None,
        typer.Option("--runtime", help="auto: the fastest of those installed, by measurement.", show_default=False),
    ] = None,
    measure_again: Annotated[
        bool, typer.Option("--measure-again", help="Of --runtime auto: forget what was measured before.")
    ] = False,
) -> None:
    """Say what is in pictures, with probabilities.

    Many pictures are shared among the processes of `torchrun -m vitreous predict ...`, and come out as one file.

    A picture that cannot be read is named on stderr, the others are predicted all the same, and the exit code is 1.
    """
    if format is Format.parquet and output is None:
        raise typer.BadParameter("--format parquet needs --output FILE")
    pictures = _expand(images)
    from vitreous.base import processes
    from vitreous.classifier import load

    size, kind = parse_size(image_size), kind_of_weights(weights)
    device = processes.device()
    clf = load(model, image_size=size, weights=kind)
    clf.model.to(device)
    clf.check_head()
    own = processes.share(len(pictures))
    predictor = clf if runtime is None else _compiled(clf, runtime, min(len(own), CHUNK) or 1, measure_again)
    parts = processes.gather(_predict_all(predictor, pictures[own.start : own.stop], top_k))
    if not processes.is_first():
        raise typer.Exit(int(any(failed for _, failed in parts)))
    found = [guesses for part, _ in parts for guesses in part]
    failed = [error for _, errors_of_part in parts for error in errors_of_part]
    rows = [
        {"picture": str(path), "rank": rank, "label": p.label, "index": p.index, "probability": p.probability}
        for path, guesses in found
        for rank, p in enumerate(guesses, start=1)
    ]
    _WRITERS[format](rows, output)
    for error in failed:
        errors.print("[bold red]error:[/]", error, markup=True, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _compiled(clf: "Classifier", runtime: Engine, batch_size: int, measure_again: bool) -> "Predictor":
    from vitreous.engine.compile import compile

    compiled = compile(clf, runtime.value, batch_size=batch_size, measure_again=measure_again)
    errors.print(str(compiled.choice), markup=False, soft_wrap=True)
    errors.print(compiled.choice.table(), markup=False, soft_wrap=True)
    return compiled


def _expand(images: list[Path]) -> list[Path]:
    from vitreous.data.folder import IMAGE_SUFFIXES

    pictures: list[Path] = []
    for path in images:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
            if not inside:
                raise ImageError(f"{path} holds no pictures")
            pictures += inside
        elif not path.exists():
            raise ImageError(f"{path}: no such file")
        else:
            pictures.append(path)
    return pictures


def _predict_all(
    clf: "Predictor", pictures: list[Path], top_k: int
) -> tuple[list[tuple[Path, "list[Prediction]"]], list[str]]:
    from vitreous.base.processes import is_first
    from vitreous.base.progress import progress

    found: list[tuple[Path, list[Prediction]]] = []
    failed: list[str] = []
    with progress("predicting", len(pictures), show=is_first() and len(pictures) > CHUNK) as advance:
        for start in range(0, len(pictures), CHUNK):
            chunk = pictures[start : start + CHUNK]
            try:
                found += zip(chunk, clf.predict(chunk, top_k), strict=True)
            except ImageError:  # one of them is broken: find out which, and keep the others
                for path in chunk:
                    try:
                        found += [(path, clf.predict(path, top_k)[0])]
                    except ImageError as error:
                        failed.append(str(error))
            advance(len(chunk))
    return found, failed


def _write_table(rows: list[dict[str, Any]], output: Path | None) -> None:
    made = table("picture", "class", "probability", "", right=("probability",))
    for row in rows:
        first = row["rank"] == 1
        bar = "█" * round(20 * row["probability"])
        made.add_row(row["picture"] if first else "", row["label"], share(row["probability"]), bar)
    if output is None:
        results.print(made)
        return
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=120).print(made)
    _write(text.getvalue(), output)


def _write_json(rows: list[dict[str, Any]], output: Path | None) -> None:
    import json

    if output is None:
        print_json(rows)
    else:
        _write(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", output)


def _write_csv(rows: list[dict[str, Any]], output: Path | None) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["picture", "rank", "label", "index", "probability"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if output is None:
        sys.stdout.write(text.getvalue())
    else:
        _write(text.getvalue(), output)


def _write_parquet(rows: list[dict[str, Any]], output: Path | None) -> None:
    pyarrow = need("pyarrow", extra="parquet", for_="Parquet")
    parquet = need("pyarrow.parquet", extra="parquet", for_="Parquet")
    from vitreous.base.files import atomic_path

    assert output is not None
    with atomic_path(output) as part:
        parquet.write_table(pyarrow.Table.from_pylist(rows), part)


def _write(text: str, output: Path) -> None:
    from vitreous.base.files import write_text

    write_text(output, text)


_WRITERS = {
    Format.table: _write_table,
    Format.json: _write_json,
    Format.csv: _write_csv,
    Format.parquet: _write_parquet,
}
