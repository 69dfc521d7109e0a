"""Resolution change: positions resized by each family's mode, against positions left wrong or drawn anew.

    python -m scripts.studies.resolution

A ViT trained at 32 pixels takes pictures of 48 or 64, at once and after a short fine-tuning.
"""

from typing import TYPE_CHECKING, Any

from scripts.studies import places
from scripts.studies.harness import (
    BATCH,
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
    sample,
    table,
    train,
    trained_vit,
)
from scripts.studies.resolution_ways import WAYS, WRONG, at_size
from vitreous.base.seeds import derive
from vitreous.positions import MODES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "resolution"
SEEDS, FINETUNE, SIZES = (0, 1, 2), 40, (48, 64)


def measure(quick: bool) -> Numbers:
    data = sample(20 if quick else None)
    finetune, sizes = (1, SIZES[:1]) if quick else (FINETUNE, SIZES)
    seeds = SEEDS[:2] if quick else SEEDS
    base: list[float] = []
    cached = 0.0
    found: dict[str, Any] = {str(size): {way: {"before": [], "after": []} for way in WAYS} for size in sizes}
    for seed in seeds:
        model, seconds = trained_vit(seed, data, quick)
        cached += seconds
        base.append(accuracy(model, data.val, SMALL.image_size[0]))
        for size in sizes:
            for way in WAYS:
                changed = at_size(model, size, way, seed)
                found[str(size)][way]["before"].append(accuracy(changed, data.val, size))
                train(changed, data.train, size=size, steps=finetune, seed=derive(seed, "finetune"), lr=3e-4)
                found[str(size)][way]["after"].append(accuracy(changed, data.val, size))
            note(f"seed {seed}, {size} pixels, from {base[-1]:.1f} %: done")
    return {
        "seeds": list(seeds),
        "steps": STEPS,
        "cached_seconds": cached,
        "finetune": finetune,
        "batch_size": BATCH,
        "val": len(data.val[1]),
        "trained_at": base,
        "sizes": found,
        "places": places.measure(seeds, quick),
    }


def figure(numbers: Numbers) -> "Figure":
    from matplotlib.figure import Figure

    found = numbers["places"]
    side, larger = places.CONFIG.grid[0], places.LARGER // places.CONFIG.patch_size[0]
    shown = [(f"place task: {side}x{side} -> {larger}x{larger} patches", found["ways"], found["trained_at"])]
    for size, ways in numbers["sizes"].items():
        grid = int(size) // SMALL.patch_size[0]
        title = f"hand signs: {SMALL.grid[0]}x{SMALL.grid[1]} -> {grid}x{grid}"
        shown.append((title, ways, numbers["trained_at"]))
    made = Figure(figsize=(8.6, 3.7), layout="constrained")
    panels = made.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (title, ways, trained_at) in zip(panels, shown, strict=True):
        base = mean_std(trained_at)[0]
        axes.axvline(base, color=COLOURS[5], linewidth=1, linestyle=":")
        for when, colour in (("before", COLOURS[1]), ("after", COLOURS[0])):
            stats = [mean_std(found[when]) for found in ways.values()]
            label = "at once" if when == "before" else "after a short fine-tuning"
            axes.errorbar(
                [m for m, _ in stats], range(len(stats)), xerr=[s for _, s in stats],
                fmt="o", color=colour, markersize=5, capsize=2.5, linewidth=1.2, label=label,
            )  # fmt: skip
        axes.axhline(len(MODES) - 0.5, color="#d5dae2", linewidth=0.8)
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="accuracy, %")
    panels[0].set_yticks(range(len(WAYS)), list(WAYS))
    panels[0].invert_yaxis()
    made.legend(*panels[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside upper right", ncols=2)
    return made


def page(numbers: Numbers) -> str:
    sizes, base = numbers["sizes"], mean_std(numbers["trained_at"])[0]
    columns = ["positions"]
    for size in sizes:
        columns += [f"{size} px, at once", f"{size} px, after {numbers['finetune']} steps"]
    rows = [[way, *(pm(sizes[s][way][when]) for s in sizes for when in ("before", "after"))] for way in WAYS]

    def means(size: str, when: str, ways: Any) -> list[float]:
        return [mean_std(sizes[size][way][when])[0] for way in ways]

    right = [way for way in WAYS if way not in WRONG]
    lines = []
    for size in sizes:
        good, bad = means(size, "before", right), means(size, "before", WRONG)
        good_after, bad_after = means(size, "after", right), means(size, "after", WRONG)
        lines.append(
            f"- At {size} pixels: at once {min(good):.1f} to {max(good):.1f} % with the six ways of resizing, "
            f"{min(bad):.1f} to {max(bad):.1f} % with positions left wrong; after fine-tuning {min(good_after):.1f} to "
            f"{max(good_after):.1f} % against {min(bad_after):.1f} to {max(bad_after):.1f} %."
        )
    return f"""# Resolution: what happens to the positions

**Question.** At another resolution there are more patches than positions. How the families resize them differs in the
numbers; does it in accuracy, and what do positions cost that are left wrong?

Twice: on a task in which only the place counts, and on the hand signs, each at once and after a short fine-tuning at
the new size.

![Accuracy at the new size]({NAME}.svg)

{places.text(numbers["places"])}

## Hand signs

The small ViT of these studies, trained on the bundled hand signs at {SMALL.image_size[0]} pixels ({numbers["steps"]} steps; {base:.1f} % on {numbers["val"]} pictures of
other people), is given larger pictures of the same hands.

{table(columns, rows)}

Accuracy in percent, here and above mean and standard deviation over {len(numbers["seeds"])} seeds. The dotted lines of the figure are the
accuracy at the old size.

{chr(10).join(lines)}

The modes are those of `vitreous/positions.py`: Google (bilinear, corners on corners), timm (bicubic, antialiased;
bilinear for .npz files), Hugging Face (bicubic), torchvision (bicubic, corners on corners), DINO (bicubic, scaled by
(new + 0.1) / old). The wrong ways: the table stretched as one line of tokens, repeated until it is long enough, filled
with rows and columns swapped, or drawn anew.

**Limits.** Both models are small. On the hand signs the short training teaches what the patches show more than where they
are ([the ablation](ablation.md) has a variant without positions), so there the ways can hardly differ; and the hands change
their size in patches, which costs accuracy however the positions are resized. {numbers["val"]} pictures leave an uncertainty of about
2 points in every number. The grids are of {SMALL.grid[0]} x {SMALL.grid[1]} and {places.CONFIG.grid[0]} x {places.CONFIG.grid[1]} patches; the modes differ in what they do at borders, of which a larger
grid has less.

{closing(numbers, NAME)}"""


if __name__ == "__main__":
    main(NAME, measure, figure, page)
