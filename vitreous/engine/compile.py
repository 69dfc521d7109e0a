"""A classifier in the runtime that is fastest on this machine, chosen by measurement."""

import logging
import tempfile
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, VitreousError, did_you_mean
from vitreous.base.machine import cores
from vitreous.classifier import Classifier
from vitreous.config import ViTConfig
from vitreous.data.dataset import DataSet
from vitreous.engine.accuracy import Accuracy, compare, in_float32
from vitreous.engine.card import Card
from vitreous.engine.choice import Choice, Row, key, remember, remembered
from vitreous.engine.export import TOLERANCE, write_onnx
from vitreous.engine.runtimes import (
    RUNTIMES,
    Run,
    Runtime,
    check_images,
    missing,
    open_compiled,
    open_onnxruntime,
    open_openvino,
    open_torch,
    openvino_does_bfloat16,
    require,
)
from vitreous.prediction import Predictor

logger = logging.getLogger("vitreous")

Precision = Literal["float32", "bfloat16", "int8"]
MARGIN = 1.05  # times as fast as eager, or else eager it is: less than that may be noise
FINALISTS = 3
ROUNDS = 7
SECONDS = 8.0  # for such rounds, once there have been three


class Compiled(Predictor):
    """A classifier in one runtime: `predict` and `logits` as before, and what was chosen and why.

    Args:
        clf: the classifier.
        run: computes the logits.
        choice: which runtime and why.
        precision: of the computation.
        accuracy: before and after, for another precision than float32.
    """

    def __init__(self, clf: Classifier, run: Run, choice: Choice, precision: str, accuracy: Accuracy | None) -> None:
        super().__init__(clf.preprocess, clf.labels, clf.provenance)
        self.classifier, self.run, self.choice = clf, run, choice
        self.precision, self.accuracy = precision, accuracy

    def __repr__(self) -> str:
        measured = f"; {self.accuracy}" if self.accuracy else ""
        return f"Compiled({self.precision}, {self.choice}{measured})"

    @property
    def config(self) -> ViTConfig:
        return self.classifier.config

    def compute(self, images: Tensor) -> Tensor:
        check_images(self.config, images)
        return self.run(images)

    def check_head(self) -> None:
        self.classifier.check_head()


def compile(
    clf: Classifier,
    runtime: Literal["auto", "torch", "torch.compile", "onnxruntime", "openvino"] = "auto",
    threads: int | Literal["auto"] = "auto",
    batch_size: int = 1,
    precision: Precision = "float32",
    data: str | Path | DataSet | None = None,
    measure_again: bool = False,
) -> Compiled:
    """Bring a classifier into the runtime that is fastest here.

    `"auto"` opens each runtime that is installed, with all cores and with half of them, checks its
    logits against PyTorch's (to 1e-4), and times it; then the best of them in turns. The fastest is taken
    if it is at least 1.05 times as fast as PyTorch eager, which is taken otherwise. The choice is remembered for this
    machine, these versions, this shape of model and this batch size (under `VITREOUS_CACHE`, or the
    system's cache folder).

    Args:
        clf: the classifier; later changes of its weights have no effect on the result.
        runtime: `"auto"` or one of `RUNTIMES`.
        threads: `"auto"` or a number.
        batch_size: for which to choose; any other works as well.
        precision: `"bfloat16"` or `"int8"` only when asked for, as they change predictions a little.
        data: pictures to measure by how much, as `evaluate` takes them; needed for those two.
        measure_again: do not take what is remembered, as after a measurement while the machine was busy.

    Returns:
        Something with `predict` and `logits`; `.choice` says what was chosen and why, `.choice.table()`
        what was measured, `.accuracy` what the precision costs.

    Raises:
        ConfigError: for a runtime, number or precision that there is not.
        VitreousError: when the runtime asked for is not installed, or its logits are not PyTorch's.
    """
    _check(runtime, threads, batch_size, precision, data)
    clf = in_float32(clf)
    with Candidates(clf, precision) as candidates:
        tried, left_out = _tried(runtime, threads, precision)
        fixed = len(tried) == 1
        digest = key(clf.model.config, batch_size, precision, tried)
        choice = None if fixed or measure_again else remembered(digest)
        if choice is None or (choice.runtime, choice.threads) not in tried:
            choice = _asked(tried[0], left_out) if fixed else _measure(candidates, tried, left_out, batch_size)
            if not fixed:
                remember(digest, choice)
        run = candidates.open(choice.runtime, choice.threads)  # type: ignore[arg-type]
        if precision == "float32":
            images = _images(clf, batch_size)
            difference, tolerance = _difference(run(images), clf.compute(images))
            if not difference <= tolerance:
                raise VitreousError(
                    f"{choice.runtime}: its logits differ from PyTorch's by {difference:.1e}, more than "
                    f'{tolerance:.0e}: take another, or runtime="torch"'
                )
        accuracy = compare(clf, run, data) if data is not None else None
    logger.info("compiled for batches of %d: %s", batch_size, choice)
    return Compiled(clf, run, choice, precision, accuracy)


