"""Attention against the model, rollout against its formula, and the real DINOv2."""

import pytest
import torch

from tests.conftest import shared, tiny
from tests.explain.conftest import images_for
from vitreous.classifier import load
from vitreous.explain import ask, attention, readout_attention, rollout
from vitreous.explain.methods.reads import roll


def test_attention_is_the_row_of_the_model():
    model = tiny()
    images = images_for(model)
    row = model.attention(images, layers=[-1], queries=[0])[:, 0, :, 0].mean(1)  # (B, S)
    torch.testing.assert_close(attention(model, images).values.flatten(1), row[:, 1:], atol=1e-6, rtol=1e-5)


def test_rollout_of_uniform_and_identity_attention():
    uniform = [torch.full((1, 5, 5), 0.2)] * 3
    rolled = roll(uniform)
    assert rolled[0, 0, 1].item() == pytest.approx((1 - 2**-3) / 5)  # 0.175
    assert rolled[0, 0, 0].item() == pytest.approx(2**-3 + (1 - 2**-3) / 5)  # 0.3
    eye = [torch.eye(5)[None]] * 3
    torch.testing.assert_close(roll(eye), torch.eye(5)[None])
    some = [torch.rand(1, 5, 5).softmax(-1) for _ in range(4)]
    torch.testing.assert_close(roll(some).sum(-1), torch.ones(1, 5))
    torch.testing.assert_close(roll(some, alpha=0.0), torch.eye(5)[None])
    torch.testing.assert_close(roll(some[:1], alpha=1.0), some[0])
    assert rollout(tiny(classifier="gap"), torch.randn(1, 3, 32, 32)).values.isfinite().all()


def test_the_real_dinov2_attention():
    from safetensors.torch import load_file

    clf = load(shared("weights/dinov2-vits14-saliency.safetensors"), image_size=224)
    golden = load_file(shared("golden/dinov2-vits14.io.safetensors"))
    images, wanted = golden["224/images"].float(), golden["224/attention_last_layer"]
    row = wanted[:, :, 0].mean(1)  # (1, 257)
    made = attention(clf.model, images)
    torch.testing.assert_close(made.values.flatten(1), row[:, 1:], atol=1e-5, rtol=0)


def test_reading_attention_takes_no_second_pass_for_the_answer(monkeypatch):
    model = tiny(num_classes=5)
    images = images_for(model)
    expected = ask(model, images).logits

    def second_pass(*_):
        raise AssertionError("a second pass")

    monkeypatch.setattr("vitreous.explain.question.logits_of", second_pass)
    question = ask(model, images)
    read = readout_attention(question)
    assert torch.equal(question.target, expected.argmax(dim=1))
    assert (read.logits - expected).abs().max() <= 1e-5 * expected.abs().max()
