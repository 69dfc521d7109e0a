"""Ablation: what each part of the ViT is worth on small data: heads, depth, MLP, norm placement, pooling, positions.

    python -m scripts.studies.ablation

Each variant differs from the base in one thing and is trained from the same seeds.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scripts.studies.harness import (
    BATCH,
    COLOURS,
    SMALL,
    Numbers,
    accuracy,
    closing,
    main,
    mean_std,
    note,
    pm,
    sample,
    small_vit,
    table,
    trained,
)
from vitreous import VisionTransformer
from vitreous.base.seeds import seeded
from vitreous.model import ALL, Block

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, STEPS = (0, 1, 2), 300
NAME = "ablation"


class PostNormBlock(Block):
    """The block of Vaswani et al. 2017: z' = LN(z + MSA(z)); z = LN(z' + MLP(z'))."""

    def forward(self, x: Tensor, rows: slice = ALL) -> Tensor:
        x = self.norm1(x[:, rows] + self.attention(x, rows))  # (B, rows, D)
        return self.norm2(x + self.mlp(x))  # (B, rows, D)


class FactoredPositions(nn.Module):
    """2-D positions: one table of D/2 for the rows, one for the columns, joined (appendix D.4 of the paper)."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        (rows, columns), width = model.config.grid, model.config.hidden_size
        self.rows = nn.Parameter(0.02 * torch.randn(rows, 1, width // 2))
        self.columns = nn.Parameter(0.02 * torch.randn(1, columns, width // 2))
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, width))

    def forward(self, table: Tensor) -> Tensor:
        """The whole table (1, S, D) out of the two; what stood there before is of no account."""
        rows, columns = self.rows.shape[0], self.columns.shape[1]
        joined = torch.cat(
            [self.rows.expand(-1, columns, -1), self.columns.expand(rows, -1, -1)], dim=-1
        )  # (rows, columns, D)
        return torch.cat([self.cls, joined.flatten(0, 1)[None]], dim=1)


def post_norm(model: VisionTransformer) -> None:
    model.blocks = nn.ModuleList(PostNormBlock(model.config) for _ in model.blocks)


def factored(model: VisionTransformer) -> None:
    nn.utils.parametrize.register_parametrization(model, "position_embedding", FactoredPositions(model), unsafe=True)


def no_positions(model: VisionTransformer) -> None:
    nn.init.zeros_(model.position_embedding).requires_grad_(False)


# What differs from the base: fields of the configuration, and what is done to the model.
VARIANTS: dict[str, tuple[dict[str, Any], Callable[[VisionTransformer], None] | None]] = {
    "base": ({}, None),
    "1 head": ({"num_heads": 1}, None),
    "8 heads": ({"num_heads": 8}, None),
    "1 block": ({"num_layers": 1}, None),
    "2 blocks": ({"num_layers": 2}, None),
    "5 blocks": ({"num_layers": 5}, None),
    "MLP ratio 1": ({"mlp_dim": SMALL.hidden_size}, None),
    "post-LN": ({}, post_norm),
    "GAP instead of CLS": ({"classifier": "gap"}, None),
    "pre-logits head": ({"representation_size": SMALL.hidden_size}, None),
    "2-D positions": ({}, factored),
    "no positions": ({}, no_positions),
}


def build(variant: str, seed: int) -> VisionTransformer:
    """A variant with random weights."""
    changes, change = VARIANTS[variant]
    model = small_vit(seed, **changes)
    if change is not None:
        with seeded(seed):
            change(model)
    return model


def measure(quick: bool) -> Numbers:
    data = sample(20 if quick else None)
    seeds, steps = (SEEDS[:2], 2) if quick else (SEEDS, STEPS)
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    params: dict[str, int] = {}
    size, cached = SMALL.image_size[0], 0.0
    for name in VARIANTS:
        for seed in seeds:
            model = build(name, seed)
            params[name] = sum(p.numel() for p in model.parameters() if p.requires_grad)
            cached += trained(
                f"ablation-{name}".replace(" ", "-"), model, data, size=size, steps=steps, seed=seed, quick=quick
            )
            found[name].append(accuracy(model, data.val, size))
        note(f"{name}: {pm(found[name])}")
    return {
        "seeds": list(seeds),
        "steps": steps,
        "cached_seconds": cached,
        "batch_size": BATCH,
        "train": len(data.train[1]),
        "val": len(data.val[1]),
        "params": params,
        "accuracy": found,
    }


def figure(numbers: Numbers) -> "Figure":
    from matplotlib.figure import Figure

    made = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = made.subplots()
    found = numbers["accuracy"]
    base, spread = mean_std(found["base"])
    axes.axvspan(base - spread, base + spread, color="#e8edf5", linewidth=0)
    axes.axvline(base, color=COLOURS[5], linewidth=1)
    for place, values in enumerate(found.values()):
        mean, std = mean_std(values)
        axes.errorbar(mean, place, xerr=std, color=COLOURS[0], marker="o", markersize=5, capsize=3, linewidth=1.4)
        axes.plot(values, [place] * len(values), ".", color=COLOURS[1], markersize=5, zorder=3)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlabel(
        f"accuracy on {numbers['val']} held-out pictures, % (blue: mean and deviation; orange: each of "
        f"{len(numbers['seeds'])} seeds; band: base)"
    )
    return made


def page(numbers: Numbers) -> str:
    found, base = numbers["accuracy"], mean_std(numbers["accuracy"]["base"])
    rows = []
    for name, values in found.items():
        difference = [value - other for value, other in zip(values, found["base"], strict=True)]
        against = "" if name == "base" else pm(difference)
        rows.append([name, f"{numbers['params'][name]:,}", pm(values), against])
    others = {name: mean_std(values)[0] for name, values in found.items() if name != "base"}
    worst, best = min(others, key=others.__getitem__), max(others, key=others.__getitem__)
    within = [
        name
        for name, values in found.items()
        if name != "base" and abs(mean_std(values)[0] - base[0]) <= max(base[1], mean_std(values)[1])
    ]
    c = SMALL
    return f"""# Ablation: what each part is worth

A small ViT ({c.num_layers} blocks, {c.hidden_size} wide, {c.num_heads} heads, MLP ratio {c.mlp_dim // c.hidden_size}, {c.num_patches} patches of {c.patch_size[0]} x {c.patch_size[1]} pixels, CLS,
LayerNorm before each part, learned 1-D positions) is trained from nothing on the {numbers["train"]:,} bundled photographs
of hand signs, for {numbers["steps"]} steps of {numbers["batch_size"]} pictures, and measured on {numbers["val"]} pictures of other people. Each variant
changes one thing.

![Accuracy of every variant]({NAME}.svg)

{table(["variant", "parameters", "accuracy, %", "against base, points"], rows)}

Mean and standard deviation over {len(numbers["seeds"])} seeds; a seed decides weights, order and crops, and is the same in all variants, so
that the last column is of paired differences.

What costs most here is **{worst}** ({others[worst]:.1f} % against {base[0]:.1f} %); the best variant is **{best}** ({others[best]:.1f} %).
No further from the base than one deviation of either, so that nothing can be said of them: {", ".join(within) or "none"}.

How each is built: post-LN is the block of Vaswani et al. (2017), z' = LN(z + MSA(z)), z = LN(z' + MLP(z')), with the
model's final norm still behind it. 2-D positions join a learned table of {c.hidden_size // 2} numbers for the row with one for the column;
1-D is a free vector for each of the {c.num_tokens} tokens, as in the paper. GAP has no CLS token. The pre-logits head is a
layer of {c.hidden_size} with tanh before the classifier.

**Limits.** One small data set, one size of model, one recipe (AdamW, 0.002, cosine), not tuned for any variant: a variant
that would like another learning rate is at a disadvantage, post-LN and greater depth above all. {numbers["val"]} pictures alone
make an uncertainty of about {_binomial(base[0], numbers["val"]):.1f} points, which {len(numbers["seeds"])} seeds on the same pictures do not show. Nothing here carries over to
large models or data.

{closing(numbers, NAME)}"""


def _binomial(percent: float, n: int) -> float:
    """Standard deviation, in points, of a share measured on n pictures."""
    share = percent / 100
    return 100 * float((share * (1 - share) / n) ** 0.5)


if __name__ == "__main__":
    main(NAME, measure, figure, page)
