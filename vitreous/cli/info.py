"""`vitreous info`: what a model is made of, what it costs, and every shape on the way."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from vitreous.cli.arguments import ImageSize, Json, NumClasses, Weights, parse_size
from vitreous.cli.opening import classifier
from vitreous.cli.output import print_json, results, table

if TYPE_CHECKING:
    from vitreous.anatomy.cost import Cost
    from vitreous.anatomy.measured import Measured
    from vitreous.classifier import Classifier
    from vitreous.config import ViTConfig


def info(
    model: Annotated[str, typer.Argument(help="A model file, or a named variant such as B/16.", show_default=False)],
    image_size: ImageSize = None,
    patch_size: Annotated[
        str | None, typer.Option("--patch-size", help="Of a named variant: 8, or 8x16.", show_default=False)
    ] = None,
    num_classes: NumClasses = None,
    weights: Weights = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images that the bytes are of.")] = 1,
    trace: Annotated[bool, typer.Option("--trace", help="The shape of every tensor, from a run.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Time and peak memory of a forward pass here.")] = False,
    training: Annotated[bool, typer.Option("--training", help="With --measure: of a training step too.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw cost against resolution and patch size: .svg, .png, .pdf.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Show a model's configuration, cost, provenance and, with --trace, every tensor's shape.

    With another --image-size or --patch-size the cost stands beside that of the model as it is.
    With --measure, what it takes on this machine's CPU stands beside the estimate.
    """
    from vitreous.anatomy.cost import cost

    base, clf = _find(model, weights)
    changes: dict[str, Any] = {"image_size": parse_size(image_size), "num_classes": num_classes}
    if patch_size is not None:
        if clf is not None:
            raise typer.BadParameter("--patch-size is for named variants: the weights of a file have one patch size")
        changes["patch_size"] = parse_size(patch_size)
    config = base.replace(**{key: value for key, value in changes.items() if value is not None})
    price, before = cost(config, batch_size), cost(base, batch_size)
    if training and not measure:
        raise typer.BadParameter("--training says what else to --measure")
    if plot is not None:
        from vitreous.anatomy.figure import save

        save(config, plot, model)
    measured = _measure(config, batch_size, training) if measure else []
    if json:
        print_json(_as_json(config, price, clf, trace, batch_size) | _measured_json(measured))
        return
    _show_config(model, config, clf)
    if config.grid != base.grid:
        _show_comparison(base, before, config, price)
    _show_cost(price)
    if measured:
        _show_measured(price, measured)
    if trace:
        _show_trace(config, batch_size)
    elif clf is not None:
        _show_provenance(clf)


def _find(model: str, weights: str | None) -> "tuple[ViTConfig, Classifier | None]":
    """A file's classifier, or a variant's configuration (which needs no torch)."""
    from vitreous.base.errors import ConfigError, WeightsError
    from vitreous.config import ViTConfig

    if not Path(model).exists() and ":" not in model:
        try:
            return ViTConfig.from_name(model), None
        except ConfigError as error:
            raise WeightsError(f"{model}: no such file, and {error}") from None
    clf = classifier(model, weights=weights, device="cpu")
    return clf.model.config, clf


def _show_config(model: str, config: "ViTConfig", clf: "Classifier | None") -> None:
    (h, w), (p1, p2), (rows, columns) = config.image_size, config.stride, config.grid
    made = table("", "", title=model)
    reads = "CLS token" if config.classifier == "token" else "mean over patches"
    made.add_row("image", f"{h}x{w}, {config.in_channels} channels")
    made.add_row("patches", f"{p1}x{p2} pixels: {rows}x{columns} = {config.num_patches}, {config.num_tokens} tokens")
    made.add_row("encoder", f"{config.num_layers} layers, {config.hidden_size} wide, {config.num_heads} heads")
    made.add_row("MLP", f"{config.mlp_dim} wide, {config.gelu} GELU, LayerNorm eps {config.layer_norm_eps:g}")
    pre = f", pre-logits of {config.representation_size}" if config.representation_size else ""
    made.add_row("head", f"{config.num_classes} classes from the {reads}{pre}")
    if config.resnet:
        made.add_row("stem", f"ResNet, units {list(config.resnet.num_layers)}, width {config.resnet.width}")
    made.add_row("positions", f"resized as {config.position_resize} does")
    if clf is not None:
        p = clf.preprocess
        made.add_row("pictures", f"{p.resize}, {p.interpolation}{', antialias' if p.antialias else ''}")
        made.add_row("", f"mean {_numbers(p.mean)}, std {_numbers(p.std)}")
        if clf.labels:
            more = f", ... {len(clf.labels) - 8} more" if len(clf.labels) > 8 else ""
            made.add_row("labels", ", ".join(clf.labels[:8]) + more)
    results.print(made)


def _show_comparison(base: "ViTConfig", before: "Cost", config: "ViTConfig", price: "Cost") -> None:
    def size(c: "ViTConfig") -> str:
        return f"{c.image_size[0]}x{c.image_size[1]} by {c.stride[0]}x{c.stride[1]}"

    made = table("", size(base), size(config), "times", right=(size(base), size(config), "times"))
    for name, old, new in (
        ("patches", before.num_patches, price.num_patches),
        ("tokens", before.num_tokens, price.num_tokens),
        ("attention, one head", before.attention_elements, price.attention_elements),
        ("MACs", before.macs, price.macs),
        ("bytes to train", before.fused_attention.training_sum, price.fused_attention.training_sum),
    ):
        made.add_row(name, f"{old:,}", f"{new:,}", f"{new / old:.2f}")
    results.print()
    results.print(made)


