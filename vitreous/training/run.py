"""Whole runs: fine-tune or pre-train on a data set, measure the result, and keep everything in one folder."""

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.base import processes
from vitreous.base.errors import DataError, VitreousError
from vitreous.base.files import write_text
from vitreous.base.processes import Strategy
from vitreous.base.seeds import derive, seeded
from vitreous.base.version import __version__
from vitreous.classifier import Classifier
from vitreous.config import ViTConfig
from vitreous.data.dataset import DataSet, Split
from vitreous.data.open import open_data
from vitreous.data.partition import train_and_held_out
from vitreous.evaluation.evaluate import Evaluation, evaluate_split
from vitreous.evaluation.report import Story
from vitreous.model import VisionTransformer
from vitreous.pictures.preprocess import Preprocess
from vitreous.report.page import rows
from vitreous.training.ema import exchanged
from vitreous.training.log import SPEED
from vitreous.training.loop import How, Loop
from vitreous.training.recipe import Recipe
from vitreous.training.state import has_state
from vitreous.weights import native

logger = logging.getLogger("vitreous")
MODEL = "model.safetensors"


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: the classifier, how good it is on the held-out pictures, and the folder with all of it.

    `samples` pictures were seen, counted anew each time; `skipped` names those that could not be read.
    With `ema_decay`, `average` is what the average weights score; the file holds both, and
    `load(..., weights="ema")` takes them.
    """

    classifier: Classifier
    evaluation: Evaluation | None
    held_out: Split | None
    log: list[dict[str, Any]]
    out: Path
    samples: int
    skipped: tuple[str, ...]
    average: Evaluation | None = None


def finetune(
    clf: Classifier,
    data: str | Path | DataSet,
    out: str | Path,
    recipe: str | Path | Recipe = "finetune",
    *,
    resume: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
    strategy: Strategy = "ddp",
    device: str | None = None,
    tensorboard: bool = False,
    **overrides: Any,
) -> TrainingResult:
    """Fine-tune a classifier on a data set: a new zero head, and every weight trained (section 3.2).

    The classes are those of the training data, and are stored with the model. The classifier
    given stays as it is.

    Args:
        clf: where to start.
        data: a data set, or its place: see `open_data`; without a val or test split, a share is held out.
        out: the folder for `model.safetensors`, `metrics.json`, `report.html`, `recipe.toml`, `log.jsonl`
            and `state.safetensors`.
        recipe: a name, a TOML file, or a `Recipe`.
        resume: whether to go on with the run in `out` where it stopped.
        num_workers: processes that decode pictures; the result does not depend on it.
        progress: whether a bar on stderr shows how far it is.
        strategy: on several processes, as `torchrun` starts them: `"ddp"` or `"fsdp"`.
        device: where a single process computes, as `"cpu"` or `"cuda:1"`; None for the fastest there is.
        tensorboard: whether curves are written into `out`/tensorboard.
        overrides: values of the recipe, e.g. `steps=100, image_size=384`.

    Raises:
        DataError: classes that do not fit, or a folder that already holds a run.
        ImageError: a picture that cannot be read, by name.
        ConfigError: a recipe that cannot be.
    """
    settings = Recipe.load(recipe, **overrides)
    dataset = open_data(data)
    parts = train_and_held_out(dataset, settings.val_fraction, settings.seed)
    start = _start_from(clf, parts[0].classes, settings)
    how = How(resume, num_workers, progress, strategy, device, tensorboard)
    return _run(start, dataset, parts, Path(out), settings, {"start": clf.provenance}, how)


def pretrain(
    config: ViTConfig,
    data: str | Path | DataSet,
    out: str | Path,
    recipe: str | Path | Recipe = "scratch",
    *,
    preprocess: Preprocess | None = None,
    resume: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
    strategy: Strategy = "ddp",
    device: str | None = None,
    tensorboard: bool = False,
    **overrides: Any,
) -> TrainingResult:
    """Train from random weights, drawn from the recipe's seed; otherwise as `finetune`.

    Args:
        config: the architecture; its number of classes is taken from the data.
        preprocess: None for Google's, at the configuration's size.
    """
    settings = Recipe.load(recipe, **overrides)
    dataset = open_data(data)
    parts = train_and_held_out(dataset, settings.val_fraction, settings.seed)
    classes = parts[0].classes
    if settings.representation_size is not None:
        config = config.replace(representation_size=settings.representation_size)
    with seeded(derive(settings.seed, "weights")):
        model = VisionTransformer(config.replace(num_classes=len(classes)))
    _set_bias(model, settings.head_bias)
    clf = Classifier(model, preprocess or Preprocess.preset("google", size=config.image_size), classes)
    start = _start_from(clf, classes, settings.replace(new_head=False))
    how = How(resume, num_workers, progress, strategy, device, tensorboard)
    return _run(start, dataset, parts, Path(out), settings, {"start": None}, how)


def _start_from(clf: Classifier, classes: tuple[str, ...], recipe: Recipe) -> Classifier:
    """A copy of the classifier with the recipe's rates, size and head."""
    config = clf.model.config
    rates = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")
    config = config.replace(**{r: getattr(recipe, r) for r in rates if getattr(recipe, r) is not None})
    tensors = {name: tensor.detach().float().clone() for name, tensor in clf.model.state_dict().items()}
    model = replace(clf.checkpoint(), config=config, tensors=tensors).build("the classifier given")
    start = Classifier(model, clf.preprocess, clf.labels, clf.provenance)
    if recipe.new_head:
        start.reset_head(labels=classes)
        _set_bias(model, recipe.head_bias)
        logger.info("new zero head for the %d classes of the training data", len(classes))
    elif start.labels != classes:
        raise DataError("new_head=false needs a model whose classes are exactly those of the training data")
    return start.resize(recipe.image_size) if recipe.image_size else start


