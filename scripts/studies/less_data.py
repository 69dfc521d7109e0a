"""Less data: a ViT and a ResNet from scratch on 1, 5, 20 and 100 % of CIFAR-10, and a pre-trained ViT, only probed.

    python -m scripts.studies.less_data --data FOLDER --pretrained FILE

FOLDER holds train.zip and test.zip, zips of class folders. What has been measured is kept in the file of
--parts, and the features of the pre-trained model beside it, so that a study that was stopped goes on where it was.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from scripts.studies.cnn import resnet
from scripts.studies.frozen import ORIGIN, PRETRAINED, describe, features, open_frozen, probe
from scripts.studies.harness import (
    BATCH,
    COLOURS,
    ROOT,
    Numbers,
    accuracy,
    closing,
    main,
    mean_std,
    note,
    pm,
    table,
    train,
)
from scripts.studies.parts import Parts
from vitreous import VisionTransformer, ViTConfig
from vitreous.base.seeds import derive, seeded
from vitreous.base.statistics import student
from vitreous.data.dataset import Split
from vitreous.data.open import open_data
from vitreous.pictures.images import read_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "less_data"
DATA = ROOT.parent / "shared" / "data" / "cifar10-jpeg"
PARTS = Path(tempfile.gettempdir()) / "vitreous-less-data.jsonl"
FRACTIONS, SEEDS, STEPS, RATE = (0.01, 0.05, 0.2, 1.0), (0, 1, 2), 500, 2e-3
SIZE = 32
VIT = ViTConfig(image_size=SIZE, patch_size=8, hidden_size=128, num_layers=4, num_heads=4, mlp_dim=256)
RESNET = (1, 1)  # blocks of each stage
MODELS = ("ViT", "ResNet")
PROBE = "pre-trained ViT, probe"
QUICK = (200, 100)  # pictures to train and to test with, about, of --quick
MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)  # of CIFAR-10's training pictures
Data = tuple[Tensor, Tensor]  # (n, 3, 32, 32) normalised, (n,) classes


def build(name: str, classes: int, seed: int) -> nn.Module:
    """One of the two, with random weights."""
    with seeded(derive(seed, "weights")):
        return VisionTransformer(VIT.replace(num_classes=classes)) if name == "ViT" else resnet(classes, RESNET)


def read(folder: Path, limits: tuple[int, int] | None = None) -> tuple[Split, Split]:
    """(train, test), with the same classes; of each every n-th picture, so that about as many as its limit remain."""
    zips = [folder / f"{part}.zip" for part in ("train", "test")]
    if all(path.exists() for path in zips):
        (train_split,), (test_split,) = (open_data(path).splits.values() for path in zips)
    else:
        parts = open_data(folder).splits
        train_split, test_split = parts["train"], parts.get("test") or parts["val"]
    found = train_split, test_split.with_classes(train_split.classes)
    if limits is None:
        return found
    few = (split.select(range(0, len(split), max(len(split) // n, 1))) for split, n in zip(found, limits, strict=True))
    return next(few), next(few)


def tensors(split: Split) -> Data:
    x = torch.stack([read_image(split.open(i)) for i in range(len(split))]).float() / 255  # (n, 3, 32, 32)
    x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return x, torch.from_numpy(split.labels)


def subset(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Indices of a share of every class, drawn from the seed; a smaller share lies within a larger one."""
    chosen = []
    for c in labels.unique():
        places = torch.nonzero(labels == c).flatten()
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(derive(seed, "subset", int(c))))
        chosen.append(places[order[: max(round(fraction * len(places)), 1)]])
    return torch.cat(chosen)


