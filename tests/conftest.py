"""What every test shares: where the reference data lies, and a small model with no zeros in it."""

import logging
import os
from pathlib import Path

import pytest
import torch

from vitreous.config import ViTConfig
from vitreous.model import VisionTransformer

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


def shared(path: str) -> Path:
    """A file of the reference data that lies beside the checkout; the test skips where it does not."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"reference data {found} is not here")
    return found


def randomise(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random values everywhere, so that no zero head, zero bias or unit scale can hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name and name.endswith("weight") else 0.2 * noise)
    return model


TINY = dict(image_size=32, patch_size=8, hidden_size=48, num_layers=3, num_heads=3, mlp_dim=96, num_classes=7)


def tiny(seed: int = 0, **overrides: object) -> VisionTransformer:
    """A ViT that runs in milliseconds, with random weights and no zeros, in evaluation mode."""
    model = VisionTransformer(ViTConfig(**{**TINY, **overrides}))
    return randomise(model, seed).eval()


def write_pictures(root: Path, classes: dict[str, int], size: tuple[int, int] = (40, 40), seed: int = 0) -> Path:
    """A folder of class folders with noisy pictures whose colour tells the class; returns the folder."""
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(seed)
    for place, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        colour = np.array([(place * 83) % 256, (place * 151 + 60) % 256, (200 - place * 67) % 256])
        for i in range(count):
            noise = numbers.normal(0, 25, (*size, 3))
            Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8)).save(root / name / f"{i:03}.png")
    return root


@pytest.fixture(autouse=True)
def plain_logging():
    """A command sets up its own logging; what it leaves must not reach the next test."""
    logger = logging.getLogger("vitreous")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = before[0], before[1]
    logger.setLevel(before[2])
