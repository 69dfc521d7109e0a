"""`vitreous evaluate`: how good is this model on these pictures?"""

from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.arguments import (
    BatchSize,
    Data,
    Device,
    ImageSize,
    Json,
    MeasureAgain,
    Model,
    Out,
    PrecisionOption,
    Runtime,
    Weights,
    Workers,
)
from vitreous.cli.opening import predictor
from vitreous.cli.output import print_json, results, share, table

if TYPE_CHECKING:
    from vitreous.evaluation.evaluate import Evaluation

MOST_CLASSES = 20


def evaluate(
    model: Model,
    data: Data,
    out: Out,
    split: Annotated[
        str | None,
        typer.Option("--split", help="train, val, test or all; val where there is one.", show_default=False),
    ] = None,
    image_size: ImageSize = None,
    weights: Weights = None,
    runtime: Runtime = None,
    measure_again: MeasureAgain = False,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = None,
    precision: PrecisionOption = None,
    json: Json = False,
) -> None:
    """Measure a model on labelled pictures: metrics.json and report.html in --out.

    Every picture counts once, on any number of processes (torchrun -m vitreous evaluate ...). Of a folder
    without splits that the model was trained on, those pictures are measured that were held out then.
    MODEL may be a file that `vitreous export` wrote, too.
    """
    from vitreous.base import processes
    from vitreous.data.open import open_data
    from vitreous.evaluation.evaluate import evaluate as run

    dataset = open_data(data)  # before a model is loaded
    ready = predictor(
        model, runtime=runtime, batch_size=batch_size, measure_again=measure_again, image_size=image_size,
        weights=weights, device=device, precision=precision,
    )  # fmt: skip
    evaluation = run(ready, dataset, split, batch_size=batch_size, num_workers=workers)
    if not processes.is_first():
        return
    evaluation.save(out)
    if json:
        print_json(evaluation.to_dict())
    else:
        summary(evaluation)
        results.print(f"\nreport  {out / 'report.html'}", soft_wrap=True)


def summary(evaluation: "Evaluation") -> None:
    """The figures, and the classes from the lowest accuracy up."""
    low, high = evaluation.interval()
    rows = table("", "")
    rows.add_row("data", f"{evaluation.data}, {evaluation.n:,} pictures")
    rows.add_row("top-1", f"[bold]{share(evaluation.top1)}[/]  (95 % interval {share(low)} to {share(high)})")
    rows.add_row("top-5", share(evaluation.top5))
    rows.add_row("loss", f"{evaluation.loss:.4f}")
    results.print(rows)
    classes = sorted(evaluation.classes, key=lambda c: 2.0 if c.accuracy is None else c.accuracy)
    made = table("class", "pictures", "correct", "accuracy", right=("pictures", "correct", "accuracy"))
    for c in classes[:MOST_CLASSES]:
        made.add_row(c.label, f"{c.n:,}", f"{c.correct:,}", share(c.accuracy))
    results.print()
    results.print(made)
    if len(classes) > MOST_CLASSES:
        results.print(f"... and {len(classes) - MOST_CLASSES} more classes, in metrics.json")