def measure(quick: bool, data: Path, parts: Path, pretrained: Path) -> Numbers:
    splits = read(data, QUICK if quick else None)
    (x, y), test = map(tensors, splits)
    classes, kept = len(splits[0].classes), Parts(None if quick else parts)
    seeds, steps = (SEEDS[:2], 2) if quick else (SEEDS, STEPS)

    def from_scratch(name: str, rows: Tensor, seed: int) -> float:
        model = build(name, classes, seed)
        train(model, (x[rows], y[rows]), size=SIZE, steps=steps, seed=seed, lr=RATE)
        return accuracy(model, test, SIZE)

    found: dict[str, dict[str, list[float]]] = {name: {str(f): [] for f in FRACTIONS} for name in MODELS}
    for seed in seeds:  # all of one seed before the next, so that what there is can be compared at any time
        for fraction in FRACTIONS:
            rows = subset(y, fraction, seed)
            for name in MODELS:
                key = f"{name}, {fraction:g}, seed {seed}, {steps} steps of {BATCH}, {len(y)} pictures"
                right = kept.get(key, partial(from_scratch, name, rows, seed))
                found[name][str(fraction)].append(right)
                note(f"{key}: {right:.1f} %")
    models = {name: build(name, classes, 0) for name in MODELS}
    numbers = {
        "seeds": list(seeds),
        "steps": steps,
        "batch_size": BATCH,
        "train": len(y),
        "test": len(test[1]),
        "classes": classes,
        "params": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
        "mmacs": {name: _macs(model) / 1e6 for name, model in models.items()},
        "accuracy": found,
    }
    if pretrained.exists():
        clf = open_frozen(pretrained)
        known, asked = (features(clf, split, kept, pretrained.name) for split in splits)  # (n, D)
        found[PROBE] = {}
        for fraction in FRACTIONS:
            drawn = [subset(y, fraction, seed) for seed in seeds]
            found[PROBE][str(fraction)] = [probe((known[i], y[i]), (asked, test[1]), classes) for i in drawn]
        numbers["pretrained"] = describe(clf, pretrained)
    else:
        note(f"{pretrained} is not here: the model with pre-training is left out")
    return numbers | {"cached_seconds": kept.cached_seconds}


def _macs(model: nn.Module) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    # On the meta device attention is two plain products, which the counter knows; the fused one for CPUs it does not.
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval().to("meta")(torch.zeros(1, 3, SIZE, SIZE, device="meta"))
    return counter.get_total_flops() // 2


