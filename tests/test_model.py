"""The model against the official one, and against its own definition."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.conftest import randomise, shared, tiny
from vitreous.base.errors import ConfigError, ImageError
from vitreous.config import ViTConfig
from vitreous.model import CLS, Attention, StochasticDepth, VisionTransformer, patchify
from vitreous.weights import google

CASES = ("token", "prelogits", "gap", "hybrid-stem", "hybrid-stages")


def golden(case):
    config = ViTConfig(**json.loads(shared("golden/cases.json").read_text())[case])
    checkpoint = google.read(shared(f"golden/{case}.params.npz"))
    assert checkpoint.config == config
    numbers = np.load(shared(f"golden/{case}.io.npz"))
    images = torch.from_numpy(numbers["images_nhwc"]).permute(0, 3, 1, 2).contiguous()
    return checkpoint.build(case), images, numbers


def assert_near(ours, wanted, what):
    difference = np.abs(ours.detach().numpy() - wanted).max() / np.abs(wanted).max()
    assert difference <= 1e-5, f"{what} differs by {difference:.1e} of its largest value"


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_every_intermediate_of_the_official_model(case):
    model, images, numbers = golden(case)
    found = {}
    states = model.hidden_states(images)
    found["Transformer/posembed_input"] = found["Transformer/Dropout_0"] = states[0]
    for i, state in enumerate(states[1:]):
        found[f"Transformer/encoderblock_{i}"] = state
    found["Transformer/encoder_norm"] = found["Transformer"] = model.features(images)
    x = images
    if model.stem is not None:
        root = model.stem.root(images)
        found["conv_root"], found["gn_root"] = _nhwc(root), _nhwc(model.stem.root_norm(root))
        x = F.relu(model.stem.root_norm(root))
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1)), 3, 2)  # 32 -> 16 cells: SAME pads one at the end
        for s, stage in enumerate(model.stem.stages, start=1):
            for u, unit in enumerate(stage, start=1):
                x = unit(x)
                found[f"block{s}/unit{u}"] = found[f"block{s}"] = _nhwc(x)
        torch.testing.assert_close(model.stem(images), x)
    found["embedding"] = model.patch_embedding(x).unflatten(1, model.config.grid)
    pooled = states[-1].new_tensor(numbers["intermediate/Transformer"])
    pooled = pooled[:, 0] if model.config.classifier == "token" else pooled.mean(1)
    found["pre_logits"] = pooled if model.pre_logits is None else torch.tanh(model.pre_logits(pooled))
    if "intermediate/pre_logits" in numbers and model.pre_logits is not None:
        wanted = numbers["intermediate/pre_logits"]  # before or after the tanh
        near = np.abs(found["pre_logits"].numpy() - wanted).max() < 1e-5
        found["pre_logits"] = found["pre_logits"] if near else model.pre_logits(pooled)
    found["head"] = found["__call__"] = model(images)
    names = [name.removeprefix("intermediate/") for name in numbers.files if name.startswith("intermediate/")]
    assert set(names) == set(found)
    for name in names:
        assert_near(found[name], numbers[f"intermediate/{name}"], name)
    assert_near(model(images), numbers["logits"], "logits")


def _nhwc(x):
    return x.permute(0, 2, 3, 1)


@pytest.mark.parametrize(("size", "patch"), [((32, 32), (8, 8)), ((24, 40), (8, 8)), ((24, 40), (4, 8))])
def test_patch_embedding_is_a_convolution_and_the_order_of_flattening_matters(size, patch):
    torch.manual_seed(0)
    embedding = tiny(image_size=size, patch_size=patch).patch_embedding
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(embedding(images), embedding.as_convolution(images), atol=3e-5, rtol=0)
    # Google's kernels are (row, column, channel): flattened so, they belong to patches flattened so.
    rows_first = embedding.projection.weight.permute(0, 2, 3, 1).flatten(1)
    wrong = F.linear(patchify(images, patch), rows_first, embedding.projection.bias)
    assert (wrong - embedding(images)).abs().max() > 1
    p1, p2 = patch
    patches = patchify(images, patch).unflatten(-1, (3, p1, p2)).permute(0, 1, 3, 4, 2).flatten(2)
    right = F.linear(patches, rows_first, embedding.projection.bias)
    torch.testing.assert_close(right, embedding(images), atol=3e-5, rtol=0)


def test_patches_run_row_by_row():
    images = torch.arange(6 * 4).float().reshape(1, 1, 4, 6)
    assert patchify(images, (2, 3))[0].tolist() == [
        [0, 1, 2, 6, 7, 8],
        [3, 4, 5, 9, 10, 11],
        [12, 13, 14, 18, 19, 20],
        [15, 16, 17, 21, 22, 23],
    ]


def test_gelu_variants_differ_as_much_as_known():
    x = torch.linspace(-6, 6, 1_200_001, dtype=torch.float64)
    difference = (F.gelu(x) - F.gelu(x, approximate="tanh")).abs()
    assert difference.max().item() == pytest.approx(4.732e-4, abs=1e-7)
    assert x[difference.argmax()].abs().item() == pytest.approx(2.699, abs=1e-3)
    images = torch.randn(2, 3, 32, 32)
    official, other = tiny(gelu="tanh"), tiny(gelu="erf")
    assert 1e-5 < (official(images) - other(images)).abs().max() < 1e-1


def test_layer_norm_eps_is_the_configured_one():
    x = torch.randn(1, 768, dtype=torch.float64)
    x = (x - x.mean()) / x.std(correction=0) * 1e-3
    ours = {eps: tiny(hidden_size=768, num_heads=3, layer_norm_eps=eps).norm.double() for eps in (1e-6, 1e-12)}
    outputs = {eps: (norm(x) - norm.bias) / norm.weight for eps, norm in ours.items()}
    assert (outputs[1e-12] / outputs[1e-6]).median().item() == pytest.approx(math.sqrt(2), abs=1e-4)


@pytest.mark.parametrize(
    "overrides", [{}, {"classifier": "gap"}, {"representation_size": 20}, {"image_size": (16, 40)}]
)
def test_the_trimmed_last_block_is_exact_in_value_and_gradient(overrides):
    model = tiny(**overrides)
    images = torch.randn(3, 3, *model.config.image_size)
    x = model.features(images)
    x = x[:, 0] if model.config.classifier == "token" else x.mean(1)
    whole = model.head(x if model.pre_logits is None else torch.tanh(model.pre_logits(x)))
    trimmed = model(images)
    torch.testing.assert_close(trimmed, whole, atol=2e-5, rtol=1e-5)
    weights = torch.randn_like(whole)
    parameters = list(model.parameters())
    for ours, wanted in zip(
        torch.autograd.grad((trimmed * weights).sum(), parameters),
        torch.autograd.grad((whole * weights).sum(), parameters),
        strict=True,
    ):
        assert (ours - wanted).abs().max() <= 1e-6 * max(wanted.abs().max().item(), 1)


@pytest.mark.parametrize("overrides", [{}, {"classifier": "gap"}, {"image_size": (16, 40)}])
@torch.no_grad()
def test_attention_is_what_the_fused_pass_uses(overrides, monkeypatch):
    model = tiny(**overrides)
    images, s = torch.randn(2, 3, *model.config.image_size), model.config.num_tokens
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    maps = model.attention(images, layers=[-1, 0])
    assert maps.shape == (2, 2, 3, s, s)
    assert len(calls) == 2  # the blocks before the last one run on the fused attention
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 2, 3, s), atol=1e-6, rtol=0)
    for place, layer in enumerate([2, 0]):
        block, x = model.blocks[layer], model.hidden_states(images)[layer]
        v = block.attention.project(block.norm1(x))[2]
        read = block.attention.out((maps[:, place] @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(read, block.attention(block.norm1(x)), atol=1e-6, rtol=1e-5)
    assert torch.equal(model.attention(images, layers=[2, 0], queries=[0, 3]), maps[:, :, :, [0, 3]]) or torch.allclose(
        model.attention(images, layers=[2, 0], queries=[0, 3]), maps[:, :, :, [0, 3]], atol=1e-6
    )


def test_attention_refuses_what_does_not_exist():
    model, images = tiny(), torch.zeros(1, 3, 32, 32)
    for kwargs in (dict(layers=[3]), dict(layers=[-4]), dict(layers=[]), dict(queries=[17]), dict(queries=[])):
        with pytest.raises(ConfigError):
            model.attention(images, **kwargs)


@torch.no_grad()
def test_hidden_states_are_the_residual_stream():
    model, images = tiny(), torch.randn(2, 3, 32, 32)
    states = model.hidden_states(images)
    assert [tuple(s.shape) for s in states] == [(2, 17, 48)] * 4
    assert torch.equal(model.norm(states[-1]), model.features(images))
    for block, before, after in zip(model.blocks, states, states[1:], strict=False):
        assert torch.equal(block(before), after)


@torch.no_grad()
def test_without_positions_patches_are_a_set():
    model, images = tiny(), torch.randn(1, 3, 32, 32)
    order = torch.randperm(16)
    shuffled = patchify(images, (8, 8))[:, order].unflatten(-1, (3, 8, 8)).unflatten(1, (4, 4))
    shuffled = shuffled.permute(0, 3, 1, 4, 2, 5).reshape(1, 3, 32, 32)
    assert (model(images) - model(shuffled)).abs().max() > 1e-3
    model.position_embedding.zero_()
    before, after = model.features(images), model.features(shuffled)
    torch.testing.assert_close(after[:, 0], before[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after[:, 1:], before[:, 1:][:, order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "overrides", [{}, {"classifier": "gap"}, {"resnet": dict(num_layers=(1, 1), width_factor=0.5), "patch_size": 1}]
)
def test_another_size_after_resizing_the_positions(overrides):
    model = tiny(**overrides)
    before = model.position_embedding.detach().clone()
    prefix = model.config.prefix_tokens
    with pytest.raises(ImageError, match=r"takes 32x32 images, got 16x48.*resize\(\(16, 48\)\)"):
        model(torch.zeros(1, 3, 16, 48))
    assert model.resize((16, 48)) is model
    assert model(torch.zeros(2, 3, 16, 48)).shape == (2, 7)
    assert model.config.grid == (2, 6)
    assert torch.equal(model.position_embedding[:, :prefix], before[:, :prefix])
    assert model.resize(32).config.image_size == (32, 32)


@pytest.mark.parametrize("shape", [(1, 3, 33, 32), (1, 1, 32, 32), (3, 32, 32), (1, 3, 32, 36)])
def test_images_of_a_wrong_shape(shape):
    with pytest.raises(ImageError, match=r"32x32|B, 3, H, W"):
        tiny()(torch.zeros(shape))


def test_official_initialisation():
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(num_layers=1, representation_size=768, num_classes=10))
    block = model.blocks[0]
    xavier = math.sqrt(2 / (768 + 768))
    for matrix in (*block.attention.qkv.weight.chunk(3), block.attention.out.weight):
        assert matrix.std().item() == pytest.approx(xavier, rel=0.01)
        assert matrix.abs().max().item() <= math.sqrt(3) * xavier  # uniform
    assert block.mlp.fc1.weight.std().item() == pytest.approx(math.sqrt(2 / (768 + 3072)), rel=0.01)
    assert block.mlp.fc1.bias.std().item() == pytest.approx(1e-6, rel=0.1)
    assert block.mlp.fc2.bias.std().item() == pytest.approx(1e-6, rel=0.1)
    assert model.patch_embedding.projection.weight.std().item() == pytest.approx(1 / math.sqrt(768), rel=0.01)
    assert model.pre_logits.weight.std().item() == pytest.approx(1 / math.sqrt(768), rel=0.01)
    assert model.position_embedding.std().item() == pytest.approx(0.02, rel=0.01)
    zeros = [model.cls_token, model.head.weight, model.head.bias, model.pre_logits.bias]
    zeros += [model.patch_embedding.projection.bias, block.attention.qkv.bias, block.attention.out.bias]
    assert all(not z.any() for z in zeros)
    ones = [block.norm1.weight, block.norm2.weight, model.norm.weight]
    assert all((o == 1).all() for o in ones)


def test_a_zero_head_starts_at_the_loss_of_guessing():
    model = VisionTransformer(ViTConfig(**{**json_tiny(), "num_classes": 10}))
    loss = F.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4))
    assert loss.item() == pytest.approx(2.302585, abs=1e-6)


def json_tiny():
    return dict(image_size=32, patch_size=8, hidden_size=48, num_layers=2, num_heads=3, mlp_dim=96)


def test_a_new_head_leaves_everything_else():
    model = tiny(representation_size=20)
    before = {n: t.clone() for n, t in model.state_dict().items() if not n.startswith(("head", "pre_logits"))}
    model.reset_head(5)
    after = model.state_dict()
    assert set(after) == {*before, "head.weight", "head.bias"}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not after["head.weight"].any()
    assert (model.config.num_classes, model.config.representation_size) == (5, None)


def test_a_backbone_gives_its_representation():
    model = tiny(num_classes=0)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 48)


def test_dropout_and_stochastic_depth_act_in_training_only():
    rates = dict(dropout_rate=0.3, attention_dropout_rate=0.3, stochastic_depth_rate=0.5)
    model, images = tiny(**rates), torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), tiny()(images))
    model.train()
    assert not torch.equal(model(images), model(images))
    assert [block.stochastic_depth.rate for block in model.blocks] == [0.0, 0.25, 0.5]


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean():
    torch.manual_seed(0)
    x = torch.ones(4000, 3, 2)
    y = StochasticDepth(0.25).train()(x)
    per_image = y.flatten(1)
    assert ((per_image == 0).all(1) | (per_image == 1 / 0.75).all(1)).all()
    assert y.mean().item() == pytest.approx(1.0, abs=0.03)


def test_query_rows_share_the_projection():
    torch.manual_seed(0)
    attention = randomise(Attention(ViTConfig(**json_tiny())))
    x = torch.randn(2, 17, 48)
    torch.testing.assert_close(attention(x, CLS), attention(x)[:, :1], atol=1e-5, rtol=1e-5)


def test_a_compiled_model_makes_q_k_and_v_in_one_product():
    """All blocks but the last, which computes q of one token: torch.compile does not see which slice object it is."""
    seen = []

    def look(graph, _):
        seen.append(sum(node.target is F.linear for node in graph.graph.nodes))
        return graph.forward

    model, images = tiny(), torch.randn(2, 3, 32, 32)
    compiled = torch.compile(model, backend=look, fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))
    assert seen == [1 + 3 * 4 + 1 + 1]  # patches; q k v, out, fc1, fc2; q of CLS; head
