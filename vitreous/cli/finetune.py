"""`vitreous finetune`: from a model and a folder of labelled pictures to a classifier, measured."""

from typing import TYPE_CHECKING, Any

from vitreous.cli.arguments import (
    BatchSizeOfRecipe,
    Data,
    Device,
    ImageSize,
    Json,
    Model,
    Out,
    PrecisionOption,
    RecipeName,
    Resume,
    SeedOfRecipe,
    Settings,
    Steps,
    Strategy,
    TensorBoard,
    Weights,
    Workers,
    kind_of_weights,
    one_of,
    parse_size,
)
from vitreous.cli.output import errors, print_json, results, share, table

if TYPE_CHECKING:
    from vitreous.training.run import TrainingResult


def finetune(
    model: Model,
    data: Data,
    out: Out,
    recipe: RecipeName = "finetune",
    steps: Steps = None,
    image_size: ImageSize = None,
    weights: Weights = None,
    batch_size: BatchSizeOfRecipe = None,
    precision: PrecisionOption = None,
    seed: SeedOfRecipe = None,
    set: Settings = None,
    resume: Resume = False,
    workers: Workers = None,
    device: Device = None,
    strategy: Strategy = "ddp",
    tensorboard: TensorBoard = False,
    json: Json = False,
) -> None:
    """Fine-tune a model on your pictures, and measure it on those held out.

    Where DATA has no val (or test) part, a share of the pictures is held out. The class names come from the training
    pictures and are stored with the model.
    """
    settings = {
        **overrides(set, steps=steps, image_size=parse_size(image_size), batch_size=batch_size, precision=precision,
                    seed=seed),
        **how(strategy, device, tensorboard),
    }  # fmt: skip
    kind = kind_of_weights(weights)
    from vitreous.classifier import load
    from vitreous.training.run import finetune as run

    report(run(load(model, weights=kind), data, out, recipe, resume=resume, num_workers=workers, **settings), json)


def overrides(pairs: list[str] | None, **options: Any) -> dict[str, Any]:
    """The values of the recipe that the command line changes: those of --set, and the options that were given."""
    from vitreous.training.recipe import parse_overrides

    given = {key: getattr(value, "value", value) for key, value in options.items() if value is not None}
    return {**parse_overrides(pairs or []), **given}


def how(strategy: str, device: str | None, tensorboard: bool) -> dict[str, Any]:
    """What the run does not depend on."""
    strategy = one_of(strategy, "ddp", "fsdp", option="--strategy")
    return {"strategy": strategy, "device": device, "tensorboard": tensorboard}


def report(result: "TrainingResult", json: bool) -> None:
    """What came out of a run, and where it lies; the first process says it."""
    from vitreous.base.processes import is_first

    if not is_first():
        return
    average = result.average
    if json:
        found: dict[str, Any] = {"out": str(result.out)}
        found["evaluation"] = result.evaluation.to_dict() if result.evaluation else None
        print_json({**found, "ema": average.to_dict()} if average else found)
        return
    rows = table("", "")
    if (evaluation := result.evaluation) is not None:
        low, high = evaluation.interval()
        rows.add_row("accuracy", f"[bold]{share(evaluation.top1)}[/] of {evaluation.n:,} held-out pictures")
        rows.add_row("", f"95 % interval {share(low)} to {share(high)}")
        rows.add_row("loss", f"{evaluation.loss:.4f}")
    if average is not None:
        rows.add_row("average", f"[bold]{share(average.top1)}[/], loss {average.loss:.4f}: taken with --weights ema")
    rows.add_row("model", str(result.out / "model.safetensors"))
    if result.evaluation is not None:
        rows.add_row("report", str(result.out / "report.html"))
    else:
        errors.print("no pictures were held out, so nothing was measured")
    results.print(rows)
