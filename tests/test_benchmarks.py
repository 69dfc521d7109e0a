"""The measuring itself: fresh processes, an order that turns, a table that fits."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import harness


def stages(name: str, log: str, megabytes: int) -> Iterator[str]:
    """A case: its work is to wait 50 ms and to fill memory."""
    with Path(log).open("a") as file:
        file.write(f"{name}\n")
    yield "import"
    time.sleep(0.05)
    filled = bytearray(b"x") * (megabytes << 20)
    yield "work"
    del filled
    yield "after"


@pytest.fixture
def report(tmp_path: Path) -> harness.Report:
    function = "tests.test_benchmarks:stages"
    sizes = {"large": 100, "small": 10}
    cases = [harness.Case("filling", name, function, (name, f"{tmp_path}/log", mb)) for name, mb in sizes.items()]
    return harness.Report(
        name="filling",
        settings={"rounds": 2, "threads": 1},
        samples=harness.run_cases(cases, rounds=2, threads=1),
        columns={
            "work s": (lambda s: s["work"]["seconds"], ".2f"),
            "MB": (lambda s: s["work"]["peak_bytes"] / 2**20, ".0f"),
        },
        note="what the columns mean " * 10,
    )


def test_time_and_memory_are_those_of_the_stage(report: harness.Report, tmp_path: Path) -> None:
    medians = {case["library"]: case["medians"] for case in json.loads(json.dumps(report.to_dict()))["cases"]}
    assert all(0.05 <= case["work s"] < 5 for case in medians.values())
    assert medians["large"]["MB"] == pytest.approx(100, abs=15)
    assert medians["small"]["MB"] == pytest.approx(10, abs=15)
    assert (tmp_path / "log").read_text().split() == ["large", "small", "small", "large"]


def test_the_table_fits_and_names_the_machine(report: harness.Report) -> None:
    lines = report.table().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("filling  large")
    assert lines[2].startswith("         small")
    assert "2 rounds, 1 threads" in " ".join(lines)
    assert report.machine["packages"]["torch"]
