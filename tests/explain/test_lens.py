"""The logit lens ends at the prediction, and the direct contributions add up to it."""

import torch

from tests.conftest import tiny
from tests.explain.conftest import images_for
from vitreous.explain import direct_contributions, integrated_gradients, logit_lens, token_norms


def test_completeness_of_integrated_gradients_and_of_direct_contributions():
    model = tiny()
    images = images_for(model)
    made = integrated_gradients(model, images)
    assert (made.details["incompleteness"] <= 0.05).all()
    contributions = direct_contributions(model, images)
    centred = model(images) - model(images).mean(1, keepdim=True)
    wanted = centred.max(dim=1).values  # of the most probable class
    torch.testing.assert_close(contributions.total, wanted, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(contributions.values.sum(1), wanted, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_logit_lens_ends_at_the_prediction():
    model = tiny()
    images = images_for(model)
    lens = logit_lens(model, images)
    probability = model(images).softmax(-1).max(-1).values
    torch.testing.assert_close(lens.probability[:, -1], probability, atol=1e-5, rtol=1e-4)
    assert token_norms(model, images).norms.shape[0] == 2