def _set_bias(model: VisionTransformer, value: float) -> None:
    if model.head is not None:
        torch.nn.init.constant_(model.head.bias, value)


def _run(
    clf: Classifier,
    dataset: DataSet,
    parts: tuple[Split, Split | None],
    out: Path,
    recipe: Recipe,
    origin: dict[str, Any],
    how: How,
) -> TrainingResult:
    """Train, measure, and keep everything in the folder.

    Args:
        clf: where to start; trained in place.
        dataset: the data.
        parts: its pictures to train on, and those to measure with.
        out: the run's folder.
        recipe: everything that the result depends on.
        origin: where the weights to start from come from.
        how: everything that it does not depend on.
    """
    train, val = parts
    processes.connect(how.strategy, device=how.device)
    _prepare_folder(out, how.resume)
    if processes.is_first():
        write_text(out / "recipe.toml", recipe.to_toml())
    data = _identity(dataset, train, val, recipe)

    name = "held out" if dataset.unsplit() else "val" if "val" in dataset.splits else "test"
    how_measured: dict[str, Any] = dict(num_workers=how.num_workers, on_broken=recipe.on_broken)

    def measure(progress: bool = False) -> Evaluation | None:
        return None if val is None else evaluate_split(clf, val, name, progress=progress, **how_measured)

    def measure_midway() -> dict[str, float]:
        found = measure()
        return {} if found is None else {"val_loss": found.loss, "val_top1": found.top1}

    loop = Loop(
        model=clf.model,
        split=train,
        preprocess=clf.preprocess,
        recipe=recipe,
        out=out,
        identity={"recipe": recipe.to_dict(), "classes": list(train.classes), "data": data},
        evaluate=measure_midway,
        how=how,
    )
    loop.run()
    done = _record(clf, loop, origin, data)
    _save(clf, loop.averaged, out)  # before it is measured: whatever happens then, the model is there
    evaluation, average = measure(how.progress), None
    if loop.averaged is not None:
        with exchanged(clf.model, loop.averaged):
            average = measure(how.progress)
    if evaluation is not None:
        both = {"raw": evaluation, "ema": average}
        clf.provenance["scores"] = {kind: {"top1": e.top1, "loss": e.loss, "n": e.n} for kind, e in both.items() if e}
        _save(clf, loop.averaged, out)
        val = evaluation.split  # without those that could not be read
    result = TrainingResult(clf, evaluation, val, loop.log, out, done["samples"], tuple(done["skipped"]), average)
    if evaluation is not None and processes.is_first():
        _write_metrics(result, recipe, done, clf.device)
    return result


