"""Maps against their definitions, against captum, and against evidence that was planted."""

from dataclasses import replace

import pytest
import torch

from scripts import planted_evidence
from tests.conftest import shared, tiny
from vitreous.base.errors import TooLarge
from vitreous.classifier import Classifier, load
from vitreous.explain import (
    METHODS,
    Kind,
    Verdict,
    ask,
    attention,
    compare,
    direct_contributions,
    edges,
    given,
    integrated_gradients,
    logit_lens,
    occlusion,
    pointing,
    readout_attention,
    rise,
    rollout,
    token_norms,
)
from vitreous.explain.methods.reads import roll
from vitreous.explain.verification.verify import verify
from vitreous.model import patchify
from vitreous.pictures.preprocess import Preprocess

EFFECTS = ("grad_attention", "chefer", "integrated_gradients", "occlusion", "rise")
SHAPES = [
    {},
    {"classifier": "gap"},
    {"classifier": "gap", "gap_class_token": True},
    {"image_size": (56, 96), "hidden_size": 32, "num_heads": 2},
    {"resnet": {"num_layers": (1, 1), "width_factor": 0.5}, "patch_size": 1},
]


def images_for(model, count=2, seed=0):
    return torch.randn(count, 3, *model.config.image_size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def planted():
    """A ViT that can decide by one patch alone, with pictures whose evidence is known."""
    model, accuracy = planted_evidence.train(seed=0)
    assert accuracy > 0.97
    pictures, classes, evidence, distractor = planted_evidence.pictures(32, seed=99)
    return ask(model, pictures, target=classes.tolist()), evidence, distractor


def test_interventions_and_gradients_point_at_the_planted_evidence(planted):
    question, evidence, distractor = planted
    for method in (occlusion, integrated_gradients):
        hits = [pointing(m, e) for m, e in zip(method(question).values, evidence, strict=True)]
        assert sum(hits) / len(hits) >= 0.9
    blind = edges(question).values
    assert sum(pointing(m, d) for m, d in zip(blind, distractor, strict=True)) / len(blind) >= 0.9


def test_the_verdict_refutes_the_blind_map_and_not_occlusion(planted):
    whole, evidence, _ = planted
    question = ask(whole.model, whole.images[:12], target=whole.target[:12].tolist())
    evidence = evidence[:12]
    blind = [check.verdict for check in edges(question).verify()]
    assert blind.count(Verdict.REFUTED) >= 11
    true = [check.verdict for check in occlusion(question).verify()]
    assert true.count(Verdict.REFUTED) == 0
    assert true.count(Verdict.CONSISTENT) >= 6
    reads = attention(question)
    missed = [pointing(m, e) == 0 for m, e in zip(reads.values, evidence, strict=True)]
    verdicts = [check.verdict for check in reads.verify()]
    assert not any(w and v is Verdict.CONSISTENT for w, v in zip(missed, verdicts, strict=True))
    # How often attention itself is wrong depends on how training rounds; where another picture is read it is.
    reads = replace(reads, values=reads.values.roll(1, 0))
    wrong = [pointing(m, e) == 0 for m, e in zip(reads.values, evidence, strict=True)]
    said = [check.verdict is Verdict.REFUTED for check in reads.verify()]
    assert sum(wrong) >= 4
    assert sum(w and s for w, s in zip(wrong, said, strict=True)) >= 0.7 * sum(wrong)


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


def test_a_constant_model_has_nothing_to_explain():
    model = tiny()
    with torch.no_grad():
        model.head.weight.zero_()
    made = occlusion(model, images_for(model))
    assert not made.values.any()
    assert {check.verdict for check in made.verify(budget="quick")} == {Verdict.NOTHING_TO_EXPLAIN}


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


def test_ties_are_neither_good_nor_bad():
    model = tiny()
    question = ask(model, images_for(model, 1))
    flat = given(question, torch.zeros(1, 4, 4), method="flat", caption="nothing")
    (check,) = verify(flat, budget="quick")
    test = check.tests[0]
    # Ties are broken at random, never from the top left: what it does is what a random order does.
    spread = test.random.high - test.random.low
    assert test.random.low - spread <= test.deletion <= test.random.high + spread


def test_half_precision_and_memory():
    model = tiny().bfloat16()
    made = compare(model, images_for(model), methods=("attention", "occlusion", "chefer"))
    assert all(m.values.isfinite().all() for m in made.values())
    with pytest.raises(TooLarge, match=r"bytes|GiB|MiB|KiB"):
        METHODS["chefer"](tiny(), images_for(tiny()), max_bytes=10)


def test_rise_says_how_sure_it_is():
    model = tiny()
    made = rise(model, images_for(model, 1), n=64)
    error = next(v for k, v in made.details.items() if "error" in k)
    assert (error > 0).all()


def test_the_real_dinov2_attention():
    from safetensors.torch import load_file

    clf = load(shared("weights/dinov2-vits14-saliency.safetensors"), image_size=224)
    golden = load_file(shared("golden/dinov2-vits14.io.safetensors"))
    images, wanted = golden["224/images"].float(), golden["224/attention_last_layer"]
    row = wanted[:, :, 0].mean(1)  # (1, 257)
    made = attention(clf.model, images)
    torch.testing.assert_close(made.values.flatten(1), row[:, 1:], atol=1e-5, rtol=0)


def test_every_exported_picture_carries_its_caption(tmp_path):
    clf = Classifier(tiny(), Preprocess.preset("google", size=32), tuple("abcdefg"))
    picture = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    made = occlusion(clf, [picture])
    for word in ("occlusion", "UNTESTED", "p = ", "vitreous"):
        assert word in made.stamp()
    made.save(tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 5000
    assert '"method": "occlusion"' in made.to_json()


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
