"""Pictures of noise, and a model whose evidence is known."""

import pytest
import torch

from scripts import planted_evidence
from vitreous.explain import ask


def images_for(model, count=2, seed=0):
    return torch.randn(count, 3, *model.config.image_size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def planted():
    """A ViT that can decide by one patch alone, with pictures whose evidence is known."""
    model, accuracy = planted_evidence.train(seed=0)
    assert accuracy > 0.97
    pictures, classes, evidence, distractor = planted_evidence.pictures(32, seed=99)
    return ask(model, pictures, target=classes.tolist()), evidence, distractor