def _identity(dataset: DataSet, train: Split, val: Split | None, recipe: Recipe) -> dict[str, Any]:
    """Which data, and which of them are held out: what `evaluate` finds them again by."""
    return {
        "name": dataset.root.resolve().name,
        "fingerprint": dataset.split("train" if "train" in dataset.splits else "all").fingerprint(),
        "train_pictures": len(train),
        "held_out": {"fraction": recipe.val_fraction, "seed": recipe.seed} if val and dataset.unsplit() else None,
    }


def _record(clf: Classifier, loop: Loop, origin: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Write into the classifier where its weights come from; returns how many pictures it has seen."""
    recipe = loop.recipe
    gaps = [name for entry in loop.log for name in entry.get("skipped", ())]
    done = {"samples": recipe.steps * recipe.batch_size - len(gaps), "skipped": sorted(set(gaps))}
    clf.provenance = {
        **origin,
        "vitreous": __version__,
        "torch": torch.__version__,
        "data": data,
        "recipe": recipe.to_dict(),
        **done,
    }
    return done


def _save(clf: Classifier, averaged: dict[str, torch.Tensor] | None, out: Path) -> None:
    if processes.is_first():
        native.write(out / MODEL, clf.checkpoint(), averaged)


def _write_metrics(result: TrainingResult, recipe: Recipe, done: dict[str, Any], where: torch.device) -> None:
    """`metrics.json` and the page."""
    evaluation, average = result.evaluation, result.average
    assert evaluation is not None
    more, notes = {"training": done}, []
    if average is not None:
        more["ema"] = average.to_dict()
        notes.append(
            f"These are the raw weights. Their running average (EMA), in the same file, puts {average.top1:.1%} right: "
            'load it with weights="ema".'
        )
    usual, model = Recipe().to_dict(), result.out / MODEL
    story = Story(
        notes=notes,
        log=result.log,
        facts=[*_speed(result.out), ("computed on", str(where))],
        changed=rows({key: value for key, value in recipe.to_dict().items() if value != usual[key]}),
        commands=[
            ("Say what is in other pictures:", f"vitreous predict {model} PICTURES"),
            ("See what an answer depends on:", f"vitreous explain {model} PICTURE --out why"),
            ("Measure it on other pictures:", f"vitreous evaluate {model} DATA --out measured"),
            ("Train once more with these settings:", f"vitreous finetune MODEL DATA --out OTHER --recipe "
             f"{result.out / 'recipe.toml'}"),
        ],
    )  # fmt: skip
    evaluation.save(result.out, story, more)


def _speed(out: Path) -> list[tuple[str, str]]:
    """How long the training took, from the log of its speed."""
    lines = [json.loads(line) for line in (out / SPEED).read_text(encoding="utf-8").splitlines()]
    seconds = sum(line["seconds"] for line in lines)
    images = sum(line["seconds"] * line["images_per_s"] for line in lines)
    minutes = f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    return [("trained in", f"{minutes}, {images / max(seconds, 1e-9):,.0f} images/s")]


def _prepare_folder(out: Path, resume: bool) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise VitreousError(f"{out} is a file: --out takes a folder") from None
    if has_state(out) and not resume:
        raise VitreousError(f"{out} already holds a run: go on with --resume, or choose another --out")
    if resume and not has_state(out) and processes.is_first():
        logger.warning("nothing to resume in %s: starting anew", out)
