"""`vitreous probe`: what are a model's features worth on these pictures, without any training?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.arguments import BatchSize, Data, Device, ImageSize, Json, Model, PrecisionOption, Weights, Workers
from vitreous.cli.opening import classifier
from vitreous.cli.output import print_json, results, share, table

if TYPE_CHECKING:
    from vitreous.evaluation.probe import Probe


def probe(
    model: Model,
    data: Data,
    shots: Annotated[
        str, typer.Option("--shots", help="Pictures a class to learn from: 10, or several, as 1,5,10,all.")
    ] = "10",
    draws: Annotated[int, typer.Option("--draws", min=1, help="How often the shots are drawn.")] = 5,
    features: Annotated[
        str | None,
        typer.Option("--features", help="cls, or mean over the patches.", show_default="what the head reads"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for model.safetensors and metrics.json.", show_default=False),
    ] = None,
    image_size: ImageSize = None,
    val_fraction: Annotated[
        float, typer.Option("--val-fraction", min=0.01, max=0.99, help="Held out of data without val/ or test/.")
    ] = 0.1,
    seed: Annotated[int, typer.Option("--seed", help="Of the first draw, and of what is held out.")] = 0,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="Where features are kept.", show_default="the user's cache folder"),
    ] = None,
    weights: Weights = None,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = None,
    precision: PrecisionOption = None,
    json: Json = False,
) -> None:
    """Measure a model's frozen features: a linear head in closed form, and nearest neighbours beside it.

    Features are computed once and kept, so that another number of shots takes a second. With --out, the
    head of the most shots is written with the model: a classifier like any other.
    """
    wanted = parse_shots(shots)
    from vitreous.base.files import cache_folder
    from vitreous.data.open import open_data
    from vitreous.evaluation.probe import probe as run

    found = run(
        classifier(model, image_size=image_size, weights=weights, device=device, precision=precision),
        open_data(data),
        wanted,
        draws=draws,
        features=features,
        val_fraction=val_fraction,
        seed=seed,
        cache=cache or cache_folder("features"),
        batch_size=batch_size,
        num_workers=workers,
    )
    if out is not None:
        found.save(out)
    if json:
        print_json(found.to_dict())
        return
    summary(found)
    if out is not None:
        results.print(f"\nmodel  {out / 'model.safetensors'}", soft_wrap=True)


def parse_shots(text: str) -> list[int | None]:
    """`"1,5,all"` -> [1, 5, None]."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "all" or (part.isdecimal() and int(part) > 0) for part in parts):
        raise typer.BadParameter(f"{text!r} is not a number of shots: write 10, all, or several as 1,5,10,all")
    return [None if part == "all" else int(part) for part in dict.fromkeys(parts)]


def summary(found: "Probe") -> None:
    """One line for each number of shots, and what the columns mean."""
    columns = ("shots", "pictures", "ridge", "95 % interval", "l2", "kNN", "95 % interval ")
    made = table(*columns, right=columns)
    for row in found.rows:
        exponents = sorted({round(_log2(l2)) for l2 in row.l2})
        made.add_row(
            "all" if row.shots is None else str(row.shots),
            f"{row.pictures:,}",
            f"[bold]{share(sum(row.ridge) / len(row.ridge))}[/]",
            _range(row.interval(row.ridge)),
            f"2^{exponents[0]}" + (f"..{exponents[-1]}" if len(exponents) > 1 else ""),
            share(sum(row.knn) / len(row.knn)),
            _range(row.interval(row.knn)),
        )
    results.print(made)
    of = found.classifier.provenance["probe"]["features"]
    k = [str(row.neighbours) for row in found.rows]
    few = [row for row in found.rows if row.shots is not None]
    notes = [f"{found.n:,} pictures of {found.data}; {found.width} features ({of})."]
    if few:
        notes.append(f"A number of shots: mean of {len(few[0].ridge)} draws, and Student's interval over them.")
    if len(few) < len(found.rows):
        notes.append("All pictures: Wilson's interval over those measured.")
    notes.append("Ridge: on whitened features, l2 chosen by leaving out each training picture.")
    notes.append(f"kNN: cosine similarity, k = {', '.join(k)}.")
    results.print()
    for note in notes:
        results.print(note, style="dim")


def _range(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{100 * interval[0]:.1f} to {share(interval[1])}"


def _log2(value: float) -> float:
    from math import log2

    return log2(value)