def figure(numbers: Numbers) -> "Figure":
    from matplotlib.figure import Figure

    made = Figure(figsize=(6.0, 3.4), layout="constrained")
    axes = made.subplots()
    for colour, (name, runs) in zip(COLOURS, numbers["accuracy"].items(), strict=False):
        pictures = [float(f) * numbers["train"] for f in runs]
        means = [mean_std(values)[0] for values in runs.values()]
        axes.plot(pictures, means, color=colour, linewidth=1.6, marker="o", markersize=4, label=name)
        for n, values in zip(pictures, runs.values(), strict=True):
            axes.plot([n] * len(values), values, ".", color=colour, alpha=0.45, markersize=6)
    axes.axhline(100 / numbers["classes"], color=COLOURS[5], linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    axes.set(xlabel="training pictures (dotted: chance)", ylabel="accuracy on test pictures, %")
    axes.legend(frameon=False)
    return made


def page(numbers: Numbers) -> str:
    steps, batch, seeds = numbers["steps"], numbers["batch_size"], len(numbers["seeds"])
    vit, cnn = (numbers["accuracy"][name] for name in MODELS)
    probed = numbers["accuracy"].get(PROBE)
    gaps = {f: [b - a for a, b in zip(vit[f], cnn[f], strict=True)] for f in vit}
    rows = []
    for f in vit:
        low, high = student(gaps[f])
        rows.append(
            [
                f"{float(f):.0%}",
                f"{float(f) * numbers['train']:,.0f}",
                f"{steps * batch / (float(f) * numbers['train']):.2g}",
                pm(vit[f]),
                pm(cnn[f]),
                f"{mean_std(gaps[f])[0]:+.1f} ({low:+.1f} to {high:+.1f})",
                *([pm(probed[f])] if probed else []),
            ]
        )
    columns = ["share", "pictures", "epochs", "ViT, %", "ResNet, %", "ResNet ahead by, points"]
    first, *_, last = gaps
    ahead = [f"{float(f):.0%}" for f in gaps if student(gaps[f])[0] > 0]
    behind = [f"{float(f):.0%}" for f in gaps if student(gaps[f])[1] < 0]
    crossed = any(mean_std(values)[0] < 0 for values in gaps.values())
    return f"""# Less data: a ViT and a ResNet from scratch{", and what pre-training buys" if probed else ""}

Dosovitskiy et al. (2021, section 4.3) find that a ViT, which has no built-in notion of neighbourhood, falls behind a
ResNet when data is scarce, and overtakes it when there is enough. Here is the scarce end, as small as it gets: two models
of about the same cost a picture, from random weights, on shares of the {numbers["train"]:,} pictures of CIFAR-10, {SIZE} x {SIZE} pixels.
{INTRODUCTION if probed else ""}
![Accuracy by number of training pictures]({NAME}.svg)

{table([*columns, f"{PROBE}, %"] if probed else columns, rows)}

Accuracy on {numbers["test"]:,} test pictures, mean and standard deviation over {seeds} seeds; a seed decides weights, subset,
order and crops, for both models alike. ResNet ahead by: the mean of the paired differences with Student's 95 % interval.

The ResNet is ahead beyond that interval at {", ".join(ahead) or "no share"}, the ViT at {", ".join(behind) or "no share"}. From {float(first):.0%} to {float(last):.0%} of the pictures the
accuracy of the ViT changes by {mean_std(vit[last])[0] - mean_std(vit[first])[0]:+.1f} points, that of the ResNet by {mean_std(cnn[last])[0] - mean_std(cnn[first])[0]:+.1f}.

**The models.** ViT: {VIT.num_layers} blocks, {VIT.hidden_size} wide, {VIT.num_patches} patches of {VIT.patch_size[0]} x {VIT.patch_size[1]} pixels; {numbers["params"]["ViT"]:,} parameters, {numbers["mmacs"]["ViT"]:.1f} MMACs a picture. ResNet: the
first {len(RESNET)} stages of torchvision's ResNet with one basic block each and its usual stem; {numbers["params"]["ResNet"]:,} parameters,
{numbers["mmacs"]["ResNet"]:.1f} MMACs. Both by the same loop: AdamW, rate {RATE:g}, warm-up and cosine, {steps:,} steps of {batch}, random crops, no mirror images.
{_pretraining(numbers) if probed else ""}
**Limits.** Every run from scratch has the same {steps * batch:,} pictures to see, whatever the share: with all of the data that is
{steps * batch / numbers["train"]:.2g} epochs, so the right end of its curve says what a fixed amount of work gets out of more data, not what
the models reach when trained to the end. One recipe, tuned for neither. Both models are tiny, and nothing here reaches the
amounts of data that the paper compares{"" if crossed else ": whether the curves would cross cannot be seen"}.

{closing(numbers, NAME)}"""


INTRODUCTION = """
And then with pre-training: a linear head on a frozen, pre-trained ViT learns from the very same pictures. That is another
model, of another size and another amount of data, so that its column shows what pre-training buys at each share. It is not a
fair comparison of architectures.
"""


def _pretraining(numbers: Numbers) -> str:
    model, probed = numbers["pretrained"], {f: mean_std(v)[0] for f, v in numbers["accuracy"][PROBE].items()}
    best = {f: max(mean_std(numbers["accuracy"][name][f])[0] for name in MODELS) for f in probed}
    first, *_, last = probed
    enough = [f"with {float(f):.0%} of them" for f in probed if probed[f] >= best[last]]
    return f"""
**With pre-training.** The model is `{model["name"]}`: {model["blocks"]} blocks, {model["width"]} wide, {model["params"]:,} parameters, {model["params"] / numbers["params"]["ViT"]:.0f} times those of
the small ViT; {ORIGIN.get(model["name"], "pre-trained")}. It looks at pictures
enlarged from {SIZE} to {model["image_size"]} pixels, in {model["patches"]} patches, normalised by its own mean and deviation. It is frozen: only a linear head is trained,
in closed form, as in `vitreous probe`: ridge regression on whitened features, its strength chosen by leaving out training
pictures one at a time. Subsets and test pictures are those of the other two; there are no crops, and with all of the
pictures nothing is left to the seed.

The probe differs from the better of the two from scratch by {probed[first] - best[first]:+.1f} points at {float(first):.0%} and by {probed[last] - best[last]:+.1f} at {float(last):.0%}. What that one reaches with
all of the pictures, {best[last]:.1f} %, the probe reaches {next(iter(enough), "at no share")}. The gain is that of everything that was done before,
by others, at a cost that is not counted here; blurred pictures of {SIZE} pixels are not what such a model was made for, and
whether it has seen some that are like the test pictures is not known.
"""


if __name__ == "__main__":
    main(NAME, measure, figure, page, data=DATA, parts=PARTS, pretrained=PRETRAINED)
