"""`vitreous explain`: what does the model read, and what does its answer depend on?"""

from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.arguments import BatchSize, Device, Image, ImageSize, Model, Out, Seed, Weights
from vitreous.cli.opening import classifier
from vitreous.cli.output import results, table

if TYPE_CHECKING:
    from vitreous.explain import Findings


def explain(
    model: Model,
    image: Image,
    out: Out,
    method: Annotated[
        str, typer.Option("--method", help="The map to put beside attention: occlusion, rise, chefer, ...")
    ] = "occlusion",
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Run all tests that a verdict needs.",
            show_default="where they take less than 30 s",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Class name or number; the most probable.", show_default=False)
    ] = None,
    instead_of: Annotated[
        str | None, typer.Option("--instead-of", help="Why the target and not this class?", show_default=False)
    ] = None,
    image_size: ImageSize = None,
    weights: Weights = None,
    batch_size: BatchSize = 16,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """Show where a model reads from, and test what its answer depends on: index.html, pictures and JSON in --out.

    Stopped half way, what is done stays written.
    """
    from vitreous.explain.investigation import investigate
    from vitreous.explain.methods.table import method as named

    named(method)  # an unknown name is said before a model is loaded
    clf = classifier(model, image_size=image_size, weights=weights, device=device)
    try:
        found = investigate(
            clf, image, method=method, verify=verify, target=target, instead_of=instead_of, out=out,
            batch_size=batch_size, seed=seed,
        )  # fmt: skip
    except KeyboardInterrupt:
        results.print(f"page  {out / 'index.html'}", soft_wrap=True)
        raise
    _summary(found)
    results.print(f"\npage  {out / 'index.html'}", soft_wrap=True)


def _summary(found: "Findings") -> None:
    """The maps and their verdicts in a table, and why."""
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
