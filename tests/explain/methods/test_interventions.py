"""Occlusion and RISE against a linear model, against captum, and against evidence that was planted."""

import torch

from tests.conftest import tiny
from tests.explain.conftest import images_for
from vitreous.explain import ask, edges, integrated_gradients, occlusion, pointing, rise
from vitreous.model import patchify


def test_interventions_and_gradients_point_at_the_planted_evidence(planted):
    question, evidence, distractor = planted
    for method in (occlusion, integrated_gradients):
        hits = [pointing(m, e) for m, e in zip(method(question).values, evidence, strict=True)]
        assert sum(hits) / len(hits) >= 0.9
    blind = edges(question).values
    assert sum(pointing(m, d) for m, d in zip(blind, distractor, strict=True)) / len(blind) >= 0.9


def test_a_linear_model_is_explained_exactly():
    """Blocks and norm zeroed to nothing: the score is linear, so occlusion by the mean equals integrated gradients."""
    model = tiny(classifier="gap", num_classes=2)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.out.weight.zero_()
            block.attention.out.bias.zero_()
            block.mlp.fc2.weight.zero_()
            block.mlp.fc2.bias.zero_()
    model.norm = torch.nn.Identity()
    images = images_for(model, 1)
    question = ask(model, images, target=1, score="logit")
    by_mean = occlusion(question, remove="mean").values
    weight = model.head.weight[1] @ model.patch_embedding.projection.weight.flatten(1) / model.config.num_patches
    by_hand = (patchify(images, (8, 8)) @ weight).view(1, 4, 4)
    torch.testing.assert_close(by_mean, by_hand, atol=1e-4, rtol=1e-4)


def test_rise_says_how_sure_it_is():
    model = tiny()
    made = rise(model, images_for(model, 1), n=64)
    error = next(v for k, v in made.details.items() if "error" in k)
    assert (error > 0).all()
