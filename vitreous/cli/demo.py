"""`vitreous demo`: the whole way from pictures to a measured classifier, on what comes with the package."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.arguments import Workers
from vitreous.cli.evaluate import summary
from vitreous.cli.output import errors, results, share, table

if TYPE_CHECKING:
    from vitreous.classifier import Classifier
    from vitreous.training.run import TrainingResult

SAMPLE, MINI = "sign-language-digits.zip", "vitreous:mini"
SIZE = 40  # pixels: the bundled model has learned at 32
SHOWN = 5  # predictions printed


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for everything that is written.")] = Path("vitreous-demo"),
    workers: Workers = None,
) -> None:
    """Fine-tune the bundled model on the bundled pictures, measure, predict, and write a report to open.

    Ten hand signs of 206 people. The accuracy is that on people of whom no picture was trained on. Beside it,
    the same model trained by the same recipe from random weights: what pre-training is worth.
    Stopped half way, the same command goes on from there.
    """
    pictures, run, nothing = out / "pictures", out / "run", out / "from-nothing"
    errors.print(f"[bold]1[/]  sample pictures to {pictures}")
    unpack(pictures)
    errors.print(f"[bold]2[/]  {MINI}, pre-trained on CIFAR-10 at 32 pixels, fine-tuned at {SIZE}: about two minutes")
    clf = start()
    result = train(clf, pictures, run, workers)
    errors.print("[bold]3[/]  the same from random weights")
    control = train(untrained(clf), pictures, nothing, workers)
    assert result.evaluation is not None
    assert control.evaluation is not None
    errors.print("[bold]4[/]  measured on people it has never seen\n")
    summary(result.evaluation)
    errors.print("\n[bold]5[/]  what it says of some of their pictures\n")
    _show_predictions(result)
    errors.print("\n[bold]6[/]  all of it in one page\n")
    _write_page(result, control)
    rows = table("", "")
    n = result.evaluation.n
    rows.add_row("from the bundled model", f"[bold]{share(result.evaluation.top1)}[/] of {n} held-out pictures")
    rows.add_row("from random weights", f"{share(control.evaluation.top1)}, same recipe")
    rows.add_row("report", str(run / "report.html"))
    rows.add_row("model", str(run / "model.safetensors"))
    results.print(rows)
    results.print(f"\nnext: vitreous predict {run / 'model.safetensors'} {pictures / 'val' / '7'}", soft_wrap=True)


def unpack(folder: Path) -> None:
    """The sample data set as a folder of pictures; what is there already stays."""
    import zipfile
    from importlib import resources

    from vitreous.base.files import atomic_write

    with resources.as_file(resources.files("vitreous") / "assets" / SAMPLE) as path, zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            target = folder / info.filename
            if not info.is_dir() and not target.exists():
                with atomic_write(target) as file:
                    file.write(archive.read(info))


def start() -> "Classifier":
    """The bundled model at the demo's size, its positions resized."""
    from vitreous.classifier import Classifier, load

    clf = load(MINI, image_size=SIZE)
    # Mean and deviation of the training pictures, which are all of a hand before a light wall.
    preprocess = clf.preprocess.replace(mean=(0.673, 0.644, 0.616), std=(0.146, 0.160, 0.185))
    return Classifier(clf.model, preprocess, clf.labels, clf.provenance)


def untrained(clf: "Classifier") -> "Classifier":
    """The same with random weights."""
    from vitreous.base.seeds import derive, seeded
    from vitreous.classifier import Classifier
    from vitreous.model import VisionTransformer

    with seeded(derive(0, "weights")):
        return Classifier(VisionTransformer(clf.model.config), clf.preprocess, clf.labels)


def train(clf: "Classifier", pictures: Path, run: Path, workers: int | None = None) -> "TrainingResult":
    """The recipe `demo` on the sample, going on where an earlier run in the same folder stopped."""
    import torch

    from vitreous.training.loop import STATE
    from vitreous.training.run import finetune

    # Matrices this small gain nothing from a second thread; a second process decodes meanwhile.
    torch.set_num_threads(1)
    workers = 1 if workers is None else workers
    return finetune(clf, pictures, run, "demo", resume=(run / STATE).exists(), num_workers=workers)


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


def _write_page(result: "TrainingResult", control: "TrainingResult") -> None:
    """The run's report once more, with a title and words for a reader who knows nothing of it."""
    from vitreous.evaluation.report import Story

    assert result.evaluation is not None
    assert control.evaluation is not None
    top1, without = share(result.evaluation.top1), share(control.evaluation.top1)
    story = Story(
        log=result.log,
        title=f"Hand signs, fine-tuned in minutes: {top1}",
        notes=(
            "A small Vision Transformer that had learned from the 50,000 pictures of CIFAR-10, fine-tuned on "
            "photographs of ten hand signs at a higher resolution. It is measured on people of whom it has seen no "
            "picture: all pictures of a person are on one side.",
            f"The same model by the same recipe from random weights: {without} (the recipe was chosen for the "
            "pre-trained model; one for random weights does better, though not as well). A ViT has to learn even which "
            "patch lies beside which, and so few pictures teach it slowly; what it has learned elsewhere, it keeps.",
        ),
    )
    result.evaluation.save(result.out, story)
