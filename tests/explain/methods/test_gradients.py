"""Integrated gradients and occlusion against captum; memory is asked for before it is taken."""

import pytest
import torch

from tests.conftest import tiny
from tests.explain.conftest import images_for
from vitreous.base.errors import TooLarge
from vitreous.explain import METHODS, ask, compare, integrated_gradients, occlusion


def test_occlusion_and_integrated_gradients_are_captums():
    from captum.attr import IntegratedGradients, Occlusion

    model = tiny()
    images = images_for(model, 1)
    question = ask(model, images, score="logit")
    target = int(question.target[0])
    theirs = Occlusion(model).attribute(
        images, sliding_window_shapes=(3, 8, 8), strides=(3, 8, 8), target=target, baselines=0
    )
    ours = occlusion(question, remove="mean").values
    torch.testing.assert_close(ours[0], theirs[0, 0, ::8, ::8].float(), atol=1e-5, rtol=1e-4)
    from vitreous.explain.removal import blurred

    theirs = sum(
        IntegratedGradients(model).attribute(images, start, target=target, n_steps=64, method="riemann_middle")
        for start in (blurred(images), torch.zeros_like(images))
    )
    by_patch = (theirs[0] / 2).sum(0).unfold(0, 8, 8).unfold(1, 8, 8).sum((-1, -2))
    torch.testing.assert_close(
        integrated_gradients(question, steps=64).values[0], by_patch.float(), atol=1e-4, rtol=1e-3
    )


def test_half_precision_and_memory():
    model = tiny().bfloat16()
    made = compare(model, images_for(model), methods=("attention", "occlusion", "chefer"))
    assert all(m.values.isfinite().all() for m in made.values())
    with pytest.raises(TooLarge, match=r"bytes|GiB|MiB|KiB"):
        METHODS["chefer"](tiny(), images_for(tiny()), max_bytes=10)