class Candidates:
    """Opens one model in any runtime. The ONNX file that two of them read is written once, and only if needed."""

    def __init__(self, clf: Classifier, precision: Precision) -> None:
        self.clf, self.precision = clf, precision
        self.folder = tempfile.TemporaryDirectory(prefix="vitreous-")
        self.compiled: dict[int, Run] = {}

    def __enter__(self) -> "Candidates":
        return self

    def __exit__(self, *exception: object) -> None:
        self.folder.cleanup()

    @cached_property
    def file(self) -> Path:
        path = Path(self.folder.name) / "model.onnx"
        stored = "int8" if self.precision == "int8" else "float32"
        clf = self.clf
        write_onnx(clf, Card(clf.model.config, clf.preprocess, clf.labels, clf.provenance, precision=stored), path)
        return path

    def open(self, runtime: Runtime, threads: int) -> Run:
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        if runtime == "torch":
            return open_torch(self.clf.model, threads, dtype)
        if runtime == "torch.compile":
            if threads not in self.compiled:
                self.compiled[threads] = open_compiled(self.clf.model, threads, dtype)
            return self.compiled[threads]
        if runtime == "onnxruntime":
            return open_onnxruntime(self.file, threads)[0]
        return open_openvino(self.file, threads, "bf16" if self.precision == "bfloat16" else "f32")[0]


