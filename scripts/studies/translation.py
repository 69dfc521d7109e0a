"""Translation: a convolution's features move with the image, a ViT's do not, and what that does to predictions.

    python -m scripts.studies.translation

A small ViT and a small ResNet, both with one feature vector for every 8 x 8 pixels, are given shifted pictures.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from scripts.studies.harness import (
    COLOURS,
    SMALL,
    STEPS,
    Numbers,
    accuracy,
    closing,
    main,
    mean_std,
    note,
    pm,
    predict,
    sample,
    shrink,
    small_vit,
    table,
    trained,
    trained_vit,
)
from vitreous import VisionTransformer
from vitreous.base.seeds import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "translation"
SEEDS, PICTURES = (0, 1, 2), 64
STRIDE = SMALL.patch_size[0]  # of both models
SHIFTS = (0, 1, 2, 3, 4, 6, 8, 10)
WIDTHS = (24, 48, 96)

Features = Callable[[Tensor], Tensor]  # (n, C, H, W) -> (n, D, rows, columns)


class SmallResNet(nn.Module):
    """Three basic blocks of torchvision's ResNet behind a convolution of stride 2; 8 pixels a feature."""

    def __init__(self) -> None:
        super().__init__()
        w0, w1, w2 = WIDTHS
        self.body = nn.Sequential(
            nn.Conv2d(3, w0, 3, 2, 1, bias=False),
            nn.BatchNorm2d(w0),
            nn.ReLU(),
            BasicBlock(w0, w0),
            BasicBlock(w0, w1, 2, nn.Sequential(nn.Conv2d(w0, w1, 1, 2, bias=False), nn.BatchNorm2d(w1))),
            BasicBlock(w1, w2, 2, nn.Sequential(nn.Conv2d(w1, w2, 1, 2, bias=False), nn.BatchNorm2d(w2))),
        )
        self.head = nn.Linear(w2, SMALL.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(dim=(2, 3)))

    def around(self, wrap: bool) -> "SmallResNet":
        """Pad with the picture's other end, so that there is no border; or with zeros, as in training."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                layer.padding_mode = "circular" if wrap else "zeros"
        return self


def moved(features: Features, x: Tensor) -> float:
    """|f(T x) - T f(x)| / |f(x) - mean f(x)|, T a cyclic shift by one stride to the right; 0 if features move along."""
    with torch.no_grad():
        plain = features(x)  # (n, D, rows, columns)
        shifted = features(x.roll(STRIDE, dims=3))
    spread = (plain - plain.mean(dim=(2, 3), keepdim=True)).norm()
    return float((shifted - plain.roll(1, dims=3)).norm() / spread)


def vit_features(model: VisionTransformer) -> Features:
    return lambda x: model.features(x)[:, 1:].transpose(1, 2).unflatten(2, model.config.grid)


def without_positions(model: VisionTransformer) -> Features:
    """The same ViT with its positions at zero while it runs."""

    def run(x: Tensor) -> Tensor:
        positions = model.position_embedding.data
        model.position_embedding.data = torch.zeros_like(positions)
        try:
            return vit_features(model)(x)
        finally:
            model.position_embedding.data = positions

    return run


def equivariance(vit: VisionTransformer, cnn: SmallResNet, x: Tensor) -> dict[str, float]:
    """How far the features are from moving with the picture, in float64."""
    vit, cnn, x = vit.double().eval(), cnn.double().eval(), x.double()
    found = {
        "convolutions, no border": moved(cnn.around(True).body, x),
        "convolutions, zeros around": moved(cnn.around(False).body, x),
        "ViT, positions zero": moved(without_positions(vit), x),
        "ViT": moved(vit_features(vit), x),
    }
    vit.float()
    cnn.float()
    return found


def shift(x: Tensor, pixels: int) -> Tensor:
    """Move pictures to the right (left where negative), the border repeated: (n, C, H, W) -> the same."""
    n = abs(pixels)
    padded = F.pad(x, (n, n, 0, 0), mode="replicate")
    start = n - pixels
    return padded[..., start : start + x.shape[-1]]


def by_shift(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, list[float]]:
    """Accuracy, and agreement with the unshifted picture, in percent; both directions together."""
    plain = predict(model, x)
    right, same = [], []
    for pixels in SHIFTS:
        said = [predict(model, shift(x, direction * pixels)) for direction in (-1, 1)]
        right.append(100 * sum(float((s == y).double().mean()) for s in said) / 2)
        same.append(100 * sum(float((s == plain).double().mean()) for s in said) / 2)
    return {"accuracy": right, "agreement": same}


def measure(quick: bool) -> Numbers:
    data, size = sample(20 if quick else None), SMALL.image_size[0]
    x, y = shrink(data.val[0], size), data.val[1]
    runs: list[dict[str, Any]] = []
    cached = 0.0
    for seed in SEEDS[:2] if quick else SEEDS:
        with seeded(seed):
            cnn = SmallResNet()
        run: dict[str, Any] = {"seed": seed, "random": equivariance(small_vit(seed), cnn, x[:PICTURES])}
        cnn.around(False)
        steps = 2 if quick else STEPS
        vit, seconds = trained_vit(seed, data, quick)
        cached += seconds + trained("cnn", cnn, data, size=size, steps=steps, seed=seed, quick=quick)
        run["trained"] = equivariance(vit, cnn, x[:PICTURES])
        cnn.around(False)
        run["ViT"], run["ResNet"] = by_shift(vit, x, y), by_shift(cnn, x, y)
        run["accuracy"] = {"ViT": accuracy(vit, data.val, size), "ResNet": accuracy(cnn, data.val, size)}
        runs.append(run)
        note(f"seed {seed}: {run}")
    params = {"ViT": sum(p.numel() for p in vit.parameters()), "ResNet": sum(p.numel() for p in cnn.parameters())}
    return {
        "shifts": list(SHIFTS),
        "steps": STEPS,
        "val": len(y),
        "pictures": min(PICTURES, len(y)),
        "params": params,
        "cached_seconds": cached,
        "runs": runs,
    }


def figure(numbers: Numbers) -> "Figure":
    from matplotlib.figure import Figure

    made = Figure(figsize=(7.8, 3.1), layout="constrained")
    left, *panels = made.subplots(1, 3)
    runs, names = numbers["runs"], list(numbers["runs"][0]["random"])
    for place, name in enumerate(names):
        for state, colour, offset in (("random", COLOURS[5], -0.13), ("trained", COLOURS[0], 0.13)):
            values = [max(run[state][name], 1e-17) for run in runs]
            label = f"{state} weights" if not place else None
            left.plot(values, [place + offset] * len(values), "o", color=colour, markersize=4.5, label=label)
    left.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
    left.set(xscale="log", xlim=(1e-17, 30), xlabel="distance from moving along", title="features")
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=7.5, loc="lower left")
    for axes, what in zip(panels, ("accuracy", "agreement"), strict=True):
        for model, colour in (("ViT", COLOURS[0]), ("ResNet", COLOURS[1])):
            stats = [mean_std([run[model][what][i] for run in runs]) for i in range(len(numbers["shifts"]))]
            axes.errorbar(
                numbers["shifts"], [m for m, _ in stats], yerr=[s for _, s in stats],
                color=colour, marker="o", markersize=3.5, capsize=2, linewidth=1.4, label=model,
            )  # fmt: skip
        axes.set(xlabel="shift, pixels of 32", ylim=(0, 102))
        axes.axvline(STRIDE, color="#d5dae2", linewidth=0.8)
    panels[0].set(title="accuracy, %")
    panels[1].set(title="same answer as unshifted, %")
    panels[0].legend(frameon=False, fontsize=8)
    for axes in (left, *panels):
        axes.title.set_fontsize(9)
    return made


def page(numbers: Numbers) -> str:
    runs = numbers["runs"]

    def cell(value: list[float]) -> str:
        return f"{max(value):.0e}" if max(value) < 1e-6 else pm(value, 2)

    rows = [
        [name, *(cell([run[state][name] for run in runs]) for state in ("random", "trained"))]
        for name in runs[0]["random"]
    ]

    def at(model: str, what: str, pixels: int) -> str:
        return pm([run[model][what][numbers["shifts"].index(pixels)] for run in runs])

    shifted = [
        [str(pixels), *(at(model, what, pixels) for model in ("ViT", "ResNet") for what in ("accuracy", "agreement"))]
        for pixels in numbers["shifts"]
    ]
    columns = ["shift, pixels", "ViT, accuracy", "ViT, same answer", "ResNet, accuracy", "ResNet, same answer"]
    return f"""# Translation: do the features move with the image?

