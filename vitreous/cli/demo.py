"""`vitreous demo`: the whole way from pictures to a measured classifier, on what comes with the package."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.arguments import Workers
from vitreous.cli.evaluate import summary
from vitreous.cli.output import errors, results, share, table

if TYPE_CHECKING:
    from vitreous.training import TrainingResult

SAMPLE = "sign-language-digits.zip"
SHOWN = 5  # predictions printed


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for everything that is written.")] = Path("vitreous-demo"),
    workers: Workers = None,
) -> None:
    """Train on the bundled pictures, measure, predict, and write a report to open.

    Ten hand signs of 206 people. The accuracy is that on people of whom no picture was trained on.
    Stopped half way, the same command goes on from there.
    """
    pictures, run = out / "pictures", out / "run"
    errors.print(f"[bold]1[/]  sample pictures to {pictures}")
    unpack(pictures)
    errors.print("[bold]2[/]  a small ViT from random weights: about two minutes on two cores")
    result = train(pictures, run, workers)
    assert result.evaluation is not None
    errors.print("[bold]3[/]  measured on people it has never seen\n")
    summary(result.evaluation)
    errors.print("\n[bold]4[/]  what it says of some of their pictures\n")
    _show_predictions(result)
    errors.print("\n[bold]5[/]  all of it in one page\n")
    _write_page(result)
    rows = table("", "")
    rows.add_row("accuracy", f"[bold]{share(result.evaluation.top1)}[/] of {result.evaluation.n} held-out pictures")
    rows.add_row("report", str(run / "report.html"))
    rows.add_row("model", str(run / "model.safetensors"))
    results.print(rows)
    results.print(f"\nnext: vitreous predict {run / 'model.safetensors'} {pictures / 'val' / '7'}", soft_wrap=True)


def unpack(folder: Path) -> None:
    """The sample data set as a folder of pictures; what is there already stays."""
    import zipfile
    from importlib import resources

    from vitreous.files import atomic_write

    with resources.as_file(resources.files("vitreous") / "assets" / SAMPLE) as path, zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            target = folder / info.filename
            if not info.is_dir() and not target.exists():
                with atomic_write(target) as file:
                    file.write(archive.read(info))


def train(pictures: Path, run: Path, workers: int | None = None) -> "TrainingResult":
    """The recipe `demo` on the sample, going on where an earlier run in the same folder stopped."""
    import torch

    from vitreous.config import ViTConfig
    from vitreous.preprocess import Preprocess
    from vitreous.training import pretrain
    from vitreous.training.loop import STATE

    config = ViTConfig(image_size=(32, 32), patch_size=(8, 8), hidden_size=128, num_layers=4, num_heads=4, mlp_dim=512)
    # Mean and deviation of the training pictures, which are all of a hand before a light wall.
    preprocess = Preprocess(size=(32, 32), antialias=True, mean=(0.673, 0.644, 0.616), std=(0.146, 0.160, 0.185))
    # Matrices this small gain nothing from a second thread; a second process decodes meanwhile.
    torch.set_num_threads(1)
    workers = 1 if workers is None else workers
    resume = (run / STATE).exists()
    return pretrain(config, pictures, run, "demo", preprocess=preprocess, resume=resume, num_workers=workers)


def _show_predictions(result: "TrainingResult") -> None:
    """A few held-out pictures, evenly spread, with the three best guesses."""
    split, clf = result.held_out, result.classifier
    assert split is not None
    made = table("picture", "is", "guesses")
    for i in range(len(split) // (2 * SHOWN), len(split), len(split) // SHOWN):
        (guesses,) = clf.predict(split.open(i), top_k=3)
        said = ", ".join(f"{g.label} ({share(g.probability)})" for g in guesses)
        made.add_row(split.names[i], split.classes[int(split.labels[i])], said)
    results.print(made)


def _write_page(result: "TrainingResult") -> None:
    """The run's report once more, with a title and words for a reader who knows nothing of it."""
    from vitreous.evaluation.report import write_report

    assert result.evaluation is not None
    assert result.held_out is not None
    write_report(
        result.out / "report.html",
        result.evaluation,
        result.classifier,
        result.held_out,
        log=result.log,
        title=f"Hand signs, learned from nothing: {share(result.evaluation.top1)}",
        notes=(
            "A small Vision Transformer, trained from random weights on photographs of ten hand signs. It is measured "
            "on people of whom it has seen no picture: all pictures of a person are on one side.",
            "So few pictures are hard on a ViT, which has to learn even which patch lies beside which: that these few "
            "do suffice is because they are all alike, one hand before a light wall. For pictures of the world, start "
            "from a model that has learned from many, and fine-tune it.",
        ),
    )
