"""How fast a ViT gives logits: beside timm, transformers and torchvision, and timm's export in other runtimes.

All with random weights, prepared images and the same threads and batch; the other runtimes each
with all threads and with half of them. The file of timm is written by `torch.onnx.export` as it
comes. The ceiling is what one large matrix product reaches in PyTorch on the same threads.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Report, Sample, Timed, in_fresh_process, run_cases

NAMES = {"Ti/16": "vit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224"}
OURS = ("vitreous", "vitreous eager")
EAGER = ("timm", "transformers", "torchvision")
EXPORTED = ("onnxruntime", "openvino")
LIBRARIES = (*OURS, *EAGER, *EXPORTED)
SECONDS, FEWEST = 3.0, 4  # of passes in one case, after two to warm up
CEILING, SIDE = "matrix product", 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be left out, so that a part runs in a few minutes."""
    parser.add_argument("--models", default="B/16", help=f"of {','.join(NAMES)} (default B/16)")
    parser.add_argument("--batches", default="1,8", help="batch sizes (default 1,8)")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="which (default: all)")
    parser.add_argument("--files", type=Path, help="keep timm's exports and the choices here (default: nowhere)")


def run(*, rounds: int, threads: int, models: str, batches: str, libraries: str, files: Path | None) -> Report:
    """Every model and batch with every library."""
    with tempfile.TemporaryDirectory() as nowhere:
        folder = str((files or Path(nowhere)).resolve())
        Path(folder).mkdir(parents=True, exist_ok=True)
        wanted, cases = libraries.split(","), [Case("ceiling", CEILING, "benchmarks.infer:matrix_product", (threads,))]
        for model in models.split(","):
            if set(wanted) & set(EXPORTED):
                in_fresh_process("benchmarks.infer:write_timm", model, folder, threads=threads)
            for batch in map(int, batches.split(",")):
                cases += _cases(model, batch, threads, wanted, folder)
        samples = run_cases(cases, rounds=rounds, threads=threads)
    ceiling = statistics.median(map(_seconds, samples[0][1]))
    ratios = _ratios(samples[1:], 2 * SIDE**3 / ceiling)
    return Report(
        name="infer",
        settings={"rounds": rounds, "threads": threads, "ceiling_flops": 2 * SIDE**3 / ceiling, "ratios": ratios},
        samples=samples,
        columns={
            "ms": (lambda s: 1000 * _seconds(s), ".1f"),
            "peak MB": (lambda s: max(stage["peak_bytes"] for stage in s.values()) / 2**20, ".0f"),
        },
        note="ms: of one batch, the median of its passes; peak MB: of the process, over what it had after its imports. "
        f"The ceiling is {2e-9 * SIDE**3 / ceiling:.0f} GFLOP/s. "
        + " ".join(f"{task}: {_sentence(found)}." for task, found in ratios.items()),
    )


