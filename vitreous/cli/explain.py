"""`vitreous explain`: what does the model read, and what does its answer depend on?"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitreous.base.version import __version__
from vitreous.cli.arguments import ImageSize, Model, Out, parse_size
from vitreous.cli.output import errors, results, table

if TYPE_CHECKING:
    from vitreous.explain.question import Question
    from vitreous.explain.show.page import Findings

# What is enough to tell a method's maps from those of random weights, where every patch of 8 views would take long.
COARSE: dict[str, dict[str, Any]] = {
    "occlusion": {"window": 2, "stride": 2},
    "rise": {"n": 128},
    "integrated_gradients": {"steps": 16},
}
GRADIENT_PASS = 3.3  # forward passes that one with gradients costs
VIEWS, SEEDS = 8, 3


def explain(
    model: Model,
    image: Annotated[Path, typer.Argument(help="A picture.", show_default=False)],
    out: Out,
    method: Annotated[
        str, typer.Option("--method", help="The map to put beside attention: occlusion, rise, chefer, ...")
    ] = "occlusion",
    verify: Annotated[bool, typer.Option("--verify", help="Run all tests that a verdict needs.")] = False,
    target: Annotated[
        str | None, typer.Option("--target", help="Class name or number; the most probable.", show_default=False)
    ] = None,
    instead_of: Annotated[
        str | None, typer.Option("--instead-of", help="Why the target and not this class?", show_default=False)
    ] = None,
    image_size: ImageSize = None,
) -> None:
    """Show where a model reads from, and test what its answer depends on: index.html, pictures and JSON in --out.

    Stopped half way, what is done stays written.
    """
    from vitreous.classifier import load
    from vitreous.explain.methods.table import method as named
    from vitreous.explain.question import ask
    from vitreous.explain.show.page import write

    named(method)  # an unknown name is said before a model is loaded
    clf = load(model, image_size=parse_size(image_size))
    question = ask(clf, image, target=target, instead_of=instead_of)
    found = _read(question, image, model)
    write(out, found)
    try:
        if question.target is not None:
            clf.check_head()
            _test(found, out, method, verify)
    except KeyboardInterrupt:
        found.unfinished = "Interrupted: what was not done by then is missing, and untested."
        write(out, found)
        results.print(f"page  {out / 'index.html'}", soft_wrap=True)
        raise
    _summary(found)
    results.print(f"\npage  {out / 'index.html'}", soft_wrap=True)


def _read(question: "Question", image: Path, model: str) -> "Findings":
    """All that a single forward pass shows."""
    from vitreous.explain.lens import logit_lens
    from vitreous.explain.methods.reads import attention, readout_attention
    from vitreous.explain.show.page import Findings

    reads = readout_attention(question)  # first: its pass also says which class is in question
    headed = question.target is not None
    found = Findings(image.name, question, reads, logit_lens(question) if headed else None)
    found.maps["attention"] = attention(question)
    found.notes += [("model", model), ("picture", str(image)), ("vitreous", __version__)]
    if not headed:
        found.unfinished = "This model has no head, so there is no answer to explain: this is only where it reads from."
    return found


def _test(found: "Findings", out: Path, method: str, verify: bool) -> None:
    """Occlusion, the method asked for, and their tests; the page is renewed after each part."""
    from vitreous.base.progress import progress
    from vitreous.explain.methods.table import method as named
    from vitreous.explain.show.page import write
    from vitreous.explain.verification.ground import passes
    from vitreous.explain.verification.verify import verify as check

    question = found.question
    wanted = list(dict.fromkeys([method, "occlusion"]))
    wanted = [name for name in wanted if name != "attention"]
    budget = "full" if verify else "quick"
    second = _seconds(question)
    work = passes(question, budget, 1 + len(wanted))
    total = second * (0.6 * work + sum(_cost(question, name) for name in wanted))
    weights = second * sum(_weights_cost(question, name) for name in ("attention", *wanted)) if verify else 0.0
    errors.print(
        f"about {total + weights:,.0f} s: {work:,} forward passes of {1000 * second:.0f} ms, many of them shorter"
    )
    with progress("removing patches", work, unit="passes") as advance:
        for name in wanted:
            counted = {"advance": advance} if name in ("occlusion", "rise") else {}
            found.maps[name] = named(name, **counted)(question)
            write(out, found)
        for name, explanation in found.maps.items():
            found.checks[name] = check(explanation, budget=budget, advance=advance)[0]
            write(out, found)
    if verify:
        _random_weights(found, out)


def _random_weights(found: "Findings", out: Path) -> None:
    """The test with random weights, on eight views of the picture; then every verdict once more."""
    from dataclasses import replace

    from vitreous.base.progress import progress
    from vitreous.explain.explanation import explain as made
    from vitreous.explain.methods.table import method as named
    from vitreous.explain.show.page import write
    from vitreous.explain.verification.randomisation import randomisation, untrained
    from vitreous.explain.verification.verdict import judge
    from vitreous.explain.verification.views import views

    _, random_model = untrained(found.question.model, 0)
    seen = views(found.question)
    found.notes.append(
        (
            "random weights",
            f"{SEEDS} models, on {VIEWS} views of the picture (crops and mirror images), coarser maps: {COARSE}",
        )
    )
    with progress("random weights", SEEDS * len(found.maps), unit="models") as advance:
        for name, explanation in found.maps.items():
            maps = named(name, **COARSE.get(name, {}))(seen)
            test = randomisation(maps, seeds=SEEDS, cache=True, advance=advance)
            check = found.checks[name]
            verdict, reasons = judge(check.tests, test, check.probability)
            found.checks[name] = replace(check, randomised=test, verdict=verdict, reasons=reasons)
            if explanation.compute is not None:
                question = found.question.of(random_model)
                settings = {**explanation.settings, "weights": "random"}
                found.random_maps[name] = made(
                    question, explanation.compute, method=name, kind=explanation.kind, caption=explanation.caption,
                    unit=explanation.unit, **settings,
                )  # fmt: skip
            write(out, found)


def _seconds(question: "Question") -> float:
    """Of one forward pass, in a batch as the tests run them."""
    import torch

    from vitreous.explain.forward import logits_of
    from vitreous.explain.removal import BATCH

    tokens = question.tokens[:1].expand(BATCH, -1, -1)
    with torch.no_grad():
        start = time.perf_counter()
        logits_of(question.model, tokens)
    return (time.perf_counter() - start) / BATCH


def _cost(question: "Question", name: str) -> float:
    """Forward passes of one map of one picture."""
    patches = question.grid[0] * question.grid[1]
    gradients = {"grad_attention": 1, "chefer": 1, "integrated_gradients": 64}
    if name in gradients:
        return GRADIENT_PASS * gradients[name]
    return {"occlusion": patches, "rise": 500}.get(name, 1)


def _weights_cost(question: "Question", name: str) -> float:
    coarse = {"occlusion": 0.25, "rise": 0.128, "integrated_gradients": 0.5}.get(name, 1.0)
    return VIEWS * (1 + SEEDS) * coarse * _cost(question, name)


def _summary(found: "Findings") -> None:
    """What was found, in a table."""
    if found.question.target is None:
        results.print(found.unfinished)
        return
    results.print(f"[bold]{found.question.label(0)}[/]  p = {float(found.question.probability[0]):.3f}\n")
    made = table("map", "verdict", "D", "I", "random", "T", right=("D", "I", "T"))
    for name, check in found.checks.items():
        t = check.tests[0]
        band = f"{t.random.low:.2f} to {t.random.high:.2f}"
        made.add_row(name, check.verdict.value, f"{t.deletion:.2f}", f"{t.insertion:.2f}", band, f"{t.top_effect:.2f}")
    results.print(made)
    for name, check in found.checks.items():
        for reason in (*check.reasons, *check.remarks):
            results.print(f"[dim]{name}:[/] {reason}", soft_wrap=True)
