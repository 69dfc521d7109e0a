"""Using an exported file, with nothing but the file."""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import ImageError, VitreousError, WeightsError
from vitreous.base.machine import cores
from vitreous.config import ViTConfig
from vitreous.engine.card import PREFIX, Card
from vitreous.engine.runtimes import Run, Threads, check_images, missing, open_onnxruntime, open_openvino
from vitreous.pictures.images import read_image
from vitreous.prediction import Predictor

XML, BIN = "model.xml", "model.bin"  # of an OpenVINO model in its folder


class Exported(Predictor):
    """An exported file that is open: `predict` and `logits` as a classifier's.

    Args:
        card: what the file says about itself.
        run: computes the logits.
        source: what messages call the file.
    """

    def __init__(self, card: Card, run: Run, source: str) -> None:
        super().__init__(card.preprocess, card.labels, card.provenance)
        self.card, self.run, self.source = card, run, source

    def __repr__(self) -> str:
        height, width = self.card.config.image_size
        return f"Exported({self.source!r}, {self.card.config.num_classes} classes, {height}x{width})"

    @property
    def config(self) -> ViTConfig:
        return self.card.config

    @property
    def load(self) -> Callable[[Any], Tensor]:
        return read_image if self.card.input == "pixels" else self.preprocess.load  # (3, H, W) uint8, or (C, H, W)

    def compute(self, images: Tensor) -> Tensor:
        """What the file takes, prepared images or pixels -> logits (B, K) float32.

        Raises:
            ImageError: for a size or type that the graph does not take.
        """
        if self.card.input == "images":
            check_images(self.card.config, images)
            return self.run(images.float())
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise ImageError(f"{self.source} takes (B, 3, H, W) uint8 pixels, got {tuple(images.shape)} {images.dtype}")
        return self.run(images)

    def check_head(self) -> None:
        if not self.card.config.num_classes:
            raise WeightsError(f"{self.source} has no head: export a fine-tuned model")


def load_exported(path: str | Path, threads: int | None = None, *, trusted: bool = False) -> Exported:
    """Open what `export` wrote, using only the file's own metadata.

    Args:
        path: an `.onnx` file (opened in ONNX Runtime, or in OpenVINO where only that is installed), a
            folder with an OpenVINO model or its `.xml`, or a `.pt2` file.
        threads: of the runtime; None for all cores.
        trusted: needed for `.pt2`, which PyTorch reads with pickle, so that such a file can run code.

    Raises:
        WeightsError: no such file, or one that is damaged, not of vitreous, or not `trusted`.
        VitreousError: when no runtime for it is installed.
    """
    path, source = Path(path), str(path)
    threads = threads or cores()
    if path.is_dir():
        path = path / XML
    if not path.is_file():
        raise WeightsError(f"{path}: no such file")
    if path.suffix == ".xml":
        run, metadata = open_openvino(path, threads)
    elif path.suffix == ".onnx":
        if missing("onnxruntime") and not missing("openvino"):
            run, metadata = open_openvino(path, threads)
        else:
            run, metadata = open_onnxruntime(path, threads)
    elif path.suffix == ".pt2":
        if not trusted:
            raise WeightsError(f"{path}: a .pt2 file can run code when it is opened: if it is your own, trusted=True")
        run, metadata = open_pt2(path, threads)
    else:
        raise VitreousError(f"{path}: an exported file ends in .onnx, .xml or .pt2")
    return Exported(Card.from_metadata(metadata, source), run, source)


def open_pt2(path: Path, threads: int) -> tuple[Run, dict[str, str]]:
    """A program of `torch.export`, and its metadata. Runs code that the file may hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if f"/extra/{PREFIX}" in name]
            metadata = {name.rpartition("/")[2]: archive.read(name).decode() for name in inside}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")  # of its own code
            module = torch.export.load(path).module()
    except Exception as error:
        raise WeightsError(f"{path}: PyTorch cannot open it ({type(error).__name__}: {error})") from None

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode(), Threads(threads):
            return module(images)

    return run, metadata
