"""The runtimes that can compute a model: what each needs, and how each is opened."""

import copy
import os
import shutil
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitreous.base.errors import ImageError, VitreousError, WeightsError
from vitreous.base.extras import install
from vitreous.config import ViTConfig
from vitreous.engine.graph import INPUT, OUTPUT
from vitreous.model import VisionTransformer

Runtime = Literal["torch", "torch.compile", "onnxruntime", "openvino"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
Run = Callable[[Tensor], Tensor]  # (B, C, H, W) -> logits (B, K) float32


def missing(runtime: Runtime) -> str | None:
    """Why a runtime cannot be used here, with the way to it; None where it can."""
    if runtime == "torch.compile":
        compiler = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++", "cl")), None)
        return None if compiler and shutil.which(compiler) else "needs a C++ compiler, such as g++"
    packages = {"torch": (), "onnxruntime": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}[runtime]
    lacking = [package for package in packages if find_spec(package) is None]
    extra = "openvino" if runtime == "openvino" else "onnx"
    return f"needs {' and '.join(lacking)}: {install(extra)}" if lacking else None


def require(runtime: Runtime) -> None:
    """Refuse a runtime that cannot be used here."""
    why = missing(runtime)
    if why:
        raise VitreousError(f"{runtime} {why}")


def open_torch(model: VisionTransformer, threads: int, dtype: torch.dtype) -> Run:
    """PyTorch as it is."""
    model = _frozen(model, dtype)

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode(), Threads(threads):
            return model(images.to(model.position_embedding.device, dtype)).float()

    return run


def open_compiled(model: VisionTransformer, threads: int, dtype: torch.dtype) -> Run:
    """`torch.compile` with the weights as constants ("freezing"), which it may then lay out anew.

    It compiles on the first images, and again for every other batch size.
    """
    require("torch.compile")
    model = _frozen(model, dtype)
    compiled = torch.compile(model, dynamic=False, options={"freezing": True})

    def run(images: Tensor) -> Tensor:
        # Not `inference_mode`: freezing reads the weights' version counters.
        with warnings.catch_warnings(), torch.no_grad(), Threads(threads):
            warnings.filterwarnings("ignore", module="torch")  # the compiler's own, of its own code
            return compiled(images.to(model.position_embedding.device, dtype)).float().clone()

    return run


def open_onnxruntime(path: Path, threads: int) -> tuple[Run, dict[str, str]]:
    """An ONNX file in ONNX Runtime, and the file's metadata."""
    require("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no class of their own
        raise WeightsError(f"{path}: ONNX Runtime cannot open it ({_first_line(error)})") from None

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.contiguous().numpy()})[0])

    return run, dict(session.get_modelmeta().custom_metadata_map)


def open_openvino(path: Path, threads: int, precision: str = "f32") -> tuple[Run, dict[str, str]]:
    """An ONNX or OpenVINO (.xml) file in OpenVINO, and the file's metadata."""
    require("openvino")
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    try:
        graph = core.read_model(path)
        metadata = _openvino_metadata(graph)
        compiled = core.compile_model(graph, "CPU", settings)
    except Exception as error:
        raise WeightsError(f"{path}: OpenVINO cannot open it ({_first_line(error)})") from None

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(compiled(images.contiguous().numpy(), share_inputs=True)[0])

    return run, metadata


def _openvino_metadata(graph: Any) -> dict[str, str]:
    if not graph.has_rt_info(["vitreous"]):
        return {}
    return {f"vitreous.{key}": value.astype(str) for key, value in graph.get_rt_info(["vitreous"]).astype(dict).items()}


def openvino_does_bfloat16() -> bool:
    """Whether OpenVINO has a fast path for bfloat16 on this processor."""
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def check_images(config: ViTConfig, images: Tensor) -> None:
    """Refuse what the graph does not take, before the runtime does in words of its own."""
    wanted = (config.in_channels, *config.image_size)
    if images.ndim != 4 or tuple(images.shape[1:]) != wanted:
        raise ImageError(
            f"images must be (B, {wanted[0]}, {wanted[1]}, {wanted[2]}), got shape {tuple(images.shape)}: "
            "for another size, load the model with image_size=... first"
        )


class Threads:
    """So many threads of PyTorch for a while."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        if self.before != self.count:
            torch.set_num_threads(self.count)

    def __exit__(self, *exception: object) -> None:
        if self.before != self.count:
            torch.set_num_threads(self.before)


def _frozen(model: VisionTransformer, dtype: torch.dtype) -> VisionTransformer:
    """The model in evaluation mode and without gradients; its own modules around the same weights where they fit."""
    memo = {id(p): p.detach() if p.dtype == dtype else p.detach().to(dtype) for p in model.parameters()}
    for p in model.parameters():
        memo[id(p)] = torch.nn.Parameter(memo[id(p)], requires_grad=False)
    return copy.deepcopy(model, memo).eval()


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
