"""What was learned: position similarity, attention distance by layer, patch filters, of any model file.

    python -m scripts.studies.learned --dinov2 MODEL --pictures FOLDER_OR_ZIP

The three pictures of figure 7 of the paper, for a small ViT, for the bundled model and for a DINOv2 ViT-S/14.
"""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scripts.studies.harness import (
    COLOURS,
    MEAN,
    ROOT,
    SAMPLE,
    SMALL,
    STD,
    STEPS,
    Numbers,
    closing,
    main,
    note,
    pm,
    sample,
    table,
    trained_vit,
)
from vitreous import Classifier, Preprocess, VisionTransformer, load
from vitreous.base.seeds import seeded
from vitreous.explain import head_reach, patch_filters, position_similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "learned"
BUNDLED = ROOT / "vitreous" / "assets" / "mini.safetensors"
DINOV2 = ROOT.parent / "shared" / "weights" / "dinov2-vits14-saliency.safetensors"
PICTURES = ROOT.parent / "shared" / "data" / "imagenette" / "val.zip"
COUNT, SHOWN, FILTERS = 12, 5, 21  # pictures measured; places whose similarity is drawn; filters drawn
SEEDS, OURS = (0, 1, 2), "small ViT, hand signs"
DINO_SIZE = 224  # pixels; it was trained at 518, where its attention matrices are 28 times as large


def some_pictures(path: Path, count: int) -> list[bytes]:
    """Evenly from a zip file or folder."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        return [p.read_bytes() for p in files[:: max(len(files) // count, 1)][:count]]
    with zipfile.ZipFile(path) as archive:
        names = sorted(n for n in archive.namelist() if n.lower().endswith((".jpg", ".jpeg", ".png")))
        return [archive.read(name) for name in names[:: max(len(names) // count, 1)][:count]]


def look(clf: Classifier, pictures: list[bytes]) -> Numbers:
    """All numbers of one model, with those of the same architecture at random weights beside them."""
    config = clf.model.config
    with seeded(0):
        random = VisionTransformer(config).eval()
    found: Numbers = {
        "grid": list(config.grid),
        "image_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "layers": config.num_layers,
        "heads": config.num_heads,
        "positions": positions(clf.model),
        "positions_random": positions(random),
        "filters": filters(clf.model),
    }
    reach = [head_reach(clf, [picture]) for picture in pictures]  # one at a time: S x S weights of every head
    found["distance"] = torch.cat([r.distance for r in reach]).mean(dim=0).tolist()  # (L, h) pixels
    found["distance_std"] = torch.cat([r.distance.mean(dim=2) for r in reach]).std(dim=0).tolist()  # over pictures
    found["entropy"] = torch.cat([r.entropy for r in reach]).mean(dim=0).tolist()
    images = clf.prepare(pictures[:2])
    found["distance_random"] = head_reach(random, images).distance.mean(dim=0).tolist()
    return found


def positions(model: VisionTransformer) -> Numbers:
    """Similarity maps of a few places, and how much of it the distance alone explains."""
    similarity = position_similarity(model)  # (h, w, h, w)
    rows, columns = similarity.shape[:2]
    places = [(r, c) for r in _spread(rows) for c in _spread(columns)]
    flat = similarity.flatten(0, 1).flatten(1)  # (N, N)
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float()
    between = torch.cdist(grid, grid)  # patches
    off = ~torch.eye(len(flat), dtype=torch.bool)
    pairs = torch.stack([between[off], flat[off]])
    same_row = (grid[:, None, 0] == grid[None, :, 0]) & off
    same_column = (grid[:, None, 1] == grid[None, :, 1]) & off
    neither = off & ~same_row & ~same_column
    best = flat.masked_fill(~off, -2).argmax(dim=1)
    return {
        "maps": [[_short(similarity[r, c]), [r, c]] for r, c in places],
        "correlation": float(torch.corrcoef(pairs)[0, 1]),
        "nearest": float((between[torch.arange(len(flat)), best] < 1.5).double().mean()),  # of 8 neighbours
        "row": float(flat[same_row].mean()),
        "column": float(flat[same_column].mean()),
        "elsewhere": float(flat[neither].mean()),
    }


def filters(model: VisionTransformer) -> Numbers:
    """The first principal filters, and how much of all filters' variance they hold."""
    weight = model.patch_embedding.projection.weight.detach().float().flatten(1)
    energy = torch.linalg.svdvals(weight - weight.mean(dim=0)).square()
    share = energy.cumsum(0) / energy.sum()
    shown = patch_filters(model, FILTERS)  # (n, C, P1, P2)
    shown = shown / shown.abs().amax(dim=(1, 2, 3), keepdim=True)
    return {"pictures": [_short(f) for f in shown], "share": float(share[min(FILTERS, len(share)) - 1])}


