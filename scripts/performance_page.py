"""Write docs/performance.md from what `python -m benchmarks NAME --json FILE` wrote.

    python -m scripts.performance_page FILE... > docs/performance.md

Nothing in the page is typed by hand besides the sentences that say what was measured.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

TITLES = {
    "infer": "Inference",
    "int8": "Eight bits",
    "start": "Start",
    "train": "Training",
    "profile": "Where a training step's time goes",
    "load": "Loading weights",
    "data": "Preparing pictures",
    "probe": "Probing",
    "explain": "Explaining",
}
HEAD = """# Performance

Each table is one run of `python -m benchmarks NAME`: every case in a process of its own, all cases once a
round in an order that turns, so that whatever else the machine does hits all of them. The values are medians
over the rounds, with half the range between the smallest and the largest behind ±. Absolute numbers belong to
the machine that is named; what carries over are ratios within one table.

`vt.compile(clf)` and `vitreous predict --runtime auto` measure on your machine which runtime is the fastest for
your batch size, and say what they chose and why. This page is written by `python -m scripts.performance_page`.

Two things make inference faster than a plain export, both exact. The last block computes the one token that the
head reads, which saves a fifteenth of the work of B/16. And where a row of the MLP's hidden layer takes a whole
number of memory pages, as B/16's 3,072 numbers do, the exported file puts 16 zeros behind it: otherwise the same
places of all rows share a few lines of the cache, and the second matrix product runs a quarter slower.
"""
NOTES = {
    "train": "All four compute the same function, GELU by the error function. Matrix products are most of a step "
    "(`python -m benchmarks profile`), and the same for all but our trimmed last block, which is a fifteenth of B/16.",
    "profile": "One step under PyTorch's profiler. What lies outside matrix products and attention is all that "
    "faster code of the same mathematics could win.",
    "int8": "Top-1 is of the pictures held out, as each runtime computes it. int8: weights of 8 bits, activations "
    "quantised as they come, everything else in float32.",
}


def page(reports: list[dict[str, Any]]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(report) for report in reports)])


def section(report: dict[str, Any]) -> str:
    """One benchmark: its table, its ratios, and the machine."""
    name, settings, machine = report["name"], report["settings"], report["machine"]
    lines = [f"## {TITLES.get(name, name)}: `python -m benchmarks {name}`", ""]
    titles = list(report["cases"][0]["medians"])
    lines += [f"| | | {' | '.join(titles)} |", f"| --- | --- |{' ---: |' * len(titles)}"]
    for case in report["cases"]:
        values = [_spread(case, title) for title in titles]
        lines.append(f"| {case['task']} | {case['library']} | {' | '.join(values)} |")
    lines.append("")
    if "ceiling_flops" in settings:
        rate = settings["ceiling_flops"] / 1e9
        lines += [f"One large matrix product reaches {rate:.0f} GFLOP/s on these threads.", ""]
        lines += [_inference(task, found) for task, found in settings["ratios"].items()]
        lines.append("")
    if name in NOTES:
        lines += [NOTES[name], ""]
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    lines.append(
        f"{settings['rounds']} rounds, {settings['threads']} threads; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB; {machine['system']}, Python {machine['python']}, {packages}."
    )
    return "\n".join(lines) + "\n"


def _inference(task: str, found: dict[str, Any]) -> str:
    ours = {name: times for name, times in found["times"].items() if name.startswith("vitreous")}
    peers = {name: times for name, times in found["times"].items() if name not in ours}
    parts = [f"`auto` chose {found['chosen']}", f"{found['share_of_ceiling']:.2f} of that rate"]
    parts += [f"{times:.2f} times as fast as {name}" for name, times in sorted({**ours, **peers}.items())]
    return f"- {task}: {', '.join(parts)}."


def _spread(case: dict[str, Any], title: str) -> str:
    values = case.get("values", {}).get(title)
    if values is None:
        return _number(case["medians"][title])
    return f"{_number(statistics.median(values))} ±{_number((max(values) - min(values)) / 2, digits=2)}"


def _number(value: float, digits: int = 3) -> str:
    """To so many digits, and never as a power of ten."""
    return f"{value:,.0f}" if value >= 10**digits else f"{value:.{digits}g}"


if __name__ == "__main__":
    sys.stdout.write(page([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]))
