"""Permutation: without positions a ViT does not know where its patches are; with positions it does.

    python -m scripts.studies.permutation

Self-attention treats its tokens as a set. So with the position embeddings set to zero, shuffling the patches
shuffles the patch outputs and leaves the CLS token and the logits as they were.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scripts.studies.harness import (
    COLOURS,
    SMALL,
    STEPS,
    Numbers,
    accuracy,
    closing,
    main,
    note,
    pm,
    predict,
    sample,
    shrink,
    table,
    trained_vit,
)
from vitreous import VisionTransformer
from vitreous.base.seeds import derive
from vitreous.model import patchify

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "permutation"
SEEDS, PICTURES = (0, 1, 2), 32
FIGURE_KEYS = ("zero, float64", "zero, float32", "kept, float64", "kept, float32")


def shuffle(x: Tensor, order: Tensor) -> Tensor:
    """Pictures (n, C, H, W) with their patches in another order: place i shows what was at order[i]."""
    size = SMALL.patch_size
    (p1, p2), (rows, columns), (n, c, h, w) = size, SMALL.grid, x.shape
    flat = patchify(x, size)[:, order]  # (n, N, C*P1*P2)
    return flat.view(n, rows, columns, c, p1, p2).permute(0, 3, 1, 4, 2, 5).reshape(n, c, h, w)


def differences(model: VisionTransformer, x: Tensor, order: Tensor) -> dict[str, float]:
    """Largest differences, relative to the largest output, between f(shuffled x) and f(x)."""
    with torch.no_grad():
        plain, shuffled = model.features(x), model.features(shuffle(x, order))  # (n, S, D)
        logits, other = model(x), model(shuffle(x, order))  # (n, K)
    patches = (shuffled[:, 1:] - plain[:, 1:][:, order]).abs().max() / plain.abs().max()
    cls = (shuffled[:, 0] - plain[:, 0]).abs().max() / plain[:, 0].abs().max()
    change = (other - logits).abs().max() / logits.abs().max()
    return {"patches": float(patches), "CLS": float(cls), "logits": float(change)}


def measure(quick: bool) -> Numbers:
    data = sample(20 if quick else None)
    x, y = shrink(data.val[0], SMALL.image_size[0]), data.val[1]
    cached = 0.0
    runs: list[dict[str, Any]] = []
    for seed in SEEDS[:2] if quick else SEEDS:
        model, seconds = trained_vit(seed, data, quick)
        cached += seconds
        order = torch.randperm(SMALL.num_patches, generator=torch.Generator().manual_seed(derive(seed, "order")))
        found: dict[str, Any] = {"seed": seed, "differences": {}}
        found["accuracy"] = accuracy(model, data.val, SMALL.image_size[0])
        shuffled = predict(model, shuffle(x, order))
        found["accuracy_shuffled"] = 100 * float((shuffled == y).double().mean())
        found["predictions_changed"] = 100 * float((shuffled != predict(model, x)).double().mean())
        positions = model.position_embedding.detach().clone()
        for kept in (False, True):
            model.position_embedding.data = positions.clone() if kept else torch.zeros_like(positions)
            for dtype in (torch.float64, torch.float32):
                key = f"{'kept' if kept else 'zero'}, {str(dtype).removeprefix('torch.')}"
                found["differences"][key] = differences(model.to(dtype), x[:PICTURES].to(dtype), order)
            model.float()
        runs.append(found)
        note(f"seed {seed}: {found}")
    return {"steps": STEPS, "cached_seconds": cached, "pictures": min(PICTURES, len(y)), "val": len(y), "runs": runs}


def figure(numbers: Numbers) -> "Figure":
    from matplotlib.figure import Figure

    made = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = made.subplots()
    for place, key in enumerate(FIGURE_KEYS):
        for shift, (what, colour) in enumerate(zip(("patches", "CLS", "logits"), COLOURS, strict=False)):
            values = [max(run["differences"][key][what], 1e-17) for run in numbers["runs"]]
            label = what if not place else None
            axes.plot(values, [place + 0.2 * (shift - 1)] * len(values), "o", color=colour, markersize=5, label=label)
    names = {"zero": "positions zero", "kept": "positions kept"}
    axes.set_yticks(range(len(FIGURE_KEYS)), [f"{names[k.split(', ')[0]]}, {k.split(', ')[1]}" for k in FIGURE_KEYS])
    axes.set(xscale="log", xlabel="largest difference after shuffling the patches, relative to the largest output")
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=3)
    return made


def page(numbers: Numbers) -> str:
    runs = numbers["runs"]

    def worst(key: str, what: str) -> float:
        return max(run["differences"][key][what] for run in runs)

    def least(what: str) -> float:
        return min(run["differences"]["kept, float64"][what] for run in runs)

    rows = [
        [f"positions {k.replace('zero', 'set to zero')}", *(f"{worst(k, w):.1e}" for w in ("patches", "CLS", "logits"))]
        for k in FIGURE_KEYS
    ]
    return f"""# Permutation: where are the patches?

**Claim.** Self-attention sees a set. With the positions set to zero, shuffling the patches of a picture shuffles the
patch outputs in the same way and leaves the CLS token, and so the logits, as they are. With positions it does not.

A small ViT is trained on the bundled hand signs ({numbers["steps"]} steps); the patches of {numbers["pictures"]} pictures are put in one random
order a seed, and the outputs compared: patch outputs with the shuffled outputs of the whole picture, CLS and logits
with those of the whole picture.

![Largest differences]({NAME}.svg)

{table(["largest relative difference", "patches", "CLS", "logits"], rows)}

The worst of {len(runs)} seeds. Without positions what remains is rounding: at most {worst("zero, float64", "CLS"):.0e} for CLS in float64,
{worst("zero, float32", "CLS"):.0e} in float32; sums are taken in another order, so it is not exactly zero. In exact arithmetic it would be.
With positions the CLS token changes by at least {least("CLS"):.2f} of its largest value.

What it means for predictions, with positions as trained: accuracy falls from {pm([r["accuracy"] for r in runs])} % to
{pm([r["accuracy_shuffled"] for r in runs])} % on shuffled pictures ({numbers["val"]} of people not trained on; mean and deviation over seeds), and
{pm([r["predictions_changed"] for r in runs])} % of the predictions change.

**Limits.** The first statement is a theorem, and the run shows that the code keeps to it. How much a trained model loses
on shuffled pictures says how much it goes by where the patches are. This one was trained shortly, on hands that all lie in
the same way, and patches of {SMALL.patch_size[0]} pixels can tell them apart as a bag would; the same loss is not to be expected of other
models and pictures.

{closing(numbers, NAME)}"""


if __name__ == "__main__":
    main(NAME, measure, figure, page)
