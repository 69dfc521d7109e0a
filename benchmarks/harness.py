"""Runs cases side by side, each in a fresh process, and says what came out with its spread.

Every round runs every case once, so that whatever else the machine does hits all of them. A
case is a function that yields after each stage of its work; time and memory are taken at each
yield.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from vitreous.base.machine import cores

Sample = dict[str, dict[str, float]]  # stage -> {"seconds", "peak_bytes"}

WIDTH = 80
PACKAGES = (
    *("vitreous", "torch", "timm", "transformers", "torchvision", "onnxruntime", "openvino"),
    *("safetensors", "numpy"),
)


@dataclass(frozen=True)
class Case:
    """One row: what is done with which library.

    Args:
        task: what is done; rows of one task are compared.
        library: who does it.
        function: `module:name` of a generator function that yields the name of each stage it ends.
        arguments: for the function, as plain JSON values.
    """

    task: str
    library: str
    function: str
    arguments: tuple[Any, ...] = ()


class Timed(str):
    """The name of a stage whose seconds are known, such as the median of several that were taken within it."""

    seconds: float

    def __new__(cls, name: str, seconds: float) -> "Timed":
        made = super().__new__(cls, name)
        made.seconds = seconds
        return made


@dataclass
class Report:
    """Every sample of a run, and how it was taken.

    Args:
        name: of the benchmark.
        settings: of the run.
        samples: for each case, one a round: stage -> {"seconds", "peak_bytes"}.
        columns: title -> the value of one sample, and how it is written.
        note: what the columns mean.
    """

    name: str
    settings: dict[str, Any]
    samples: list[tuple[Case, list[Sample]]]
    columns: dict[str, tuple[Callable[[Sample], float], str]]
    note: str
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def table(self) -> str:
        """Medians, with half the range between the quickest and the slowest round, in at most 80 columns."""
        rows = [["", "", *self.columns]]
        previous = ""
        for case, samples in self.samples:
            cells = [_spread([value(sample) for sample in samples], style) for value, style in self.columns.values()]
            rows.append([case.task if case.task != previous else "", case.library, *cells])
            previous = case.task
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            names = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
            numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
            lines.append("  ".join([*names, *numbers]).rstrip())
        return "\n".join([*lines, "", *textwrap.wrap(self.note, WIDTH), *textwrap.wrap(self._where(), WIDTH)])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        cases = [
            {
                "task": case.task,
                "library": case.library,
                "samples": samples,
                "values": {title: [value(sample) for sample in samples] for title, (value, _) in self.columns.items()},
                "medians": self._medians(samples),
            }
            for case, samples in self.samples
        ]
        return {"name": self.name, "machine": self.machine, "settings": self.settings, "cases": cases}

    def _medians(self, samples: list[Sample]) -> dict[str, float]:
        return {
            title: statistics.median(value(sample) for sample in samples) for title, (value, _) in self.columns.items()
        }

    def _where(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.machine["packages"].items())
        return (
            f"Medians of {self.settings['rounds']} rounds, {self.settings['threads']} threads; "
            f"{self.machine['cpu']}, {self.machine['cores']} cores, {self.machine['memory_gb']} GB; "
            f"{self.machine['system']}, Python {self.machine['python']}, {versions}."
        )


def run_cases(cases: list[Case], *, rounds: int, threads: int) -> list[tuple[Case, list[Sample]]]:
    """Each case once a round, in an order that turns from round to round."""
    samples: dict[Case, list[Sample]] = {case: [] for case in cases}
    for number in range(rounds):
        for place in range(len(cases)):
            case = cases[(place + number) % len(cases)]
            print(f"round {number + 1} of {rounds}: {case.task}, {case.library}", file=sys.stderr)
            samples[case].append(in_fresh_process(case.function, *case.arguments, threads=threads))
    return list(samples.items())


def in_fresh_process(function: str, *arguments: Any, threads: int) -> Any:
    """Run a case's function in a Python of its own; what it reports."""
    environment = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS")}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-m", "benchmarks.harness", function, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def observe(stages: Iterator[str]) -> Sample:
    """Seconds of each stage, and the peak memory from the end of the first stage (the imports) on."""
    found: Sample = {}
    before, start = 0.0, time.perf_counter()
    for stage in stages:
        # Not by its class: here that is another one, as this module is the program.
        seconds = getattr(stage, "seconds", time.perf_counter() - start)
        before = before or memory_now()
        found[stage] = {"seconds": seconds, "peak_bytes": max(memory_peak() - before, 0.0)}
        start = time.perf_counter()
    return found


def memory_peak() -> float:
    """Bytes of the process at its largest so far.

    Linux says so in `VmHWM`; its `ru_maxrss` begins at the size of the parent, not at nothing.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return float(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024)
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def memory_now() -> float:
    """Bytes of the process; its peak where the system does not say."""
    try:
        return float(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    except OSError:
        return memory_peak()


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _spread(values: list[float], style: str) -> str:
    half = (max(values) - min(values)) / 2
    return f"{format(statistics.median(values), style)} ±{format(half, style)}"


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    result = getattr(import_module(module), name)(*json.loads(sys.argv[2]))
    print(json.dumps(observe(result) if isinstance(result, Iterator) else result))
