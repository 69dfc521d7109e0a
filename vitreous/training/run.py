"""Whole runs: fine-tune or pre-train on a data set, measure the result, and keep everything in one folder."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import vitreous
from vitreous.classifier import Classifier
from vitreous.config import ViTConfig
from vitreous.data.source import DataSet, Split, open_data
from vitreous.errors import DataError, VitreousError
from vitreous.evaluation.evaluate import Evaluation, evaluate_split
from vitreous.evaluation.report import write_report
from vitreous.files import write_text
from vitreous.model import VisionTransformer
from vitreous.preprocess import Preprocess
from vitreous.seeds import derive, seeded
from vitreous.training.loop import STATE, Loop
from vitreous.training.recipe import Recipe
from vitreous.weights.checkpoint import Checkpoint

logger = logging.getLogger("vitreous")
MODEL = "model.safetensors"


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: the classifier, how good it is on the held-out pictures, and the folder with all of it.

    `samples` pictures were seen, counted anew each time; `skipped` names those that could not be read.
    """

    classifier: Classifier
    evaluation: Evaluation | None
    held_out: Split | None
    log: list[dict[str, Any]]
    out: Path
    samples: int
    skipped: tuple[str, ...]


def finetune(
    clf: Classifier,
    data: str | Path | DataSet,
    out: str | Path,
    recipe: str | Path | Recipe = "finetune",
    *,
    resume: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
    **overrides: Any,
) -> TrainingResult:
    """Fine-tune a classifier on a data set: a new zero head, and every weight trained (section 3.2).

    The classes are those of the training data, and are stored with the model. The classifier
    given stays as it is.

    Args:
        clf: where to start.
        data: a folder or zip of class folders; without a val or test split, a share is held out.
        out: folder for `model.safetensors`, `metrics.json`, `report.html`, `recipe.toml`, `log.jsonl`
            and `state.safetensors`.
        recipe: a name, a TOML file, or a `Recipe`.
        resume: go on with the run in `out` where it stopped.
        num_workers: processes that decode pictures; the result does not depend on it.
        overrides: values of the recipe, e.g. `steps=100, image_size=384`.

    Raises:
        DataError: classes that do not fit, or a folder that already holds a run.
        ImageError: a picture that cannot be read, by name.
        ConfigError: a recipe that cannot be.
    """
    settings = Recipe.load(recipe, **overrides)
    dataset = data if isinstance(data, DataSet) else open_data(data)
    train, val = training_splits(dataset, settings)
    start = _start_from(clf, train.classes, settings)
    origin = {"start": clf.provenance}
    return _run(start, dataset, train, val, Path(out), settings, origin, resume, num_workers, progress)


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
    **overrides: Any,
) -> TrainingResult:
    """Train from random weights, drawn from the recipe's seed; otherwise as `finetune`.

    Args:
        config: the architecture; its number of classes is taken from the data.
        preprocess: None for Google's, at the configuration's size.
    """
    settings = Recipe.load(recipe, **overrides)
    dataset = data if isinstance(data, DataSet) else open_data(data)
    train, val = training_splits(dataset, settings)
    with seeded(derive(settings.seed, "weights")):
        model = VisionTransformer(config.replace(num_classes=len(train.classes)))
    clf = Classifier(model, preprocess or Preprocess.preset("google", size=config.image_size), train.classes)
    start = _start_from(clf, train.classes, settings.replace(new_head=False))
    return _run(start, dataset, train, val, Path(out), settings, {"start": None}, resume, num_workers, progress)


def training_splits(dataset: DataSet, recipe: Recipe) -> tuple[Split, Split | None]:
    """(train, val): the data set's own splits, or a share held out by name. Classes are those of `train`.

    Raises:
        DataError: a validation class that training lacks, or fewer than two classes.
    """
    val = dataset.splits.get("val") or dataset.splits.get("test")
    train = dataset.splits.get("train") or dataset.splits.get("all")
    if train is None:
        raise DataError(f"{dataset.root} has no training pictures: it has {', '.join(dataset.splits)}")
    if len(train.classes) < 2:
        raise DataError(f"{dataset.root} has only the class {train.classes[0]!r}: two folders at least are needed")
    if val is not None:
        return train, val.with_classes(train.classes)
    if not recipe.val_fraction:
        return train, None
    return train.hold_out(recipe.val_fraction, recipe.seed)


