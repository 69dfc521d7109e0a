"""What int8 buys and costs: a classifier of one's own on data of one's own, beside float32 in every runtime.

Accuracy is of the pictures that `vitreous evaluate` would measure, computed by that very runtime.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Case, Report, Sample, Timed, run_cases
from benchmarks.infer import median_pass

BATCHES = (1, 8)
RUNS = (("torch", "float32"), ("onnxruntime", "float32"), ("openvino", "float32"), ("onnxruntime", "int8"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a classifier with a trained head, as of `vitreous probe --out`")
    parser.add_argument("--data", type=Path, required=True, help="pictures in class folders, or their zip")


def run(*, rounds: int, threads: int, model: str, data: Path) -> Report:
    cases = [
        Case(data.stem, ", ".join(names), "benchmarks.int8:classify", (model, str(data), *names, threads))
        for names in RUNS
    ]
    return Report(
        name="int8",
        settings={"rounds": rounds, "threads": threads, "model": Path(model).name, "data": data.name},
        samples=run_cases(cases, rounds=rounds, threads=threads),
        columns={
            **{f"ms, batch {batch}": (partial(_milliseconds, batch), ".1f") for batch in BATCHES},
            "top-1 %": (lambda s: 100 * s["top-1"]["seconds"], ".2f"),
        },
        note="ms: of one batch, the median of its passes.",
    )


def _milliseconds(batch: int, sample: Sample) -> float:
    return 1000 * sample[f"batch {batch}"]["seconds"]


def classify(model: str, data: str, runtime: str, precision: str, threads: int) -> Iterator[str]:
    import torch

    from vitreous.classifier import load
    from vitreous.engine.compile import compile

    yield "import"
    clf = load(model)
    compiled = compile(clf, runtime, threads, precision=precision, data=data)  # type: ignore[arg-type]
    assert compiled.accuracy is not None
    yield Timed("top-1", compiled.accuracy.after)
    for batch in BATCHES:
        images = torch.randn(batch, clf.model.config.in_channels, *clf.model.config.image_size)
        yield Timed(f"batch {batch}", median_pass(partial(compiled.compute, images)))
