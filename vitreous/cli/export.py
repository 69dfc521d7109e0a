"""`vitreous export`: put a model into service in another runtime."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.arguments import ImageSize, Model, Weights
from vitreous.cli.opening import classifier
from vitreous.cli.output import errors, results


class Format(str, enum.Enum):
    """Which runtime is to read it."""

    onnx = "onnx"
    openvino = "openvino"
    pt2 = "pt2"


class Where(str, enum.Enum):
    """Where pictures are prepared."""

    metadata = "metadata"
    graph = "graph"


class Precision(str, enum.Enum):
    """Of the weights and their products."""

    float32 = "float32"
    int8 = "int8"


def export(
    model: Model,
    dest: Annotated[Path, typer.Argument(help="A file, or for openvino a folder.", show_default=False)],
    to: Annotated[Format, typer.Option("--to", help="pt2 is torch.export's.")] = Format.onnx,
    preprocess: Annotated[
        Where, typer.Option("--preprocess", help="graph: it takes 8-bit pixels of any size, and prepares them itself.")
    ] = Where.metadata,
    precision: Annotated[
        Precision, typer.Option("--precision", help="int8: a quarter of the size; onnx only.")
    ] = Precision.float32,
    data: Annotated[
        Path | None, typer.Option("--data", help="For int8: pictures to measure the accuracy on.", show_default=False)
    ] = None,
    image_size: ImageSize = None,
    weights: Weights = None,
) -> None:
    """Write a model for ONNX Runtime, OpenVINO or torch.export, for any batch size.

    Labels and preprocessing are in the file's metadata. It is compared with PyTorch before it is put in place.
    """
    from vitreous.engine.export import export as write

    clf = classifier(model, image_size=image_size, weights=weights, device="cpu")
    done = write(clf, dest, to.value, preprocess=preprocess.value, precision=precision.value, data=data)
    errors.print(f"{done.size / 1e6:.1f} MB, logits within {done.difference:.0e} of PyTorch's", markup=False)
    if done.accuracy is not None:
        errors.print(str(done.accuracy), markup=False)
    results.print(str(done.path), soft_wrap=True, markup=False)