def _tried(
    runtime: str, threads: int | Literal["auto"], precision: Precision
) -> tuple[list[tuple[str, int]], list[Row]]:
    """What to measure, PyTorch eager first; and what is left out, with the reason."""
    if runtime != "auto":
        require(runtime)  # type: ignore[arg-type]
        why = _cannot(runtime, precision)
        if why:
            raise ConfigError(f"{runtime}: {why}")
    names = RUNTIMES if runtime == "auto" else (runtime,)
    counts = sorted({cores(), max(cores() // 2, 1)}, reverse=True) if threads == "auto" else [threads]
    tried, left_out = [], []
    for name in names:
        why = missing(name) or _cannot(name, precision)  # type: ignore[arg-type]
        if why:
            left_out.append(Row(name, note=why))
        else:
            # To compile takes a minute, so torch.compile gets one try.
            tried += [(name, count) for count in (counts[:1] if name == "torch.compile" else counts)]
    return tried, left_out


def _cannot(runtime: str, precision: Precision) -> str | None:
    if precision == "int8" and runtime != "onnxruntime":
        return "int8 is computed by onnxruntime"
    if precision == "bfloat16" and runtime == "onnxruntime":
        return "it has no bfloat16 on processors"
    if precision == "bfloat16" and runtime == "openvino" and not openvino_does_bfloat16():
        return "this processor has no bfloat16 products"
    return None


def _asked(only: tuple[str, int], left_out: list[Row]) -> Choice:
    return Choice(*only, reason="the only one that was asked for and is there", rows=(Row(*only), *left_out))


def _measure(candidates: Candidates, tried: list[tuple[str, int]], left_out: list[Row], batch_size: int) -> Choice:
    """Each beside PyTorch eager; then the best of them all together, in turns, which decides.

    What else the machine does would otherwise hit one more than another. No more than `FINALISTS`
    are open at once, each with its own copy of the weights.
    """
    clf = candidates.clf
    images = _images(clf, batch_size)
    most = max(threads for _, threads in tried)
    eager = open_torch(clf.model, most, torch.float32)
    wanted = eager(images)
    rows = []
    for name, threads in tried:
        logger.info("measuring %s, %d threads", name, threads)
        try:
            run = candidates.open(name, threads)  # type: ignore[arg-type]
            difference, tolerance = _difference(run(images), wanted)
        except Exception as error:  # a runtime that fails on this machine is no reason to fail
            rows.append(Row(name, threads, note=f"failed: {type(error).__name__}: {error}".splitlines()[0]))
            continue
        if candidates.precision == "float32" and not difference <= tolerance:
            rows.append(Row(name, threads, difference=difference, note="left out: its logits are not PyTorch's"))
            continue
        ours, theirs = _in_turns([run, eager], images)
        rows.append(Row(name, threads, ours, theirs / ours, difference))
        del run
    rows = _final(candidates, rows, images)
    return _best(rows, left_out, candidates.precision)


def _final(candidates: Candidates, rows: list[Row], images: Tensor) -> list[Row]:
    """The quickest again, all in turns with the quickest of PyTorch eager, and the rows with what came out."""
    measured = sorted((row for row in rows if row.seconds is not None), key=lambda row: row.seconds or 0.0)
    eager = next((row for row in measured if row.runtime == "torch"), None)
    finalists = measured[:FINALISTS]
    if eager is not None and eager not in finalists:
        finalists.append(eager)
    runs = [candidates.open(row.runtime, row.threads) for row in finalists]  # type: ignore[arg-type]
    seconds = dict(zip([(row.runtime, row.threads) for row in finalists], _in_turns(runs, images), strict=True))
    baseline = None if eager is None else seconds[eager.runtime, eager.threads]
    return [
        replace(row, seconds=taken, speed=None if baseline is None else baseline / taken, final=True)
        if (taken := seconds.get((row.runtime, row.threads)))
        else row
        for row in rows
    ]


def _best(rows: list[Row], left_out: list[Row], precision: str) -> Choice:
    final = [row for row in rows if row.final]
    if not final:
        raise VitreousError("no runtime works here: " + "; ".join(f"{row.runtime} {row.note}" for row in rows))
    best = min(final, key=lambda row: row.seconds or 0.0)
    everything = (*rows, *left_out)
    eager = next((row for row in final if row.runtime == "torch"), None)
    if eager is None or best.speed is None:
        return Choice(best.runtime, best.threads, f"the fastest of those that compute in {precision}", everything)
    if best.speed < MARGIN and precision == "float32":
        reason = f"nothing was more than {MARGIN} times as fast as PyTorch eager"
        return Choice(eager.runtime, eager.threads, reason, everything)
    reason = f"{best.speed:.2f} times as fast as PyTorch eager, logits within {best.difference:.0e}"
    return Choice(best.runtime, best.threads, reason, everything)


def _in_turns(runs: list[Run], images: Tensor) -> list[float]:
    """Seconds of the quickest round of each; the first round is for warming up."""
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    for number in range(ROUNDS + 1):
        for run, taken in zip(runs, times, strict=True):
            before = time.perf_counter()
            run(images)
            taken.append(time.perf_counter() - before)
        if number >= 3 and time.perf_counter() - start > SECONDS:
            break
    return [min(taken[1:]) for taken in times]


def _images(clf: Classifier, batch_size: int) -> Tensor:
    config, generator = clf.model.config, torch.Generator().manual_seed(0)
    return torch.randn(batch_size, config.in_channels, *config.image_size, generator=generator)


def _difference(found: Tensor, wanted: Tensor) -> tuple[float, float]:
    """The largest difference of any logit, and how much is allowed."""
    return float((found - wanted).abs().max()), max(TOLERANCE, 1e-6 * float(wanted.abs().max()))


def _check(runtime: str, threads: object, batch_size: int, precision: str, data: object) -> None:
    for what, value, allowed in (
        ("runtime", runtime, ("auto", *RUNTIMES)),
        ("precision", precision, get_args(Precision)),
    ):
        if value not in allowed:
            raise ConfigError(f"unknown {what} {value!r}{did_you_mean(str(value), allowed)}: {', '.join(allowed)}")
    for what, number in (("threads", threads), ("batch_size", batch_size)):
        if number != "auto" and not (isinstance(number, int) and number >= 1):
            raise ConfigError(f"{what} must be a whole number >= 1, got {number!r}")
    if precision != "float32" and data is None:
        raise ConfigError(f"{precision} changes predictions a little: give data to measure by how much")
