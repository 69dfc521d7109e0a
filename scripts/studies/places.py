"""A task in which only the place counts: in which ninth of the picture is the one patch with a cross?

Other glyphs lie all over the picture. A larger picture has more patches, and what they show stays the same size, so
that nothing changes from one resolution to another but the positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.studies.harness import BATCH, Numbers, mean_std, note, pm, table
from scripts.studies.resolution_ways import WAYS, WRONG, at_size
from vitreous import VisionTransformer, ViTConfig
from vitreous.base.seeds import derive, seeded

STEPS, FINETUNE, TEST, LR = 800, 30, 512, 2e-3
GLYPHS = torch.tensor(  # cross, then bar, column and frame
    [
        [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]],
        [[0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]],
        [[0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0]],
        [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]],
    ],
    dtype=torch.float32,
)
CONFIG = ViTConfig(
    image_size=24, patch_size=4, in_channels=1, hidden_size=64, num_layers=2, num_heads=4, mlp_dim=128, num_classes=9
)  # fmt: skip
LARGER = 36  # pixels: 9 x 9 patches instead of 6 x 6


def pictures(count: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """(n, 1, size, size) pictures, and (n,) in which ninth the cross is, row by row."""
    g = torch.Generator().manual_seed(seed)
    side = size // CONFIG.patch_size[0]
    kinds = torch.randint(1, len(GLYPHS), (count, side * side), generator=g)
    place = torch.randint(side * side, (count,), generator=g)
    kinds[torch.arange(count), place] = 0
    patches = GLYPHS[kinds] + 0.2 * torch.randn(count, side * side, 4, 4, generator=g) - 0.5  # (n, N, 4, 4)
    x = patches.view(count, side, side, 4, 4).transpose(2, 3).reshape(count, 1, size, size)
    third = side // 3
    return x, place // side // third * 3 + place % side // third


def train(model: VisionTransformer, size: int, steps: int, seed: int, lr: float) -> None:
    """AdamW on endless pictures, warm-up, then a linear decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / max(steps // 10, 1), 1 - step / steps)
    )
    model.train()
    for step in range(steps):
        x, y = pictures(BATCH, size, derive(seed, "places", step))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: VisionTransformer, size: int, seed: int) -> float:
    """In percent, on pictures not trained on; chance is 11."""
    x, y = pictures(TEST, size, derive(seed, "test"))
    return 100 * float((model(x).argmax(dim=1) == y).double().mean())


def measure(seeds: tuple[int, ...], quick: bool) -> Numbers:
    """Every way of bringing the positions to the larger grid, at once and after fine-tuning."""
    steps, finetune = (2, 1) if quick else (STEPS, FINETUNE)
    base: list[float] = []
    found: dict[str, dict[str, list[float]]] = {way: {"before": [], "after": []} for way in WAYS}
    for seed in seeds:
        with seeded(seed):
            model = VisionTransformer(CONFIG)
        train(model, CONFIG.image_size[0], steps, seed, LR)
        base.append(accuracy(model, CONFIG.image_size[0], seed))
        for way, results in found.items():
            changed = at_size(model, LARGER, way, seed)
            results["before"].append(accuracy(changed, LARGER, seed))
            train(changed, LARGER, finetune, derive(seed, "finetune"), LR / 10)
            results["after"].append(accuracy(changed, LARGER, seed))
        note(f"places, seed {seed}, from {base[-1]:.1f} %: done")
    return {"trained_at": base, "steps": STEPS, "finetune": finetune, "test": TEST, "ways": found}


def text(found: Numbers) -> str:
    """The section of the page."""
    ways = found["ways"]
    rows = [[way, pm(ways[way]["before"]), pm(ways[way]["after"])] for way in WAYS]

    def span(when: str, chosen: list[str]) -> str:
        means = [mean_std(ways[way][when])[0] for way in chosen]
        return f"{min(means):.1f} to {max(means):.1f} %"

    right = [way for way in WAYS if way not in WRONG]
    side, larger = CONFIG.grid[0], LARGER // CONFIG.patch_size[0]
    return f"""## Where the place decides

A generated task: in which ninth of the picture lies the one patch with a cross, among other glyphs? Trained at {side} x {side}
patches for {found["steps"]} steps ({pm(found["trained_at"])} % there), then given pictures of {larger} x {larger} patches. What a patch shows keeps its size,
so that only the positions change. Chance is 11 %.

{table(["positions", "at once, %", f"after {found['finetune']} steps, %"], rows)}

Resized in 2-D, in whichever mode: {span("before", right)} at once, {span("after", right)} after fine-tuning. Left wrong:
{span("before", list(WRONG))} at once, {span("after", list(WRONG))} after."""
