"""A picture of what a model costs at other resolutions and patch sizes, and where attention overtakes the rest."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitreous.anatomy.cost import Cost, cost
from vitreous.base.errors import ConfigError
from vitreous.base.files import atomic_write
from vitreous.config import ViTConfig
from vitreous.report.style import BLUE, GREEN, INK, ORANGE, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PRODUCTS = ("scores q·kᵀ", "attention·v")  # the two with an S x S matrix
BLOCK = (*PRODUCTS, "query, key, value", "output projection", "MLP")
POINTS = 48  # resolutions along a curve
FORMATS = ("svg", "png", "pdf")


def crossover_side(config: ViTConfig) -> float:
    """Side in pixels of the square image at which attention overtakes the rest of the blocks.

    S* = 2·D + M tokens, so the side is sqrt(S* - prefix) patches: proportional to the patch size.

    Args:
        config: whose stride (P1, P2), D and M count; its image size does not.
    """
    patches = 2 * config.hidden_size + config.mlp_dim - config.prefix_tokens
    return float((patches * config.stride[0] * config.stride[1]) ** 0.5)


def attention_share(price: Cost) -> float:
    """Of the blocks' MACs, the part of the two products with S x S weights, 0 to 1."""
    macs = {row.name: row.macs for row in price.rows}
    return sum(macs[name] for name in PRODUCTS) / sum(macs[name] for name in BLOCK)


def draw(config: ViTConfig, name: str = "") -> "Figure":
    """Cost and attention's share against the side of a square image, for half, once and twice the patch size.

    Args:
        config: the model; its own resolution is marked.
        name: of the model, for the title.
    """
    from matplotlib.figure import Figure

    sizes = sorted(_patch_sizes(config), key=lambda c: c.stride)
    colours = dict(zip(sizes, (ORANGE, BLUE, GREEN) if len(sizes) == 3 else (BLUE, GREEN), strict=True))
    with styled():
        made = Figure(figsize=(8.4, 3.9), layout="constrained")
        left, right = made.subplots(1, 2)
        for patched, colour in colours.items():
            configs = [patched.replace(image_size=side) for side in _sides(patched, crossover_side(sizes[-1]))]
            prices = [cost(c) for c in configs]
            x, macs = [c.image_size[0] for c in configs], np.array([price.macs for price in prices]) / 1e9
            products = [sum(r.macs for r in price.rows if r.name in PRODUCTS) / 1e9 for price in prices]
            label = "patches " + "x".join(map(str, dict.fromkeys(patched.stride)))
            left.plot(x, macs, color=colour, linewidth=1.8, label=label)
            left.plot(x, products, color=colour, linewidth=1.2, linestyle="--")
            side = crossover_side(patched)
            right.plot(
                x, [100 * attention_share(price) for price in prices], color=colour, linewidth=1.8,
                label=f"{label}: from {side:,.0f} px on",
            )  # fmt: skip
            right.plot(side, 50, "o", color=colour, markersize=5)
        _mark_own(left, config)
        left.plot([], [], color=INK, linewidth=1.2, linestyle="--", label="attention's products alone")
        left.set(xscale="log", yscale="log", xlabel="side of the image, pixels", ylabel="GMACs an image")
        left.legend(frameon=False, fontsize=8)
        right.legend(frameon=False, fontsize=8, loc="upper left")
        right.axhline(50, color=INK, linewidth=0.8, linestyle=":")
        right.set(xscale="log", xlabel="side of the image, pixels", ylim=(0, 100))
        right.set_ylabel("attention's products, % of the blocks' MACs")
        tokens = cost(config).crossover_tokens
        right.set_title(f"half of the MACs at S* = 2·D + M = {tokens:,} tokens", fontsize=9)
        left.set_title(f"{name}: attention 2·S²·D, rest 4·S·D² + 2·S·D·M".lstrip(": "), fontsize=9)
        for axes in (left, right):
            _plain_ticks(axes)
        return made


def save(config: ViTConfig, path: str | Path, name: str = "") -> None:
    """Write the picture, in the format of the file's ending.

    Raises:
        ConfigError: for an ending other than .svg, .png or .pdf.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"{path}: a plot is written as {', '.join('.' + f for f in FORMATS)}, not {kind!r}")
    import matplotlib

    data, date = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "vitreous", "svg.fonttype": "none"}):  # the same bytes every time
        draw(config, name).savefig(data, format=kind, dpi=140, metadata={date: None} if date else None)
    with atomic_write(path) as file:
        file.write(data.getvalue())


def _patch_sizes(config: ViTConfig) -> list[ViTConfig]:
    """The model with half, once and twice its patch size; an odd one cannot be halved."""
    p1, p2 = config.patch_size
    halves = [] if p1 % 2 or p2 % 2 else [(p1 // 2, p2 // 2)]
    made = []
    for size in (*halves, (p1, p2), (2 * p1, 2 * p2)):
        step = config.resnet.stride if config.resnet else 1
        made.append(config.replace(patch_size=size, image_size=(size[0] * step, size[1] * step)))
    return made


def _sides(config: ViTConfig, furthest: float) -> list[int]:
    """Whole numbers of patches from four a side to a little beyond the furthest crossover, evenly in the logarithm."""
    p1, p2 = config.stride
    step = int(np.lcm(p1, p2))
    counts = np.geomspace(4, 1.3 * furthest / step, POINTS).round().astype(int)
    return [int(count) * step for count in dict.fromkeys(counts.tolist()) if count >= 1]


def _mark_own(axes: "Axes", config: ViTConfig) -> None:
    side, gmacs = (config.image_size[0] * config.image_size[1]) ** 0.5, cost(config).macs / 1e9
    size = "x".join(map(str, config.image_size))
    axes.plot(side, gmacs, "D", color=INK, markersize=5, linestyle="none", label=f"{size}: {gmacs:,.3g} GMACs")


def _plain_ticks(axes: "Axes") -> None:
    """28 pixels, twice that and so on, in plain numbers, instead of powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = axes.get_xlim()
    ticks = [t for t in (28 * 2**i for i in range(12)) if low <= t <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: 1 + len(ticks) // 7]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
