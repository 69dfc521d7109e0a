"""`vitreous demo`: the whole way from pictures to a measured classifier, on what comes with the package."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.arguments import Workers
from vitreous.cli.evaluate import summary
from vitreous.cli.output import errors, results, share, table

if TYPE_CHECKING:
    from vitreous.classifier import Classifier

SAMPLE = "sign-language-digits.zip"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for everything that is written.")] = Path("vitreous-demo"),
    workers: Workers = None,
) -> None:
    """Train on the bundled pictures, measure, predict, and write a report to open.

    Ten hand signs, photographed by 206 people; the accuracy is that on people never trained on. Run again to
    go on where it was stopped.
    """
    from vitreous.evaluation.report import write_report
    from vitreous.training.run import pretrain, training_splits

    errors.print(f"[bold]1[/] unpacking the sample pictures into {out / 'pictures'}")
    data = unpack_sample(out / "pictures")
    run = out / "run"
    errors.print("[bold]2[/] training a small ViT from random weights: about two minutes on two cores")
    config, recipe = small_vit(), "demo"
    resume = (run / "state.safetensors").exists()
    result = pretrain(config, data, run, recipe, resume=resume, num_workers=workers)
    assert result.evaluation is not None
    errors.print("[bold]3[/] measured on the people held out")
    results.print()
    summary(result.evaluation)
    errors.print("\n[bold]4[/] predictions for pictures it has not seen")
    show_predictions(result.classifier, sorted((data / "val").glob("*/*"))[::61])
    report = out / "report.html"
    from vitreous.data import open_data

    _, val = training_splits(open_data(data), result_recipe(run))
    assert val is not None
    write_report(
        report,
        result.evaluation,
        result.classifier,
        val,
        log=result.log,
        title=f"Hand signs from scratch: {share(result.evaluation.top1)} on people never seen",
        notes=(
            "A small Vision Transformer trained from random weights, on one picture a sign of each person. "
            "All pictures of a person are either trained on or measured, never both.",
            "So few pictures are hard on a ViT, which has to learn even what lies beside what. A model that was "
            "trained before on many pictures and is only fine-tuned here does much better.",
        ),
    )
    results.print()
    rows = table("", "")
    rows.add_row("accuracy", f"[bold]{share(result.evaluation.top1)}[/] of {result.evaluation.n} held-out pictures")
    rows.add_row("report", str(report))
    rows.add_row("model", str(run / "model.safetensors"))
    rows.add_row("try", f"vitreous predict {run / 'model.safetensors'} PICTURE")
    results.print(rows)
