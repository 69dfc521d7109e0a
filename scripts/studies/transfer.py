"""Transfer: from scratch, pre-trained and fine-tuned, or only probed, on 1, 5, 10, 50 and all pictures a class.

    python -m scripts.studies.transfer

What has been measured is kept in the file of --parts, so that a study that was stopped goes on where it was.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scripts.studies.frozen import probe
from scripts.studies.harness import (
    COLOURS,
    MEAN,
    STD,
    Numbers,
    accuracy,
    closing,
    main,
    mean_std,
    note,
    pm,
    sample,
    shrink,
    table,
    train,
)
from scripts.studies.parts import Parts
from vitreous import Classifier, VisionTransformer, load
from vitreous.base.seeds import derive, seeded
from vitreous.base.statistics import student
from vitreous.evaluation.features import backbone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "transfer"
MODEL = Path("vitreous:mini")
PARTS = Path(tempfile.gettempdir()) / "vitreous-transfer.jsonl"
SHOTS, SEEDS, STEPS, BATCH, CLASSES = (1, 5, 10, 50, None), (0, 1, 2), 250, 16, 10
# Each with the optimiser and rate that served it better in trials on all pictures: from random weights AdamW learns
# far more slowly than SGD at a high rate, from pre-trained ones SGD at that rate forgets some of what was learned.
SGD_RATE, ADAMW_RATE = 0.06, 7e-4
Data = tuple[Tensor, Tensor]  # (n, 3, h, w) normalised, (n,) classes
Way = Callable[[Classifier, Data, Data, int, int], float]  # accuracy, %, of (model, train, test, seed, steps)


def from_scratch(clf: Classifier, data: Data, test: Data, seed: int, steps: int) -> float:
    return _trained(random(clf, seed), data, test, seed, steps, lr=SGD_RATE, sgd=True)


def fine_tuned(clf: Classifier, data: Data, test: Data, seed: int, steps: int) -> float:
    model = random(clf, seed)
    model.load_state_dict(backbone(clf.model).state_dict(), strict=False)  # all but the head
    return _trained(model, data, test, seed, steps, lr=ADAMW_RATE)


def probed(clf: Classifier, data: Data, test: Data, seed: int, steps: int) -> float:
    return _ridge(clf.model, data, test)


def random_probed(clf: Classifier, data: Data, test: Data, seed: int, steps: int) -> float:
    return _ridge(random(clf, seed), data, test)


WAYS: dict[str, Way] = {
    "from scratch": from_scratch,
    "fine-tuned": fine_tuned,
    "probe": probed,
    "probe, random weights": random_probed,
}


def random(clf: Classifier, seed: int) -> VisionTransformer:
    """The same architecture with random weights, and a zero head for the ten signs."""
    with seeded(derive(seed, "weights")):
        return VisionTransformer(clf.model.config).reset_head(CLASSES)


def _trained(
    model: VisionTransformer, data: Data, test: Data, seed: int, steps: int, *, lr: float, sgd: bool = False
) -> float:
    size = model.config.image_size[0]
    train(model, data, size=size, steps=steps, seed=seed, batch_size=BATCH, lr=lr, sgd=sgd)
    return accuracy(model, test, size)


@torch.inference_mode()
def _ridge(model: VisionTransformer, data: Data, test: Data) -> float:
    size, read = model.config.image_size[0], backbone(model)
    x, x_test = (torch.cat([read(part) for part in shrink(d[0], size).split(128)]) for d in (data, test))
    return probe((x, data[1]), (x_test, test[1]), CLASSES)


def pictures(data: Data, clf: Classifier) -> Data:
    """Normalised as for the model, and twice its size, so that a crop of it needs no averaging."""
    old, new = ((MEAN, STD), (clf.preprocess.mean, clf.preprocess.std))
    (mean, std), (to_mean, to_std) = ([torch.tensor(v).view(3, 1, 1) for v in pair] for pair in (old, new))
    side = min(2 * clf.preprocess.size[0], data[0].shape[-1])
    return (shrink(data[0] * std + mean, side) - to_mean) / to_std, data[1]


def choose(labels: Tensor, shots: int | None, seed: int) -> Tensor:
    """Indices of `shots` pictures of every class, drawn from the seed; of all for None."""
    if shots is None:
        return torch.arange(len(labels))
    chosen = []
    for c in range(CLASSES):
        places = torch.nonzero(labels == c).flatten()
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(derive(seed, "shots", c)))
        chosen.append(places[order[:shots]])
    return torch.cat(chosen)


def measure(quick: bool, model: Path, parts: Path) -> Numbers:
    clf = load(str(model))
    data = sample(200 if quick else None)
    (x, y), test = pictures(data.train, clf), pictures(data.val, clf)
    seeds, steps = (SEEDS[:2], 2) if quick else (SEEDS, STEPS)
    known = Parts(None if quick else parts)
    weights = float(sum(tensor.double().abs().sum() for tensor in clf.model.state_dict().values()))
    found: dict[str, dict[str, list[float]]] = {way: {_name(k): [] for k in SHOTS} for way in WAYS}
    for seed in seeds:
        for shots in SHOTS:
            rows = choose(y, shots, seed)
            for way, run in WAYS.items():
                settings = f"{steps} steps of {BATCH}, rates {SGD_RATE:g} and {ADAMW_RATE:g}"
                key = f"{weights:.6g}: {way}, {_name(shots)}, seed {seed}, {settings}"
                value = known.get(
                    key, lambda run=run, rows=rows, seed=seed: run(clf, (x[rows], y[rows]), test, seed, steps)
                )
                found[way][_name(shots)].append(value)
                note(f"{way}, {_name(shots)} a class, seed {seed}: {value:.1f} %")
    c = clf.model.config
    trained_on = clf.provenance.get("data") or {}
    return {
        "seeds": list(seeds),
        "steps": steps,
        "batch_size": BATCH,
        "train": len(y),
        "test": len(test[1]),
        "model": {
            "name": model.name,
            "blocks": c.num_layers,
            "width": c.hidden_size,
            "image_size": c.image_size[0],
            "patch_size": c.patch_size[0],
            "params": sum(p.numel() for p in clf.model.parameters()),
            "pictures": trained_on.get("train_pictures"),
        },
        "accuracy": found,
        "cached_seconds": known.cached_seconds,
    }


def _name(shots: int | None) -> str:
    return "all" if shots is None else str(shots)


def figure(numbers: Numbers) -> "Figure":
    from matplotlib.figure import Figure

    made = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = made.subplots()
    for colour, (way, runs) in zip(COLOURS, numbers["accuracy"].items(), strict=False):
        places = range(len(runs))
        axes.plot(places, [mean_std(v)[0] for v in runs.values()], color=colour, marker="o", markersize=4, label=way)
        for place, values in zip(places, runs.values(), strict=True):
            axes.plot([place] * len(values), values, ".", color=colour, alpha=0.45, markersize=6)
    axes.axhline(100 / CLASSES, color=COLOURS[5], linewidth=0.8, linestyle=":")
    first = next(iter(numbers["accuracy"].values()))
    axes.set_xticks(range(len(first)), list(first))
    axes.set(xlabel="pictures a class", ylabel="accuracy on other people's hands, %", ylim=(0, 100))
    axes.legend(frameon=False)
    return made


def page(numbers: Numbers) -> str:
    found, model, seeds = numbers["accuracy"], numbers["model"], len(numbers["seeds"])
    rows = [[shots, *(pm(found[way][shots]) for way in WAYS)] for shots in found["probe"]]
    gain = {
        shots: [a - b for a, b in zip(found["fine-tuned"][shots], found["from scratch"][shots], strict=True)]
        for shots in found["probe"]
    }
    few = "5"
    means = {way: mean_std(found[way][few])[0] for way in WAYS}
    whole = mean_std(found["from scratch"]["all"])[0]
    reached = [s for s in found["probe"] if max(mean_std(found[w][s])[0] for w in ("fine-tuned", "probe")) >= whole]
    equal = (
        f"What training from scratch reaches with all pictures, {whole:.1f} %, the pre-trained model has with {reached[0]} a class."
        if reached
        else f"Training from scratch with all pictures, {whole:.1f} %, stays ahead of everything else here."
    )
    sure = [s for s, values in gain.items() if student(values)[0] > 0]
    of = f"pre-trained on {model['pictures']:,} pictures" if model["pictures"] else "pre-trained"
    return f"""# Transfer: few-shot fine-tuning is not few-shot training

