"""Where the time of one training step goes: by kind of operator, beside timm, transformers and torchvision.

The same steps as `benchmarks.train`, seen through PyTorch's profiler, which makes them a little slower.
Matrix products are those with weights, forward and back; attention is the fused operator that holds its own.
"""

import statistics
from collections import Counter
from collections.abc import Iterator
from functools import partial

from benchmarks.harness import Report, Sample, Timed, run_cases
from benchmarks.train import add_arguments, builder, make_cases, prepare

__all__ = ["add_arguments", "run"]

STEPS = 3
KINDS = {"products": ("mm", "addmm"), "attention": ("scaled_dot_product",), "GELU": ("gelu",)}  # how names begin
OTHER = "other"


def run(*, rounds: int, threads: int, models: str) -> Report:
    """Every size with every library."""
    cases = make_cases(models, "benchmarks.profile:profile")
    return Report(
        name="profile",
        settings={"rounds": rounds, "threads": threads, "sizes": models.split(",")},
        samples=run_cases(cases, rounds=rounds, threads=threads),
        columns={
            "ms": (_milliseconds, ".0f"),
            **{f"{kind} %": (partial(_share, kind), ".0f") for kind in KINDS},
            "GFLOP/s": (lambda s: s["gflop"]["seconds"] / s["products"]["seconds"], ".0f"),
        },
        note="ms: of one step; GFLOP/s: what the matrix products with weights reach.",
    )


def _milliseconds(sample: Sample) -> float:
    return 1000 * sum(sample[kind]["seconds"] for kind in (*KINDS, OTHER))


def _share(kind: str, sample: Sample) -> float:
    return 1e5 * sample[kind]["seconds"] / _milliseconds(sample)


def profile(size: str, library: str) -> Iterator[str]:
    """Two steps to warm up, then some under the profiler: the median of each kind."""
    step = prepare(builder(size, library), size)
    import torch

    yield "import"
    for _ in range(2):
        step()
    yield "warm"
    taken: list[Counter[str]] = []
    for _ in range(STEPS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_flops=True) as seen:
            step()
        found: Counter[str] = Counter()
        for event in seen.key_averages():
            found[_kind(event.key)] += event.self_cpu_time_total / 1e6
            found["gflop"] += event.flops / 1e9 if _kind(event.key) == "products" else 0.0
        taken.append(found)
    for kind in (*KINDS, OTHER, "gflop"):
        yield Timed(kind, statistics.median(found[kind] for found in taken))


def _kind(operator: str) -> str:
    name = operator.removeprefix("aten::").lstrip("_")
    return next((kind for kind, beginnings in KINDS.items() if name.startswith(beginnings)), OTHER)
