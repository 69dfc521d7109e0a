"""One picture from its question to its verdict: where it is read, what removing shows, and whether the maps hold."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitreous.base.errors import ConfigError
from vitreous.base.progress import progress as progress_bar
from vitreous.base.version import __version__
from vitreous.classifier import Classifier
from vitreous.explain.explanation import explain
from vitreous.explain.forward import logits_of
from vitreous.explain.lens import logit_lens
from vitreous.explain.methods.reads import attention, readout_attention
from vitreous.explain.methods.table import method as named
from vitreous.explain.question import Question, Subject, Target, ask
from vitreous.explain.removal import BATCH
from vitreous.explain.show.page import Findings
from vitreous.explain.verification.ground import passes
from vitreous.explain.verification.randomisation import randomisation, untrained
from vitreous.explain.verification.verdict import judge
from vitreous.explain.verification.verify import verify as run_tests
from vitreous.explain.verification.views import views
from vitreous.pictures.images import read_image
from vitreous.prediction import as_list
from vitreous.report.page import thumbnail

logger = logging.getLogger("vitreous")

# Enough to tell a method's maps from those of random weights, where every patch of 8 views would take long.
COARSE: dict[str, dict[str, Any]] = {
    "occlusion": {"window": 2, "stride": 2},
    "rise": {"n": 128},
    "integrated_gradients": {"steps": 16},
}
COARSE_SHARE = {"occlusion": 0.25, "rise": 0.128, "integrated_gradients": 0.25}  # of the passes of the whole map
PASSES = {"rise": 500.0, "grad_attention": 3.3, "chefer": 3.3, "integrated_gradients": 64 * 3.3}
COUNTED = {"occlusion": 0, "rise": 1000}  # passes told besides those of the tests, which share occlusion's
VIEWS, SEEDS = 8, 3
SIDE = 640  # pixels of the photograph on the page
PATIENCE = 30.0  # seconds of tests that are run unasked
SHORTER = 0.6  # a pass without the removed patches, beside a whole one, on average


def investigate(
    subject: Subject,
    image: Any,
    *,
    method: str = "occlusion",
    verify: bool | None = None,
    target: Target = None,
    instead_of: Target = None,
    out: str | Path | None = None,
    batch_size: int = BATCH,
    seed: int = 0,
    progress: bool = True,
) -> Findings:
    """Explain one picture as far as can be: maps, their tests, random weights, a verdict on each map.

    Attention is put beside occlusion and one more method. With a folder given, the page is renewed after each part,
    so that what is done stays written when the work is stopped.

    Args:
        subject: a classifier or a bare model.
        image: one picture; see `ask`.
        method: the map to put beside attention, one of `METHODS`.
        verify: True for all tests that a verdict needs, random weights included; False for the quick ones of one
            operator; None for all where they take less than 30 s.
        target: class index or name; None for the most probable.
        instead_of: the class of a contrast: why the target and not this one?
        out: a folder for `index.html`, pictures and JSON, written as by `Findings.save`; None for none.
        batch_size: forward passes at once.
        seed: the seed of random orders, masks and models.
        progress: whether a bar on stderr shows how far it is.

    Raises:
        ConfigError: an unknown method or class, or several pictures.
        ImageError: a picture that cannot be read.
        WeightsError: a head that was never trained.
    """
    named(method)  # an unknown name is said before anything is computed
    question = ask(subject, image, target=target, instead_of=instead_of)
    if len(question.images) != 1:
        raise ConfigError(f"one picture is investigated at a time, got {len(question.images)}: see evaluate_maps")
    found = _read(question, image)
    work = _Work(found, None if out is None else Path(out), batch_size, seed, progress)
    work.save()
    if question.target is None:
        return found
    if isinstance(subject, Classifier):
        subject.check_head()
    try:
        work.run(list(dict.fromkeys([method, "occlusion"])), verify)
    except KeyboardInterrupt:
        found.unfinished = "Interrupted: what was not done by then is missing, and untested."
        work.save()
        raise
    return found


def _read(question: Question, image: Any) -> Findings:
    """All that a single forward pass shows."""
    reads = readout_attention(question)  # first: its pass also says which class is in question
    headed = question.target is not None
    path = image if isinstance(image, (str, Path)) else None
    found = Findings(
        name="picture" if path is None else Path(path).name,
        question=question,
        read=reads,
        lens=logit_lens(question) if headed else None,
        photograph=_photograph(question, image),
    )
    found.maps["attention"] = attention(question)
    if isinstance(question.subject, Classifier) and "source" in question.subject.provenance:
        found.notes.append(("model", str(question.subject.provenance["source"])))
    if path is not None:
        found.notes.append(("picture", str(path)))
    found.notes.append(("vitreous", __version__))
    if not headed:
        found.unfinished = "This model has no head, so there is no answer to explain: this is only where it reads from."
    return found


def _photograph(question: Question, image: Any) -> str:
    """The picture as it was before any preprocessing, as a `data:` address; empty where there was no such."""
    if not isinstance(question.subject, Classifier) or question.subject.config.in_channels != 3:
        return ""
    (whole,) = as_list(image)
    pixels = read_image(whole)  # (3, H, W) uint8
    return thumbnail(Image.fromarray(pixels.permute(1, 2, 0).numpy()), SIDE)


class _Work:
    """The parts of an investigation that take long, one after the other."""

    def __init__(self, found: Findings, out: Path | None, batch_size: int, seed: int, progress: bool) -> None:
        self.found, self.question = found, found.question
        self.out, self.batch_size, self.seed, self.progress = out, batch_size, seed, progress

    def save(self) -> None:
        """Write what is known by now."""
        if self.out is not None:
            self.found.save(self.out)

    def run(self, methods: list[str], verify: bool | None) -> None:
        """The maps of these methods beside attention, their tests, and random weights, as far as is asked for."""
        wanted = [name for name in methods if name not in self.found.maps]
        second = self._seconds()
        quick, full = (second * self._work(wanted, budget) for budget in ("quick", "full"))
        if verify is None:
            verify = full < PATIENCE
            if not verify:
                left = f"Only the quick tests were run: all would take about {full:,.0f} s (--verify, or verify=True)."
                self.found.notes.append(("tests", left))
                logger.info(left)
        logger.info("about %.0f s: passes of %.0f ms, many of them shorter", full if verify else quick, 1000 * second)
        self.test(wanted, "full" if verify else "quick")
        if verify:
            self.against_random_weights()

    def test(self, wanted: list[str], budget: str) -> None:
        """The maps of these methods, and the tests of all maps."""
        found = self.found
        count = passes(self.question, budget, len(found.maps) + len(wanted))
        how: dict[str, Any] = {"batch_size": self.batch_size, "seed": self.seed}
        total = count + sum(COUNTED.get(name, 0) for name in wanted)
        with progress_bar("removing patches", total, unit="passes", show=self.progress) as advance:
            for name in wanted:
                found.maps[name] = named(name, **(how | {"advance": advance} if name in COUNTED else {}))(self.question)
                self.save()
            for name, explanation in found.maps.items():
                found.checks[name] = run_tests(explanation, budget=budget, advance=advance, **how)[0]
                self.save()

    def against_random_weights(self) -> None:
        """The test with random weights, on eight views of the picture; then every verdict once more."""
        found, seen = self.found, views(self.question)
        _, random_model = untrained(self.question.model, self.seed)
        about = f"{SEEDS} models, on {VIEWS} views of the picture (crops and mirror images), coarser maps"
        found.notes.append(("random weights", about))
        with progress_bar("random weights", SEEDS * len(found.maps), unit="models", show=self.progress) as advance:
            for name, explanation in found.maps.items():
                maps = named(name, **COARSE.get(name, {}))(seen)
                test = randomisation(maps, seeds=SEEDS, cache=True, advance=advance)
                check = found.checks[name]
                verdict, reasons = judge(check.tests, test, check.probability, thresholds=check.thresholds)
                found.checks[name] = replace(check, randomised=test, verdict=verdict, reasons=reasons)
                if explanation.compute is not None:
                    found.random_maps[name] = explain(
                        self.question.of(random_model),
                        explanation.compute,
                        method=name,
                        kind=explanation.kind,
                        caption=explanation.caption,
                        unit=explanation.unit,
                        **{**explanation.settings, "weights": "random"},
                    )
                self.save()

    def _work(self, wanted: list[str], budget: str) -> float:
        """Forward passes, whole ones, that the maps and the tests of a budget cost."""
        maps = (*self.found.maps, *wanted)
        total = SHORTER * passes(self.question, budget, len(maps)) + sum(self._passes(name) for name in wanted)
        if budget == "full":
            each = (COARSE_SHARE.get(name, 1.0) * self._passes(name) for name in maps)
            total += VIEWS * (1 + SEEDS) * sum(each)
        return total

    def _seconds(self) -> float:
        """One forward pass, seconds, in a batch as the tests run them."""
        tokens = self.question.tokens[:1].expand(self.batch_size, -1, -1)  # (M, S, D)
        with torch.no_grad():
            start = time.perf_counter()
            logits_of(self.question.model, tokens)
        return (time.perf_counter() - start) / self.batch_size

    def _passes(self, name: str) -> float:
        """Forward passes that one map of one picture costs."""
        patches = self.question.grid[0] * self.question.grid[1]
        return float(patches) if name == "occlusion" else PASSES.get(name, 1.0)
