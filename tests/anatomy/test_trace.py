"""The trace against the model it ran, and its formulas against the shapes that came out."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tiny
from vitreous.anatomy.trace import trace
from vitreous.base.errors import ImageError
from vitreous.config import ResNetConfig, ViTConfig
from vitreous.model import VisionTransformer

HYBRID = {"resnet": ResNetConfig(num_layers=(1, 1), width_factor=0.5), "patch_size": 1}


def test_the_shapes_of_b16() -> None:
    with torch.device("meta"):
        rows = trace(VisionTransformer(ViTConfig.from_name("B/16")), torch.zeros(2, 3, 224, 224)).rows
    block = [
        ("norm", (2, 197, 768)),
        ("queries", (2, 12, 197, 64)),
        ("keys", (2, 12, 197, 64)),
        ("values", (2, 12, 197, 64)),
        ("attention weights", (2, 12, 197, 197)),
        ("head outputs", (2, 12, 197, 64)),
        ("merged heads", (2, 197, 768)),
        ("attention output", (2, 197, 768)),
        ("after attention", (2, 197, 768)),
        ("second norm", (2, 197, 768)),
        ("MLP hidden", (2, 197, 3072)),
        ("MLP output", (2, 197, 768)),
    ]
    assert [(row.stage, row.shape) for row in rows] == [
        ("image", (2, 3, 224, 224)),
        ("flattened patches", (2, 196, 768)),
        ("projected patches", (2, 196, 768)),
        ("tokens with CLS, positions", (2, 197, 768)),
        *((f"block 0: {stage}", shape) for stage, shape in block),
        *((f"block {i}: encoder output", (2, 197, 768)) for i in range(12)),
        ("final norm", (2, 197, 768)),
        ("CLS representation", (2, 768)),
        ("logits", (2, 1000)),
    ]
    assert {row.dtype for row in rows} == {torch.float32}


@pytest.mark.parametrize(
    "overrides",
    [{}, {"classifier": "gap"}, {"representation_size": 20}, {"num_classes": 0}, {"num_layers": 1}, HYBRID],
    ids=["token", "gap", "pre-logits", "no head", "one block", "hybrid"],
)
def test_logits_are_the_models_own(overrides: dict[str, object]) -> None:
    model = tiny(dropout_rate=0.5, attention_dropout_rate=0.5, stochastic_depth_rate=0.5, **overrides)
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    model.train()
    model.blocks[1:].eval()  # a mode of its own for some parts
    modes = [module.training for module in model.modules()]
    logits = trace(model, images).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5 * float(expected.detach().abs().max()))
    assert not logits.requires_grad
    assert [module.training for module in model.modules()] == modes


def test_without_images_one_of_the_configured_size() -> None:
    result = trace(tiny(image_size=(16, 24)).bfloat16())
    assert result.rows[0].shape == (1, 3, 16, 24)
    assert list(result) == list(result.rows)
    dtypes = {row.stage: row.dtype for row in result}
    assert dtypes.pop("block 0: attention weights") == torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    rows = json.loads(json.dumps(result.to_dicts()))
    assert rows[-1] == {"stage": "logits", "formula": "head(y): (B, K)", "shape": [1, 7], "dtype": "bfloat16"}
    assert len(rows) == len(result)


def test_images_of_another_size_are_refused() -> None:
    model = tiny().train()
    with pytest.raises(ImageError, match="takes 32x32 images, got 64x64"):
        trace(model, torch.zeros(1, 3, 64, 64))
    assert all(module.training for module in model.modules())


@st.composite
def configs(draw: st.DrawFn) -> ViTConfig:
    stages = draw(st.none() | st.lists(st.integers(1, 2), max_size=2))
    resnet = None if stages is None else ResNetConfig(num_layers=tuple(stages))
    stride, patch = resnet.stride if resnet else 1, (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    heads, classifier = draw(st.integers(1, 3)), draw(st.sampled_from(["token", "gap"]))
    return ViTConfig(
        image_size=tuple(draw(st.integers(1, 4)) * p * stride for p in patch),
        patch_size=patch,
        in_channels=draw(st.integers(1, 4)),
        hidden_size=heads * draw(st.integers(1, 8)),
        num_layers=draw(st.integers(1, 3)),
        num_heads=heads,
        mlp_dim=draw(st.integers(1, 40)),
        num_classes=draw(st.integers(0, 5)),
        classifier=classifier,
        gap_class_token=classifier == "gap" and draw(st.booleans()),
        norm_after_pooling=classifier == "gap" and draw(st.booleans()),
        representation_size=draw(st.none() | st.integers(1, 9)),
        resnet=resnet,
    )


@settings(max_examples=30, deadline=None)
@given(config=configs(), batch_size=st.integers(1, 3))
def test_formulas_hold_for_the_shapes_of_a_run(config: ViTConfig, batch_size: int) -> None:
    with torch.device("meta"):
        result = trace(VisionTransformer(config), torch.zeros(batch_size, config.in_channels, *config.image_size))
    symbols = letters(config) | {"B": batch_size}
    for row in result:
        shape = row.formula.rpartition(": ")[2]
        assert eval(shape.replace("·", "*").replace("²", "**2").replace("'", "_"), {}, symbols) == row.shape, row
    stages = [row.stage for row in result]
    assert len(set(stages)) == len(stages)
    assert ("stem output" in stages, "tokens with CLS, positions" in stages) == (
        config.resnet is not None,
        config.classifier == "token" or config.gap_class_token,
    )
    assert ("pre-logits" in stages, "logits" in stages) == (
        config.representation_size is not None,
        config.num_classes > 0,
    )
    assert sum(stage.endswith("encoder output") for stage in stages) == config.num_layers


def letters(config: ViTConfig) -> dict[str, int]:
    """The symbols of the formulas, from the sizes one would give in words."""
    (H, W), (P1, P2), D, h = config.image_size, config.patch_size, config.hidden_size, config.num_heads
    stride = config.resnet.stride if config.resnet else 1
    N = (H // (P1 * stride)) * (W // (P2 * stride))
    symbols = {
        "H": H,
        "W": W,
        "C": config.in_channels,
        "P": P1,
        "P1": P1,
        "P2": P2,
        "N": N,
        "S": N + (config.classifier == "token" or config.gap_class_token),
    }
    symbols |= {
        "D": D,
        "h": h,
        "d": D // h,
        "M": config.mlp_dim,
        "K": config.num_classes,
        "R": config.representation_size or 0,
    }
    if config.resnet:
        symbols |= {"H_": H // stride, "W_": W // stride, "C_": config.resnet.out_channels}
    return symbols
