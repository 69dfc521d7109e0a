"""Writing a classifier for another runtime: a file that says everything about itself, and is checked first."""

import glob
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, VitreousError, did_you_mean
from vitreous.base.files import atomic_path
from vitreous.base.machine import cores
from vitreous.classifier import Classifier
from vitreous.data.dataset import DataSet
from vitreous.engine.accuracy import Accuracy, compare, in_float32
from vitreous.engine.card import Card
from vitreous.engine.exported import BIN, XML, open_pt2
from vitreous.engine.graph import INPUT, Graph, onnx_model, require_onnx
from vitreous.engine.runtimes import Run, open_onnxruntime, open_openvino, require

Format = Literal["onnx", "openvino", "pt2"]
TOLERANCE = 1e-4  # of the logits, against PyTorch
BATCHES = (1, 2, 5)
LARGEST_FILE = 2**31 - 2**20  # bytes of one protobuf


@dataclass(frozen=True)
class Export:
    """What `export` wrote.

    Args:
        path: the file, or OpenVINO's folder.
        size: bytes in all.
        difference: the largest of any logit from PyTorch's, over random pictures in batches of 1, 2 and 5.
        accuracy: before and after, for int8.
    """

    path: Path
    size: int
    difference: float
    accuracy: Accuracy | None = None


def export(
    clf: Classifier,
    path: str | Path,
    to: Format = "onnx",
    *,
    preprocess: Literal["metadata", "graph"] = "metadata",
    precision: Literal["float32", "int8"] = "float32",
    data: str | Path | DataSet | None = None,
) -> Export:
    """Write a classifier for another runtime, for any batch size, with labels and preprocessing in its metadata.

    Nothing is put in place before it has given PyTorch's logits. `load_exported` opens it again.

    Args:
        clf: the classifier.
        path: for `"onnx"` a file `.onnx`, for `"pt2"` (torch.export) a file `.pt2`; for `"openvino"` a
            folder, which gets `model.xml` and `model.bin`.
        to: the format.
        preprocess: `"metadata"`: the graph takes prepared images (B, C, h, w) float32, and the metadata
            says how to prepare them. `"graph"`: it takes RGB pixels (B, 3, H, W) uint8 of any size and
            prepares them itself; only `"onnx"`, and `"openvino"` where that runtime can do the same.
            Antialiased resizing may then differ by one of 255 levels in a few pixels.
        precision: `"int8"` for weights of 8 bits (`"onnx"` only); needs `data`.
        data: pictures to measure what int8 does to the accuracy, as `evaluate` takes them.

    Raises:
        VitreousError: when a package is missing, or the runtime's logits are not PyTorch's.
        ConfigError: for a combination that there is not.
    """
    path = Path(path)
    _check(path, to, preprocess, precision, data)
    clf = in_float32(clf)
    source = "pixels" if preprocess == "graph" else "images"
    card = Card(clf.model.config, clf.preprocess, clf.labels, dict(clf.provenance), source, precision)  # type: ignore[arg-type]
    if to == "openvino":
        with _atomic_folder(path, {XML, BIN}) as folder:
            write_openvino(clf, card, folder / XML)
            done = _verified(clf, card, open_openvino(folder / XML, cores())[0], path)
    elif to == "pt2":
        with atomic_path(path) as part, tempfile.TemporaryDirectory(dir=path.parent) as folder:
            named = Path(folder) / "model.pt2"  # PyTorch insists on the ending
            _write_pt2(clf, card, named)
            done = _verified(clf, card, open_pt2(named, cores())[0], path)
            named.replace(part)
    else:
        done = _export_onnx(clf, card, path, data)
    files = [path, *_data_files(path)] if path.is_file() else list(path.iterdir())
    return Export(path, sum(file.stat().st_size for file in files), *done)


def _export_onnx(
    clf: Classifier, card: Card, path: Path, data: str | Path | DataSet | None
) -> "tuple[float, Accuracy | None]":
    require("onnxruntime")
    old = _data_files(path)
    with atomic_path(path) as part:
        beside = write_onnx(clf, card, part, path.name)
        try:
            run = open_onnxruntime(part, cores())[0]
            done = _verified(clf, card, run, path, data)
        except BaseException:
            if beside:
                beside.unlink()
            raise
    for file in old:
        if file != beside:
            file.unlink()
    return done


def write_onnx(clf: Classifier, card: Card, path: Path, name: str = "model.onnx") -> Path | None:
    """Write an ONNX file, to be called `name`; its weights beside it where they are too large for one file (2 GB).

    Returns:
        The file of the weights, if any. Its name is of no other version, so that an older `.onnx` in the
        same place stays whole until it is replaced.
    """
    onnx = require_onnx()
    graph, images = Graph(), INPUT
    if card.input == "pixels":
        from vitreous.engine.graph_preprocess import prepare

        images = prepare(graph, clf.preprocess)
    model = onnx_model(clf.model, images, graph)
    weights = sum(len(constant.raw_data) for constant in model.graph.initializer)
    if card.precision == "int8":
        from vitreous.engine.quantise import quantise

        if weights > LARGEST_FILE:
            raise VitreousError("int8 is for models of up to 2 GB")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder) / "float32.onnx"
            onnx.save_model(model, whole)
            quantise(whole, path)
        model = onnx.load(path)
    onnx.helper.set_model_props(model, card.to_metadata())
    if weights <= LARGEST_FILE:
        onnx.save_model(model, path)
        return None
    beside = path.with_name(f"{name}.{os.urandom(4).hex()}.data")
    onnx.save_model(model, path, save_as_external_data=True, location=beside.name)
    return beside