That a ViT can be fitted to a new task with a handful of pictures is true of one that has been pre-trained on many others. To
read it as "a ViT can be trained on a handful of pictures" is a mistake, and here is its size: one architecture, one set
of pictures, four ways.

![Accuracy by number of pictures a class]({NAME}.svg)

{table(["pictures a class", *(f"{way}, %" for way in WAYS)], rows)}

Accuracy on {numbers["test"]} photographs of hand signs by people of whom none is in the {numbers["train"]:,} training pictures; chance is
{100 / CLASSES:.0f} %. Mean and standard deviation over {seeds} seeds, which decide the pictures drawn, random weights, order and crops.

With {few} pictures a class, training from scratch reaches {means["from scratch"]:.1f} %, fine-tuning {means["fine-tuned"]:.1f} %, and a closed-form ridge
head on frozen features {means["probe"]:.1f} %, without a single step. The same head on random weights has {means["probe, random weights"]:.1f} %: what it takes
to tell the difference between pre-training and mere shape of the network. {equal}
Fine-tuning is ahead of training from scratch beyond Student's 95 % interval of the paired differences at {", ".join(sure) or "none"} a class.

**The ways.** The model is `{model["name"]}`: {model["blocks"]} blocks, {model["width"]} wide, {model["image_size"]} x {model["image_size"]} pixels in patches of {model["patch_size"]} x {model["patch_size"]}, {model["params"]:,} parameters,
{of}. *From scratch*: the same architecture with random weights. *Fine-tuned*: its weights, a zero head,
everything trained. Both by the same loop, with warm-up and cosine, {numbers["steps"]} steps of {numbers["batch_size"]}, random crops, no mirror images; each with the
optimiser that served it better in trials on all pictures, SGD at {SGD_RATE:g} from scratch and AdamW at {ADAMW_RATE:g} from the pre-trained
weights. *Probe*: `vitreous probe`, ridge regression on whitened features, its strength chosen by leaving out training
pictures one at a time (2^10 with one picture a class, where that cannot be done).

**Limits.** One small model, one small task, {model["image_size"]}-pixel pictures. Every run has the same {numbers["steps"] * numbers["batch_size"]:,} pictures to see, and settings chosen
with all of them, a few trials each; longer training would help the scratch runs most where there are many pictures. {numbers["test"]} test pictures alone make an
uncertainty of about {100 * (0.25 / numbers["test"]) ** 0.5:.1f} points, which seeds on the same pictures do not show. With all pictures the probe does not
depend on the seed.

{closing(numbers, NAME)}"""


if __name__ == "__main__":
    main(NAME, measure, figure, page, model=MODEL, parts=PARTS)
