"""Every method on every kind of model: its shape, its kind, and that nothing of the model changes."""

import pytest
import torch

from tests.conftest import tiny
from tests.explain.conftest import images_for
from vitreous.explain import METHODS, Kind

SHAPES = [
    {},
    {"classifier": "gap"},
    {"classifier": "gap", "gap_class_token": True},
    {"image_size": (56, 96), "hidden_size": 32, "num_heads": 2},
    {"resnet": {"num_layers": (1, 1), "width_factor": 0.5}, "patch_size": 1},
]


@pytest.mark.parametrize("overrides", SHAPES)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_on_every_kind_of_model(overrides, name):
    settings = {"rise": {"n": 16}, "integrated_gradients": {"steps": 4}}.get(name, {})
    model = tiny(**overrides)
    images = images_for(model)
    torch.manual_seed(0)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    model.train()
    state = torch.get_rng_state()
    made = METHODS[name](model, images, **settings)
    assert made.values.shape == (2, *model.config.grid)
    assert made.values.dtype == torch.float32
    assert made.values.isfinite().all()
    # Explaining changes nothing.
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    # Only what was tested by removing something may speak of the prediction.
    assert (made.kind is Kind.INTERVENTION) == (name in ("occlusion", "rise"))
    assert "explanation" not in made.caption.lower()


@pytest.mark.parametrize("name", ["attention", "rollout", "occlusion", "chefer", "integrated_gradients"])
def test_a_picture_does_not_depend_on_its_neighbours(name):
    model = tiny()
    images = images_for(model, 3)
    together = METHODS[name](model, images).values
    for i in range(3):
        torch.testing.assert_close(METHODS[name](model, images[i : i + 1]).values[0], together[i], atol=1e-5, rtol=1e-4)
