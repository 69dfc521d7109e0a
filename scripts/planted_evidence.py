"""An experiment where the truth is known: a ViT that can only decide by one patch, and every map asked to find it.

The class of a 28 x 28 picture is which of four glyphs sits in one random patch of 4 x 4 pixels. A
brighter patch that says nothing about the class sits elsewhere. `python scripts/planted_evidence.py
docs/studies/planted_evidence.json` trains a small ViT from three seeds, measures every method, and
writes the numbers; `--page docs/studies/planted_evidence.md` renews the table of that page.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import VisionTransformer, ViTConfig
from vitreous.base.files import write_text
from vitreous.base.seeds import derive, seeded
from vitreous.explain import METHODS, MapEvaluation, evaluate_maps, pointing
from vitreous.explain.methods.table import Method, method
from vitreous.explain.verification.verdict import Verdict

GRID, PATCH = 7, 4
STEPS, BATCH = 220, 128
GLYPHS = torch.tensor(  # four patterns of equal brightness: diagonal, anti-diagonal, columns, rows
    [
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        [[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]],
        [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
        [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    ],
    dtype=torch.float32,
)
CONFIG = ViTConfig(
    image_size=28,
    patch_size=PATCH,
    in_channels=1,
    hidden_size=64,
    num_layers=4,
    num_heads=4,
    mlp_dim=128,
    num_classes=4,
)


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (n, 1, 28, 28), classes (n,), and where the evidence and the distractor are, (n, 7, 7) bool each."""
    g = torch.Generator().manual_seed(seed)
    classes = torch.randint(len(GLYPHS), (count,), generator=g)
    places = torch.rand(count, GRID * GRID, generator=g).argsort(dim=1)[:, :2]  # two different patches
    patches = 0.3 * torch.randn(count, GRID * GRID, PATCH, PATCH, generator=g)
    rows = torch.arange(count)
    patches[rows, places[:, 0]] += 1.5 * GLYPHS[classes]
    patches[rows, places[:, 1]] += 3.0 * (torch.rand(count, PATCH, PATCH, generator=g) < 0.5)
    x = patches.view(count, GRID, GRID, PATCH, PATCH).transpose(2, 3).reshape(count, 1, GRID * PATCH, GRID * PATCH)
    marks = F.one_hot(places, GRID * GRID).bool().view(count, 2, GRID, GRID)
    return x, classes, marks[:, 0], marks[:, 1]


def train(seed: int, steps: int = STEPS) -> tuple[VisionTransformer, float]:
    """A small ViT trained on the task, and its accuracy on pictures that it has not seen."""
    with seeded(seed):
        model = VisionTransformer(CONFIG).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        x, y, _, _ = pictures(BATCH, derive(seed, "train", step))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    x, y, _, _ = pictures(512, derive(seed, "test"))
    with torch.no_grad():
        return model, float((model(x).argmax(dim=1) == y).double().mean())


def methods() -> dict[str, Method]:
    """All of them, RISE with 300 masks."""
    settings: dict[str, dict[str, Any]] = {"rise": {"n": 300}, "integrated_gradients": {"chunk": 64}}
    return {name: method(name, **settings.get(name, {})) for name in METHODS}


def measure(seed: int, count: int = 96, *, show_progress: bool = False) -> dict[str, Any]:
    """Train from one seed and verify every method; plain JSON values."""
    model, accuracy = train(seed)
    x, y, evidence, distractor = pictures(count, derive(seed, "explain"))
    found = evaluate_maps(
        model, x, methods(), target=y, evidence=evidence, operators=("drop", "mean"), chunk=count,
        random_weights=32, batch_size=512, show_progress=show_progress,
    )  # fmt: skip
    rows = {name: _row(name, found, distractor) for name in found.measures}
    return {"seed": seed, "accuracy": accuracy, "n": count, "methods": rows}


def _row(name: str, found: MapEvaluation, distractor: Tensor) -> dict[str, float]:
    values, randomised = found.measures[name], found.randomised[name]
    right = values["pointing"].nan_to_num(0) > 0.5
    maps = found.maps[name]
    verdicts = [check.verdict for check in found.checks[name]]
    accepted = torch.tensor([v is Verdict.CONSISTENT for v in verdicts])
    refuted = torch.tensor([v is Verdict.REFUTED for v in verdicts])
    row = {
        "evidence": values["pointing"].nan_to_num(0).mean(),
        "distractor": torch.tensor([pointing(m, d) for m, d in zip(maps, distractor, strict=True)])
        .nan_to_num(0)
        .mean(),
        "deletion": values["deletion"].mean(),
        "insertion": values["insertion"].mean(),
        "top_effect": (values["top_effect"] > 0.5).double().mean(),
        "random_weights": float("nan") if randomised is None else randomised.end,
        "consistent": accepted.double().mean(),
        "refuted": refuted.double().mean(),
        "accepted_though_wrong": (accepted & ~right).double().mean(),
        "refuted_though_right": (refuted & right).double().mean(),
    }
    return {key: round(float(value), 3) for key, value in row.items()}


COLUMNS = {
    "evidence": "points at the evidence",
    "distractor": "at the distractor",
    "deletion": "deletion ↓",
    "insertion": "insertion ↑",
    "top_effect": "T > 0.5",
    "random_weights": "random weights, ρ",
    "consistent": "consistent",
    "refuted": "refuted",
}


def table(runs: list[dict[str, Any]]) -> str:
    """The numbers of all seeds as Markdown."""
    lines = [f"| map | {' | '.join(COLUMNS.values())} |", "| --- " * (len(COLUMNS) + 1) + "|"]
    for name in runs[0]["methods"]:
        cells = [" / ".join(f"{run['methods'][name][key]:.2f}" for run in runs) for key in COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, runs: list[dict[str, Any]]) -> str:
    """The page with its table renewed."""
    head, begin, rest = page.partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- end of table -->")
    return f"{head}{begin}\n{table(runs)}\n\n{end}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="file for the numbers")
    parser.add_argument("--page", type=Path, help="Markdown page whose table to renew")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--count", type=int, default=96, help="pictures a seed")
    parser.add_argument("--render", action="store_true", help="measure nothing: renew the page from the numbers")
    asked = parser.parse_args()
    if asked.render:
        runs = json.loads(asked.json.read_text(encoding="utf-8"))
    else:
        torch.set_num_threads(1)  # the model is too small to gain from more
        runs = []
        for seed in asked.seeds:
            runs.append(measure(seed, asked.count, show_progress=True))
            print(f"seed {seed}: accuracy {runs[-1]['accuracy']:.3f}", file=sys.stderr)
        write_text(asked.json, json.dumps(runs, indent=1) + "\n")
    print(table(runs))
    if asked.page:
        write_text(asked.page, with_table(asked.page.read_text(encoding="utf-8"), runs))


if __name__ == "__main__":
    main()