def write_openvino(clf: Classifier, card: Card, path: Path) -> None:
    """Write `path` (.xml) and the weights beside it (.bin), both from the ONNX graph."""
    require("openvino")
    import openvino

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole = Path(folder) / "model.onnx"
        write_onnx(clf, card, whole)
        graph = openvino.Core().read_model(whole)
        for name, text in card.to_metadata().items():
            graph.set_rt_info(text, name.split("."))
        openvino.save_model(graph, path, compress_to_fp16=False)


def _write_pt2(clf: Classifier, card: Card, path: Path) -> None:
    model = clf.model
    training = model.training
    model.eval()
    height, width = model.config.image_size
    example = torch.zeros(2, model.config.in_channels, height, width)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.filterwarnings("ignore", module="torch")  # of its own code
            batch = torch.export.Dim("batch", min=1)
            program = torch.export.export(model, (example,), dynamic_shapes={"images": {0: batch}})
            torch.export.save(program, path, extra_files=card.to_metadata())
    finally:
        model.train(training)


def _verified(
    clf: Classifier, card: Card, run: Run, path: Path, data: str | Path | DataSet | None = None
) -> "tuple[float, Accuracy | None]":
    """The largest difference from PyTorch; for int8 the accuracy as well."""
    difference, largest = 0.0, 0.0
    for images, prepared in _random_pictures(clf, card):
        wanted, found = clf.compute(prepared), run(images)  # (B, K)
        difference = max(difference, float((found - wanted).abs().max()))
        largest = max(largest, float(wanted.abs().max()))
    if card.precision == "int8":
        assert data is not None
        return difference, compare(clf, run, data)
    tolerance = max(TOLERANCE, 1e-6 * largest)
    if card.input == "pixels" and clf.preprocess.antialias:
        tolerance = 0.05 * largest  # a pixel in a thousand may be one level brighter or darker
    if not difference <= tolerance:  # NaN is refused too
        raise VitreousError(
            f"{path}: the logits differ from PyTorch's by {difference:.1e}, more than {tolerance:.0e}, so it was not "
            + ("written: leave the preprocessing in the metadata" if card.input == "pixels" else "written")
        )
    return difference, None


def _random_pictures(clf: Classifier, card: Card) -> Iterator[tuple[Tensor, Tensor]]:
    """What the graph takes and what the model takes, of the same pictures, in batches of `BATCHES`."""
    config, generator = clf.model.config, torch.Generator().manual_seed(0)
    for n, (height, width) in zip(BATCHES, ((1.0, 1.0), (1.6, 2.3), (2.1, 0.8)), strict=True):
        if card.input == "images":
            images = torch.randn(n, config.in_channels, *config.image_size, generator=generator)
            yield images, images
        else:
            size = int(height * config.image_size[0]), int(width * config.image_size[1])
            pixels = torch.randint(0, 256, (n, 3, *size), dtype=torch.uint8, generator=generator)
            yield pixels, torch.stack([clf.preprocess(picture) for picture in pixels])


def _check(path: Path, to: str, preprocess: str, precision: str, data: object) -> None:
    for what, value, allowed in (
        ("format", to, get_args(Format)),
        ("preprocess", preprocess, ("metadata", "graph")),
        ("precision", precision, ("float32", "int8")),
    ):
        if value not in allowed:
            raise ConfigError(f"unknown {what} {value!r}{did_you_mean(str(value), allowed)}: {', '.join(allowed)}")
    suffix = {"onnx": ".onnx", "pt2": ".pt2", "openvino": ""}[to]
    if path.suffix != suffix and (suffix or path.suffix in (".xml", ".bin", ".onnx")):
        wanted = f"a file that ends in {suffix}" if suffix else "a folder"
        raise ConfigError(f"{path}: {to} needs {wanted}")
    if to == "pt2" and preprocess == "graph":
        raise ConfigError("preprocessing in the graph is for onnx and openvino")
    if precision == "int8" and to != "onnx":
        raise ConfigError("int8 is for onnx, and computed by ONNX Runtime")
    if precision == "int8" and data is None:
        raise ConfigError("int8 changes predictions a little: give data to measure by how much")


def _data_files(path: Path) -> list[Path]:
    """Weights that `write_onnx` put beside a file of this name."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.????????.data"))


@contextmanager
def _atomic_folder(path: Path, names: set[str]) -> Iterator[Path]:
    """A folder beside `path` that takes its place when the block ends without an error.

    An old one is replaced if it holds nothing but `names`.
    """
    if path.exists() and not (path.is_dir() and {file.name for file in path.iterdir()} <= names):
        raise VitreousError(f"{path} is there already and holds other things: choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as around:
        part, old = Path(around) / "new", Path(around) / "old"
        part.mkdir()
        yield part
        for file in part.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        if path.exists():
            path.replace(old)
        part.replace(path)
