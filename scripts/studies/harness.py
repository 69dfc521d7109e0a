"""What the studies share: the command line, the files they write, the bundled pictures, and a short training loop.

A study is a module with `measure(quick) -> numbers`, `figure(numbers)` and `page(numbers)`. The page and the
figure are made of the numbers alone, which lie beside them as JSON.
"""

import argparse
import hashlib
import io
import json
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import VisionTransformer, ViTConfig
from vitreous.base.files import atomic_path, write_text
from vitreous.base.seeds import derive, seeded
from vitreous.report.style import STYLE, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "studies"
SAMPLE = ROOT / "vitreous" / "assets" / "sign-language-digits.zip"
MEAN, STD = (0.673, 0.644, 0.616), (0.146, 0.160, 0.185)  # of the training pictures
COLOURS = ("#2f6fde", "#d9722e", "#2a9d6f", "#7a4fb5", "#b0323c", "#8a94a3")
CACHE = ROOT / "build" / "studies"  # trained models, so that a study goes on where it was stopped
BATCH, STEPS, LR = 32, 400, 2e-3  # of the small ViT that several studies look at
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """The bundled hand signs as tensors: (n, 3, 64, 64) normalised pictures and (n,) classes."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]


def sample(limit: int | None = None) -> Sample:
    """All pictures, or of each part every n-th so that at most `limit` remain."""
    from PIL import Image

    parts: dict[str, tuple[list[np.ndarray], list[int]]] = {"train": ([], []), "val": ([], [])}
    with zipfile.ZipFile(SAMPLE) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        for part, (pictures, classes) in parts.items():
            chosen = [name for name in names if name.startswith(f"{part}/")]
            for name in chosen[:: max(len(chosen) // limit, 1) if limit else 1]:
                with Image.open(io.BytesIO(archive.read(name))) as picture:
                    pictures.append(np.asarray(picture.convert("RGB")))
                classes.append(int(name.split("/")[1]))
    return Sample(*(_tensors(*parts[part]) for part in ("train", "val")))


def _tensors(pictures: list[np.ndarray], classes: list[int]) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255  # (n, 3, 64, 64)
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (x - mean) / std, torch.tensor(classes)


def shrink(x: Tensor, size: int) -> Tensor:
    """(n, C, H, W) -> (n, C, size, size), antialiased."""
    if x.shape[-1] == size:
        return x
    return F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=True)


def crops(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Random crops of 60 to 100 % of each picture's area, resized: (n, C, H, W) -> (n, C, size, size)."""
    n = len(x)
    side = (0.6 + 0.4 * torch.rand(n, generator=generator)).sqrt()  # share of the picture's
    corner = (1 - side)[:, None] * (2 * torch.rand(n, 2, generator=generator) - 1)  # of the middle, -1 to 1
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = side
    theta[:, :, 2] = corner
    grid = F.affine_grid(theta, [n, x.shape[1], size, size], align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def train(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    *,
    size: int,
    steps: int,
    seed: int,
    batch_size: int = BATCH,
    lr: float = LR,
    sgd: bool = False,
) -> None:
    """AdamW or SGD with momentum, warm-up over a tenth, cosine to zero; random crops; everything drawn from the seed."""
    x, y = data
    optimizer: torch.optim.Optimizer
    if sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / max(steps // 10, 1), 0.5 + 0.5 * float(np.cos(np.pi * step / steps))),
    )
    model.train()
    for step in range(steps):
        generator = torch.Generator().manual_seed(derive(seed, "batch", step))
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        loss = F.cross_entropy(model(crops(x[rows], size, generator)), y[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def trained(name: str, model: nn.Module, data: Sample, *, size: int, steps: int, seed: int, quick: bool) -> float:
    """`train`, or what it once led to from the same start; returns the seconds of one core that it took then.

    Args:
        name: of the cached file, together with the steps, the seed and a checksum of the random weights.
        quick: do not cache.
    """
    from safetensors.torch import load_file, save_file

    start = {key: value.detach().clone() for key, value in model.state_dict().items()}
    path = CACHE / f"{name}-{steps}-{seed}-{_checksum(start)}.safetensors"
    if path.exists() and not quick:
        state = load_file(path)
        seconds = float(state.pop("cpu_seconds"))
        model.load_state_dict(state)
        model.eval()
        return seconds
    began = time.process_time()
    train(model, data.train, size=size, steps=steps, seed=seed)
    seconds = time.process_time() - began
    if not quick:
        state = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
        with atomic_path(path) as part:
            save_file(state | {"cpu_seconds": torch.tensor(seconds)}, part)
    return seconds


def _checksum(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, value in state.items():
        digest.update(key.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]


def trained_vit(seed: int, data: Sample, quick: bool) -> tuple[VisionTransformer, float]:
    """The small ViT trained on the hand signs, and the seconds of one core that it took."""
    model = small_vit(seed)
    steps = 2 if quick else STEPS
    return model, trained("vit", model, data, size=SMALL.image_size[0], steps=steps, seed=seed, quick=quick)


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, batch_size: int = 128) -> Tensor:
    """(n, C, H, W) -> (n,) classes."""
    return torch.cat([model(part).argmax(dim=1) for part in x.split(batch_size)])


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor], size: int) -> float:
    """Share of right answers on whole pictures, in percent."""
    return 100 * float((predict(model, shrink(data[0], size)) == data[1]).double().mean())


SMALL = ViTConfig(
    image_size=32, patch_size=8, hidden_size=64, num_layers=3, num_heads=4, mlp_dim=256, num_classes=10
)  # fmt: skip


def small_vit(seed: int, **changes: Any) -> VisionTransformer:
    """The ViT of the studies, from random weights; a head of small random numbers so that it says something."""
    with seeded(seed):
        model = VisionTransformer(SMALL.replace(**changes))
    return model


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 of a single value)."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