def _spread(n: int) -> list[int]:
    return sorted({round(i * (n - 1) / (SHOWN - 1)) for i in range(SHOWN)})


def _short(x: Tensor) -> list[Any]:
    """Three digits are enough to draw."""
    return (x.double() * 1000).round().div(1000).tolist()


def measure(quick: bool, bundled: Path, dinov2: Path, pictures: Path) -> Numbers:
    count = 2 if quick else COUNT
    found: Numbers = {"pictures": count, "models": {}, "seeds": [], "cached_seconds": 0.0}
    data = sample(20 if quick else None)
    preprocess = Preprocess(size=SMALL.image_size, antialias=True, mean=MEAN, std=STD)
    for seed in SEEDS[:2] if quick else SEEDS:
        model, seconds = trained_vit(seed, data, quick)
        seen = look(Classifier(model, preprocess), some_pictures(SAMPLE, count))
        found["models"].setdefault(OURS, seen)
        found["cached_seconds"] += seconds
        found["seeds"].append(
            {
                "correlation": seen["positions"]["correlation"],
                "first": float(np.mean(seen["distance"][0])),
                "last": float(np.mean(seen["distance"][-1])),
            }
        )
    for title, path, place, size in (
        ("bundled model", bundled, SAMPLE, None),
        ("DINOv2 ViT-S/14", dinov2, pictures, DINO_SIZE if not quick else 56),
    ):
        if not (path.exists() and place.exists()):
            note(f"{title}: {path if place.exists() else place} is not here, left out")
            continue
        clf = load(path, image_size=size)
        clf.model.float()  # the bundled one is in half precision
        found["models"][title] = look(clf, some_pictures(place, count))
        note(f"{title}: done")
    return found


def figure(numbers: Numbers) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    models = numbers["models"]
    made = Figure(figsize=(8.2, 3.2 * len(models)), layout="constrained")
    bands = made.subfigures(len(models), 1, squeeze=False)[:, 0]
    for band, (title, found) in zip(bands, models.items(), strict=True):
        band.suptitle(title, fontsize=10, x=0.01, ha="left", fontweight="bold")
        left, middle, right = band.subplots(1, 3, width_ratios=(1, 1, 1.15))
        left.imshow(_filters_canvas(found["filters"]["pictures"]), interpolation="nearest")
        left.set_title("principal patch filters", fontsize=9)
        picture = middle.imshow(_positions_canvas(found["positions"]["maps"]), vmin=-1, vmax=1, cmap="RdBu_r")
        middle.set_title("position similarity, from a few places", fontsize=9)
        bar = band.colorbar(picture, ax=middle, shrink=0.7)
        bar.outline.set_visible(False)
        for axes in (left, middle):
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set_visible(False)
        for i, heads in enumerate(found["distance"]):
            right.plot([i] * len(heads), heads, "o", color=COLOURS[0], markersize=4, alpha=0.8)
        right.plot([np.mean(h) for h in found["distance"]], color=COLOURS[0], linewidth=1.2, label="mean of the heads")
        random = [np.mean(h) for h in found["distance_random"]]
        right.plot(random, color=COLOURS[5], linewidth=1, linestyle="--", label="random weights")
        right.set(xlabel="layer", ylim=(0, None))
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_title(f"attention distance of every head, of {found['image_size'][1]} pixels", fontsize=9)
        right.legend(frameon=False, fontsize=7.5, loc="lower right")
    return made


