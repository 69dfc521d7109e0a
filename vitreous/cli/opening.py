"""What every command does with MODEL: a classifier on its device, one in another runtime, or an exported file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vitreous.cli.arguments import Engine, Precision, kind_of_weights, parse_size
from vitreous.cli.output import errors

if TYPE_CHECKING:
    from vitreous.classifier import Classifier
    from vitreous.prediction import Predictor

EXPORTED = (".onnx", ".xml", ".pt2")


def classifier(
    model: str,
    *,
    image_size: str | None = None,
    num_classes: int | None = None,
    weights: str | None = None,
    device: str | None = None,
    precision: Precision | None = None,
) -> "Classifier":
    """The classifier that the options ask for, where it is to compute."""
    size, kind = parse_size(image_size), kind_of_weights(weights)  # what is mistyped is said before torch is loaded
    import torch

    from vitreous.base import processes
    from vitreous.classifier import load

    where = processes.device(device)
    clf = load(model, image_size=size, num_classes=num_classes, weights=kind)
    clf.model.to(where, None if precision is None else getattr(torch, precision.value))
    return clf


def predictor(
    model: str,
    *,
    runtime: Engine | None = None,
    batch_size: int = 1,
    measure_again: bool = False,
    **options: Any,
) -> "Predictor":
    """`classifier`, or what computes the same faster, or a file that `vitreous export` wrote.

    Args:
        model: as every command takes it, or an exported file or folder.
        runtime: what is to compute.
        batch_size: for which the fastest runtime is chosen.
        measure_again: measure, whatever is remembered.
        options: the options of `classifier`.
    """
    if Path(model).suffix in EXPORTED or (Path(model) / "model.xml").is_file():
        return _exported(model, runtime, options)
    if runtime is not None and options.get("precision") not in (None, Precision.float32):
        raise typer.BadParameter("--runtime computes in float32: other precisions there are had with vt.compile")
    clf = classifier(model, **options)
    if runtime is None:
        return clf
    from vitreous.engine.compile import compile

    clf.check_head()
    compiled = compile(clf, runtime.value, batch_size=batch_size, measure_again=measure_again)
    errors.print(str(compiled.choice), markup=False, soft_wrap=True)
    errors.print(compiled.choice.table(), markup=False, soft_wrap=True)
    return compiled


def _exported(model: str, runtime: Engine | None, options: dict[str, Any]) -> "Predictor":
    from vitreous.engine.exported import load_exported

    given = [f"--{name.replace('_', '-')}" for name, value in {"runtime": runtime, **options}.items() if value]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: {model} is an exported file, where this is fixed")
    return load_exported(model)