def _start_from(clf: Classifier, classes: tuple[str, ...], recipe: Recipe) -> Classifier:
    """A copy of the classifier with the recipe's rates, size and head."""
    config = clf.model.config
    rates = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")
    config = config.replace(**{r: getattr(recipe, r) for r in rates if getattr(recipe, r) is not None})
    tensors = {name: tensor.detach().float().clone() for name, tensor in clf.model.state_dict().items()}
    model = Checkpoint(config, tensors, clf.preprocess).build("the classifier given")
    start = Classifier(model, clf.preprocess, clf.labels, clf.provenance)
    if recipe.new_head:
        start.reset_head(labels=classes)
        logger.info("new zero head for the %d classes of the training data", len(classes))
    elif start.labels != classes:
        raise DataError("new_head=false needs a model whose classes are exactly those of the training data")
    return start.resize(recipe.image_size) if recipe.image_size else start


def _run(
    clf: Classifier,
    dataset: DataSet,
    train: Split,
    val: Split | None,
    out: Path,
    recipe: Recipe,
    origin: dict[str, Any],
    resume: bool,
    num_workers: int | None,
    progress: bool,
) -> TrainingResult:
    _prepare_folder(out, resume)
    write_text(out / "recipe.toml", recipe.to_toml())
    held_out = {"fraction": recipe.val_fraction, "seed": recipe.seed} if val and dataset.unsplit() else None
    data = {
        "name": dataset.root.resolve().name,
        "fingerprint": dataset.split("train" if "train" in dataset.splits else "all").fingerprint(),
        "train_pictures": len(train),
        "held_out": held_out,
    }
    identity = {"recipe": recipe.to_dict(), "classes": list(train.classes), "data": data}

    def measure_midway() -> dict[str, float]:
        if val is None:
            return {}
        result = evaluate_split(clf, val, num_workers=num_workers, progress=False, on_broken=recipe.on_broken)
        return {"val_loss": result.loss, "val_top1": result.top1}

    loop = Loop(clf.model, train, clf.preprocess, recipe, out, identity, measure_midway, num_workers, progress)
    loop.run(resume and (out / STATE).exists())
    gaps = [name for entry in loop.log for name in entry.get("skipped", ())]
    samples, skipped = recipe.steps * recipe.batch_size - len(gaps), sorted(set(gaps))
    clf.provenance = {
        **origin,
        "vitreous": vitreous.__version__,
        "torch": torch.__version__,
        "data": data,
        "recipe": recipe.to_dict(),
        "samples": samples,
        "skipped": skipped,
    }
    clf.save(out / MODEL)
    evaluation = None
    if val is not None:
        evaluation = evaluate_split(clf, val, num_workers=num_workers, progress=progress, on_broken=recipe.on_broken)
        metrics = {**evaluation.to_dict(), "training": {"samples": samples, "skipped": skipped}}
        write_text(out / "metrics.json", json.dumps(metrics, indent=1))
        val = evaluation.split  # without those that could not be read
        write_report(out / "report.html", evaluation, clf, val, log=loop.log)
    return TrainingResult(clf, evaluation, val, loop.log, out, samples, tuple(skipped))


def _prepare_folder(out: Path, resume: bool) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise VitreousError(f"{out} is a file: --out takes a folder") from None
    if (out / STATE).exists() and not resume:
        raise VitreousError(f"{out} already holds a run: go on with --resume, or choose another --out")
    if resume and not (out / STATE).exists():
        logger.warning("nothing to resume in %s: starting anew", out)
