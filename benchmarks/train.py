"""Images a second of a training step of Ti/16 and B/16 at 224 pixels: beside timm, transformers and torchvision.

Forward, loss, backward and AdamW's step, in float32, on random images that lie in memory: what
reading pictures costs is `benchmarks.data`'s question. Every library has the same batch, the same
optimiser with the same settings, and random weights; none has dropout. torchvision has no Ti/16 by
name and builds one by its own class.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import Case, Report, run_cases

SIZES = {"Ti/16": (192, 3, 16, 8), "B/16": (768, 12, 8, 2)}  # width, heads, batch, steps that are timed
CLASSES = 1000
LIBRARIES = ("vitreous", "timm", "transformers", "torchvision")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """B/16 takes ten times as long as Ti/16."""
    parser.add_argument("--models", default="Ti/16", help=f"of {','.join(SIZES)} (default Ti/16)")


def run(*, rounds: int, threads: int, models: str) -> Report:
    """Every size with every library."""
    samples = run_cases(make_cases(models, "benchmarks.train:train"), rounds=rounds, threads=threads)
    pictures = {f"{size}, batch {batch}": batch * steps for size, (_, _, batch, steps) in SIZES.items()}
    speeds = [
        (case, [sample | {"rate": {"seconds": pictures[case.task] / sample["steps"]["seconds"]}} for sample in found])
        for case, found in samples
    ]
    return Report(
        name="train",
        settings={"rounds": rounds, "threads": threads, "sizes": models.split(",")},
        samples=speeds,
        columns={
            "images/s": (lambda s: s["rate"]["seconds"], ".2f"),
            "first step s": (lambda s: s["first"]["seconds"], ".2f"),
            "peak MB": (lambda s: s["steps"]["peak_bytes"] / 2**20, ".0f"),
        },
        note="images/s: of training steps after the first; first step: with all that is set up then; peak: the most "
        "memory over that after the imports.",
    )


def make_cases(models: str, function: str) -> list[Case]:
    """One of each size and library, for a function of the two."""
    return [
        Case(f"{size}, batch {SIZES[size][2]}", library, function, (size, library))
        for size in models.split(",")
        for library in LIBRARIES
    ]


def train(size: str, library: str) -> Iterator[str]:
    """Build the model, one step, then the timed ones."""
    build = builder(size, library)
    yield "import"
    step = prepare(build, size)
    yield "build"
    step()
    yield "first"
    for _ in range(SIZES[size][3]):
        step()
    yield "steps"


def builder(size: str, library: str) -> Callable[[], Any]:
    """What builds the model; the library is imported here."""
    width, heads, _, _ = SIZES[size]
    return BUILDERS[library](width, heads)


def prepare(build: Callable[[], Any], size: str) -> Callable[[], None]:
    """One step of training, ready to be taken."""
    import torch
    import torch.nn.functional as F

    batch = SIZES[size][2]
    torch.manual_seed(0)
    model = build().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(CLASSES, (batch,))

    def step() -> None:
        logits = model(images)
        loss = F.cross_entropy(getattr(logits, "logits", logits), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _vitreous(width: int, heads: int) -> Any:
    from vitreous.config import ViTConfig
    from vitreous.model import VisionTransformer

    settings: dict[str, Any] = dict(hidden_size=width, num_heads=heads, mlp_dim=4 * width)
    return lambda: VisionTransformer(ViTConfig(**settings, gelu="erf"))  # as the others compute it


def _timm(width: int, heads: int) -> Any:
    from timm.models.vision_transformer import VisionTransformer

    return lambda: VisionTransformer(embed_dim=width, num_heads=heads)


def _transformers(width: int, heads: int) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    settings: dict[str, Any] = dict(hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
    return lambda: ViTForImageClassification(
        ViTConfig(**settings, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )


def _torchvision(width: int, heads: int) -> Any:
    from torchvision.models.vision_transformer import VisionTransformer

    return lambda: VisionTransformer(
        image_size=224, patch_size=16, num_layers=12, num_heads=heads, hidden_dim=width, mlp_dim=4 * width
    )


BUILDERS = {"vitreous": _vitreous, "timm": _timm, "transformers": _transformers, "torchvision": _torchvision}