def _cases(model: str, batch: int, threads: int, wanted: list[str], folder: str) -> Iterator[Case]:
    task = f"{model}, batch {batch}"
    for library in LIBRARIES:
        if library in OURS and library in wanted:
            runtime = "auto" if library == "vitreous" else "torch"
            yield Case(task, library, "benchmarks.infer:vitreous", (model, batch, threads, runtime, folder))
        elif library in EAGER and library in wanted and (library == "timm" or model == "B/16"):
            yield Case(task, library, f"benchmarks.infer:{library}", (model, batch))
        elif library in EXPORTED and library in wanted:
            for count in sorted({threads, max(threads // 2, 1)}, reverse=True):
                name = f"{library} on timm's, {count}"
                yield Case(task, name, f"benchmarks.infer:{library}", (model, batch, count, folder))


def _ratios(samples: list[tuple[Case, list[Sample]]], ceiling: float) -> dict[str, dict[str, Any]]:
    """Of each task: how many times as fast ours is as each other, by the medians; and the share of the ceiling."""
    from vitreous.anatomy.cost import cost
    from vitreous.config import ViTConfig

    found: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(case.task for case, _ in samples):
        seconds = {c.library: statistics.median(map(_seconds, taken)) for c, taken in samples if c.task == task}
        if OURS[0] not in seconds:
            continue
        ours = seconds[OURS[0]]
        model, batch = task.split(", batch ")
        flops = 2 * cost(ViTConfig.from_name(model)).macs_for_logits * int(batch)
        chosen = next(
            stage.removeprefix("load, ")
            for c, taken in samples
            if (c.task, c.library) == (task, OURS[0])
            for stage in taken[0]
            if stage.startswith("load, ")
        )
        times = {library: taken / ours for library, taken in seconds.items() if library != OURS[0]}
        found[task] = {"chosen": chosen, "times": times, "share_of_ceiling": flops / ours / ceiling}
    return found


def _sentence(found: dict[str, Any]) -> str:
    peers = {library: times for library, times in found["times"].items() if library not in OURS}
    text = f"vitreous ({found['chosen']}) reaches {found['share_of_ceiling']:.2f} of it"
    if "vitreous eager" in found["times"]:
        text += f", is {found['times']['vitreous eager']:.2f} times as fast as its eager form"
    if peers:
        best = min(peers, key=peers.__getitem__)
        text += f", {peers[best]:.2f} times as the fastest other ({best})"
    return text


def _seconds(sample: Sample) -> float:
    """Of one pass, from the stage that says so."""
    return next(taken["seconds"] for stage, taken in sample.items() if stage == "pass")


def matrix_product(threads: int) -> Iterator[str]:
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    yield "import"
    yield from _passes(lambda: a @ b)


def vitreous(model: str, batch: int, threads: int, runtime: Any, folder: str) -> Iterator[str]:
    os.environ["VITREOUS_CACHE"] = folder
    import torch

    from vitreous.classifier import Classifier
    from vitreous.config import ViTConfig
    from vitreous.engine.compile import compile
    from vitreous.model import VisionTransformer
    from vitreous.pictures.preprocess import Preprocess

    yield "import"
    torch.manual_seed(0)
    network = VisionTransformer(ViTConfig.from_name(model).replace(gelu="erf"))  # as the others compute it
    torch.nn.init.normal_(network.head.weight, std=0.02)  # type: ignore[union-attr, arg-type]
    clf = Classifier(network.eval(), Preprocess())
    compiled = compile(clf, runtime, threads="auto" if runtime == "auto" else threads, batch_size=batch)
    yield f"load, {compiled.choice.runtime} with {compiled.choice.threads} threads"
    images = torch.randn(batch, 3, 224, 224)
    yield from _passes(lambda: compiled.compute(images))


def timm(model: str, batch: int) -> Iterator[str]:
    import timm
    import torch

    yield "import"
    yield from _eager(torch, timm.create_model(NAMES[model]), batch)


def transformers(model: str, batch: int) -> Iterator[str]:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    yield "import"
    network = ViTForImageClassification(ViTConfig(num_labels=1000))
    yield from _eager(torch, network, batch)


def torchvision(model: str, batch: int) -> Iterator[str]:
    import torch
    from torchvision.models import vit_b_16

    yield "import"
    yield from _eager(torch, vit_b_16(), batch)


def _eager(torch: Any, network: Any, batch: int) -> Iterator[str]:
    network.eval()
    images = torch.randn(batch, 3, 224, 224)
    yield "load"
    with torch.inference_mode():
        yield from _passes(lambda: network(images))


def write_timm(model: str, folder: str) -> bool:
    """timm's model as `torch.onnx.export` writes it, unless it is there."""
    import timm
    import torch

    path = Path(folder) / f"timm-{model.replace('/', '')}.onnx"
    if not path.exists():
        network = timm.create_model(NAMES[model]).eval()
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.onnx.export(
            network, (torch.randn(2, 3, 224, 224),), input_names=["images"], dynamo=True, dynamic_shapes=shapes
        )
        assert program is not None
        program.save(path)
    return True


def onnxruntime(model: str, batch: int, threads: int, folder: str) -> Iterator[str]:
    import numpy as np
    import onnxruntime

    yield "import"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    path = Path(folder) / f"timm-{model.replace('/', '')}.onnx"
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    yield "load"
    images = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), dtype=np.float32)
    yield from _passes(lambda: session.run(None, {"images": images}))


def openvino(model: str, batch: int, threads: int, folder: str) -> Iterator[str]:
    import numpy as np
    import openvino

    yield "import"
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    path = Path(folder) / f"timm-{model.replace('/', '')}.onnx"
    network = openvino.Core().compile_model(path, "CPU", settings)
    yield "load"
    images = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), dtype=np.float32)
    yield from _passes(lambda: network(images))


def _passes(once: Callable[[], Any]) -> Iterator[str]:
    """The stage "pass", which lasts as long as the median of several."""
    median = median_pass(once)
    yield "passes"
    yield Timed("pass", median)


def median_pass(once: Callable[[], Any]) -> float:
    """Seconds: two passes to warm up, then as many as fit."""
    for _ in range(2):
        once()
    taken: list[float] = []
    while len(taken) < FEWEST or sum(taken) < SECONDS:
        start = time.perf_counter()
        once()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