def pm(values: Sequence[float], digits: int = 1) -> str:
    """`81.2 ± 0.9`."""
    mean, std = mean_std(values)
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column to the left, the others to the right."""
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def note(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def main(
    name: str,
    measure: Callable[..., Numbers],
    figure: "Callable[[Numbers], Figure]",
    page: Callable[[Numbers], str],
    arguments: Sequence[str] | None = None,
    **optional: Path,
) -> None:
    """The command line of a study; `optional` are extra files that it can take, by name, each with its default."""
    parser = argparse.ArgumentParser(description=sys.modules[measure.__module__].__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that it runs, measures nothing")
    parser.add_argument("--out", type=Path, default=PAGES, help="folder for page, figure and numbers")
    parser.add_argument("--redraw", action="store_true", help="page and figure from the numbers that lie there")
    for extra, default in optional.items():
        parser.add_argument(f"--{extra}", type=Path, default=default, help="default: %(default)s")
    asked = parser.parse_args(arguments)
    numbers_file = asked.out / f"{name}.json"
    if asked.redraw:
        numbers = json.loads(numbers_file.read_text(encoding="utf-8"))
    else:
        torch.set_num_threads(1)  # models this small gain nothing from more
        start = time.process_time()
        numbers = measure(asked.quick, **{extra: getattr(asked, extra) for extra in optional})
        numbers["cpu_seconds"] = round(time.process_time() - start + numbers.pop("cached_seconds", 0))
        write_text(numbers_file, json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    write_text(asked.out / f"{name}.svg", draw(figure, numbers))
    write_text(asked.out / f"{name}.md", page(numbers))


def draw(figure: "Callable[[Numbers], Figure]", numbers: Numbers) -> str:
    """The figure in the house style, as an SVG file whose bytes depend on the numbers alone."""
    import matplotlib

    style: dict[Any, Any] = {**STYLE, "svg.hashsalt": "vitreous"}
    with matplotlib.rc_context(style):
        text = svg(figure(numbers))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}'


def closing(numbers: Numbers, name: str) -> str:
    """The last lines of every page."""
    return (
        f"Made by `python -m scripts.studies.{name}` in {numbers['cpu_seconds']:,} s of one core; "
        f"the numbers are in [{name}.json]({name}.json).\n"
    )