def _show_cost(price: "Cost") -> None:
    right = ("params", "MACs", "share")
    made = table("part", "MACs of an image are", *right, right=right)
    for row in price.rows:
        macs = _short(row.macs) if row.macs else ""
        made.add_row(
            row.name,
            row.formula,
            f"{row.params:,}" if row.params else "",
            macs,
            f"{100 * row.share:.1f} %" if row.macs else "",
        )
    made.add_row("[bold]all[/]", "", f"[bold]{price.params:,}[/]", f"[bold]{_short(price.macs)}[/]", "")
    results.print()
    results.print(made)
    totals = table("", "")
    totals.add_row("FLOPs", f"{_short(price.flops)} (two a MAC)")
    totals.add_row("for logits", f"{_short(price.macs_for_logits)} MACs: the last block computes what the head reads")
    images = "1 image" if price.batch_size == 1 else f"{price.batch_size} images"
    for name, kind in (("fused attention", price.fused_attention), ("explicit", price.explicit_attention)):
        totals.add_row(
            name,
            f"{_bytes(kind.inference_peak)} to infer, {_bytes(kind.training_sum)} to train on {images}",
        )
    totals.add_row("weights", f"{_bytes(price.parameter_bytes)} as {price.dtype}")
    totals.add_row("attention", f"costs more than the rest of the blocks from {price.crossover_tokens:,} tokens on")
    results.print()
    results.print(totals)


def _measure(config: "ViTConfig", batch_size: int, training: bool) -> "list[Measured]":
    from vitreous.anatomy.measured import measure

    return [measure(config, batch_size, training=kind) for kind in ((False, True) if training else (False,))]


def _measured_json(measured: "list[Measured]") -> dict[str, Any]:
    return {"measured": [m.to_dict() for m in measured]} if measured else {}


def _show_measured(price: "Cost", measured: "list[Measured]") -> None:
    """Each measured value beside its estimate."""
    first = measured[0]
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    images = "1 image" if first.batch_size == 1 else f"{first.batch_size} images"
    made = table("", "estimate", "measured", title=f"{images} on this CPU, {threads}", right=("estimate", "measured"))
    for m in measured:
        # Backward makes two products of the size of every one in forward.
        macs = (3 if m.training else 1) * m.batch_size * price.macs_for_logits
        made.add_row("training step" if m.training else "forward", f"{_short(macs)}MACs", f"{m.seconds:.3f} s")
        made.add_row(f"  {m.repeats} times", "", f"{m.fastest:.3f} to {m.slowest:.3f} s")
        made.add_row("  speed", "", f"{_short(round(macs / m.seconds))}MACs/s")
        kept = price.fused_attention
        peak = kept.training_sum + price.parameter_bytes if m.training else kept.inference_peak
        estimate = f"up to {_bytes(peak)}" if m.training else _bytes(peak)
        made.add_row("  peak memory", estimate, "unknown" if m.peak_bytes is None else _bytes(m.peak_bytes))
    results.print()
    results.print(made)
    results.print(
        "Memory: growth of the resident set of a process of its own, in the first pass, over that with the "
        "weights and images in it. Estimate: tensors alone"
        + ("; to train, all that is kept, and gradients." if len(measured) > 1 else "."),
        style="dim",
    )


def _show_trace(config: "ViTConfig", batch_size: int) -> None:
    made = table("stage", "formula", "shape", right=("shape",))
    for row in _trace(config, batch_size):
        made.add_row(row["stage"], escape(row["formula"]), "x".join(map(str, row["shape"])))
    results.print()
    results.print(made)


def _trace(config: "ViTConfig", batch_size: int) -> list[dict[str, Any]]:
    """Shapes of a run on torch's meta device: real tensors of the real model, without their numbers."""
    import torch

    from vitreous.anatomy.trace import trace as run
    from vitreous.skeleton import empty_model

    images = torch.empty(batch_size, config.in_channels, *config.image_size, device="meta")
    return run(empty_model(config), images).to_dicts()


def _show_provenance(clf: "Classifier") -> None:
    made = table("", "", title="provenance")
    for key, value in clf.provenance.items():
        made.add_row(key, str(value))
    results.print()
    results.print(made)


def _as_json(
    config: "ViTConfig", price: "Cost", clf: "Classifier | None", trace: bool, batch_size: int
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "config": config.to_dict(),
        "grid": config.grid,
        "num_tokens": config.num_tokens,
        "cost": price.to_dict(),
    }
    if clf is not None:
        found["preprocess"] = clf.preprocess.to_dict()
        found["labels"] = clf.labels
        found["provenance"] = clf.provenance
    if trace:
        found["trace"] = _trace(config, batch_size)
    return found


def _short(count: int) -> str:
    """17563828224 -> `17.564 G`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3f} {unit}"
    return str(count)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in (values[:1] if len(set(values)) == 1 else values))