def _filters_canvas(pictures: list[Any]) -> np.ndarray:
    """Seven a row, each from black to white about grey."""
    shown = np.asarray(pictures).transpose(0, 2, 3, 1)  # (n, P1, P2, C)
    n, p1, p2, _ = shown.shape
    columns = 7
    rows = -(-n // columns)
    canvas = np.ones((rows * (p1 + 1), columns * (p2 + 1), 3))
    for i, one in enumerate(shown):
        top, left = i // columns * (p1 + 1), i % columns * (p2 + 1)
        canvas[top : top + p1, left : left + p2] = 0.5 + 0.5 * one
    return canvas.clip(0, 1)


def _positions_canvas(maps: list[Any]) -> np.ndarray:
    """Each map at the place that it is of."""
    rows, columns = (sorted({place[axis] for _, place in maps}) for axis in (0, 1))
    h, w = np.asarray(maps[0][0]).shape
    canvas = np.full((len(rows) * (h + 1) - 1, len(columns) * (w + 1) - 1), np.nan)
    for values, (r, c) in maps:
        top, left = rows.index(r) * (h + 1), columns.index(c) * (w + 1)
        canvas[top : top + h, left : left + w] = values
    return canvas


def page(numbers: Numbers) -> str:
    models = numbers["models"]
    rows, reach = [], []

    def of(key: str) -> list[float]:
        return [seed[key] for seed in numbers["seeds"]]

    for title, found in models.items():
        for label, p in ((title, found["positions"]), ("  at random", found["positions_random"])):
            rows.append(
                [label.strip(), f"{p['correlation']:.2f}", f"{100 * p['nearest']:.0f} %"]
                + [f"{p[key]:.2f}" for key in ("row", "column", "elsewhere")]
            )
        distance, side = found["distance"], found["image_size"][1]
        first, last = distance[0], distance[-1]
        reach.append(
            [
                title,
                f"{side}",
                *(text for h in (first, last) for text in (f"{np.mean(h):.1f}", f"{min(h):.1f} to {max(h):.1f}")),
                f"{np.mean(found['distance_random']):.1f}",
            ]
        )
    texts = []
    for title, found in models.items():
        near = [min(heads) / found["image_size"][1] for heads in found["distance"]]
        where = near.index(min(near))
        texts.append(
            f"- {title}: the head that looks nearest is in layer {where} of 0 to {found['layers'] - 1}, at {100 * near[where]:.0f} % of the "
            f"picture's width; between pictures the mean of a layer varies by {max(found['distance_std']):.1f} pixels at most. The first "
            f"{len(found['filters']['pictures'])} principal filters hold {100 * found['filters']['share']:.0f} % of the filters' variance."
        )
    return f"""# What was learned

**Claim** (the paper's figure 7). The patch embedding learns a basis for the structure within a patch; the position
embeddings learn their neighbourhoods, rows and columns, though nobody told them; and some heads look far already in
the first layers, while others stay near.

![Filters, positions and attention distance]({NAME}.svg)

## Positions

{table(["", "correlation of similarity and distance", "most alike is a neighbour", "same row", "same column", "elsewhere"], rows)}

Cosine similarity of the position embeddings of every two patches: its correlation with their distance in the grid; how
often the most similar of all others is one of the eight neighbours; and its mean within a row, within a column, and
between patches that share neither.

## Attention distance

{table(["", "picture, pixels", "first layer, mean", "its heads", "last layer, mean", "its heads", "random weights"], reach)}

Mean distance in pixels between a patch and the patches that it reads, weighted by attention; mean over
{numbers["pictures"]} pictures.

{chr(10).join(texts)}

Read with the functions `position_similarity`, `head_reach` and `patch_filters` of `vitreous.explain`.{_dino(numbers)}
{_bundled(numbers)}
**Limits.** Of the large models there is one each, so no spread over seeds. The small ViT of these studies, trained for
{STEPS} steps from {len(numbers["seeds"])} seeds, has a correlation of {pm(of("correlation"), 2)} and mean distances of {pm(of("first"))} pixels in the first and
{pm(of("last"))} in the last layer; it has few positions and has seen few pictures, and its filters are still mostly what they
were drawn as. Where attention goes is not yet what a model uses. A head that attends evenly has the distance of random
weights, so "far" may also mean "nowhere in particular".

{closing(numbers, NAME)}"""


def _dino(numbers: Numbers) -> str:
    if "DINOv2 ViT-S/14" not in numbers["models"]:
        return ""
    return (
        " DINOv2 is a ViT-S/14 trained\nwithout labels on much data and fine-tuned for saliency; it looks at photographs "
        f"at {DINO_SIZE} pixels, its positions\nresized for it."
    )


def _bundled(numbers: Numbers) -> str:
    found = numbers["models"].get("bundled model")
    if found is None:
        return ""
    size = "x".join(map(str, found["image_size"]))
    return f"The bundled model takes pictures of {size} pixels in {found['grid'][0]} x {found['grid'][1]} patches, was trained on CIFAR-10,\nand looks at hand signs.\n"


if __name__ == "__main__":
    main(NAME, measure, figure, page, bundled=BUNDLED, dinov2=DINOV2, pictures=PICTURES)