**Claim.** Convolutions are equivariant: shift the picture by a stride, and the features are the same ones, a cell
further. In a ViT they are not: every place has a position embedding of its own, and training has no reason to make
them alike.

A small ViT ({numbers["params"]["ViT"]:,} parameters) and a small ResNet of torchvision's blocks ({numbers["params"]["ResNet"]:,}), both with one feature vector
for every {STRIDE} x {STRIDE} pixels, are compared with random weights, and after {numbers["steps"]} steps of training on the same bundled hand
signs in the same order.

![Features and predictions under a shift]({NAME}.svg)

## Features

How far features are from moving along when {numbers["pictures"]} pictures are shifted cyclically by {STRIDE} pixels: the norm of
f(Tx) - Tf(x) over that of f(x) minus its mean over the places, in float64. 0: they move along; about 1.4: as far
apart as two unrelated places.

{table(["", "random weights", "trained"], rows)}

Mean and deviation over {len(runs)} seeds; the worst seed where all is rounding. A convolution without border is exact, and so is a ViT without
positions: then a shift by a whole patch is only another order of a set (by part of a patch it is not). The zeros that
are usually put around a picture break it for the convolution, on a map of {SMALL.grid[0]} x {SMALL.grid[1]} cells everywhere; position embeddings
break it for the ViT, little as long as they are small random numbers, and more once they are learned.

## Predictions

Pictures of people not trained on ({numbers["val"]}), shifted left and right with the border repeated; in percent:

{table(columns, shifted)}

By {STRIDE} pixels, a quarter of the picture, the ViT keeps {at("ViT", "agreement", STRIDE)} % of its answers and the ResNet {at("ResNet", "agreement", STRIDE)} %.
By half of that, so that every patch is cut anew, it is {at("ViT", "agreement", STRIDE // 2)} % and {at("ResNet", "agreement", STRIDE // 2)} %.

**Limits.** Both models are tiny and trained shortly, and the random crops of the training shift pictures by up to an
eighth of their width, which teaches both some tolerance. They differ in accuracy even unshifted, so that the columns of
agreement, not of accuracy, compare their tolerance; and a model that is unsure to begin with changes its answer more
easily. What a large ViT learns from much data is not seen here.

{closing(numbers, NAME)}"""


if __name__ == "__main__":
    main(NAME, measure, figure, page)
