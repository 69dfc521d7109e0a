"""Costs against what others published, what torch counts, and what a run really keeps in memory."""

import json
import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.models
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import TINY
from vitreous.anatomy.cost import Cost, cost
from vitreous.anatomy.trace import trace
from vitreous.base.errors import ConfigError
from vitreous.config import VARIANTS, ResNetConfig, ViTConfig
from vitreous.model import ALL, Attention, VisionTransformer

# 1000 classes, CLS head, no pre-logits: parameters of timm's and the official models, GMACs by the same convention.
PUBLISHED = [
    ("Ti/16", 16, 224, 5_717_416, 1.254),
    ("Ti/16", 16, 384, 5_790_376, None),
    ("S/32", 32, 224, 22_878_952, 1.143),
    ("S/16", 16, 224, 22_050_664, 4.599),
    ("S/16", 16, 384, 22_196_584, None),
    ("B/32", 32, 224, 88_224_232, 4.409),
    ("B/32", 32, 384, 88_297_192, None),
    ("B/16", 16, 224, 86_567_656, 17.564),
    ("B/16", 16, 384, 86_859_496, 55.484),
    ("B/8", 8, 224, 86_576_872, 78.148),
    ("L/32", 32, 224, 306_535_400, 15.378),
    ("L/32", 32, 384, 306_632_680, None),
    ("L/16", 16, 224, 304_326_632, 61.555),
    ("L/16", 16, 384, 304_715_752, 191.066),
    ("L/16", 16, 512, 305_174_504, 361.986),
    ("L/16", 14, 224, 304_203_752, None),
    ("H/14", 14, 224, 632_045_800, 167.295),
    ("H/14", 14, 518, 633_470_440, 1016.717),
    ("R+Ti/16", 8, 224, 6_337_704, None),
    ("R26+S/32", 1, 224, 36_431_912, None),
    ("R26+B/32", 1, 224, 101_383_976, None),
    ("R50+B/16", 1, 224, 98_659_112, None),
    ("R50+L/32", 1, 224, 328_994_856, None),
]


@pytest.mark.parametrize(("name", "patch_size", "image_size", "params", "gmacs"), PUBLISHED)
def test_published_counts(name: str, patch_size: int, image_size: int, params: int, gmacs: float | None) -> None:
    counted = cost(ViTConfig.from_name(name, patch_size=patch_size, image_size=image_size))
    assert counted.params == params
    assert counted.flops == 2 * counted.macs
    if gmacs is not None:
        assert round(counted.macs / 1e9, 3) == gmacs


def test_pre_training_head() -> None:
    config = ViTConfig.from_name("B/16", num_classes=21_843, representation_size=768)
    assert cost(config).params == 103_186_515  # timm pull request 644


def test_torchvision_says_the_same_of_its_own_weights() -> None:
    seen = set()
    for name in torchvision.models.list_models(include="vit_*"):
        letter, patch_size = name.removeprefix("vit_").split("_")
        for weights in torchvision.models.get_model_weights(name):
            config = ViTConfig.from_name(f"{letter}/{patch_size}", image_size=weights.meta["min_size"])
            counted = cost(config)
            assert (counted.params, round(counted.macs / 1e9, 3)) == (weights.meta["num_params"], weights.meta["_ops"])
            seen.add(weights.meta["_ops"])
    assert len(seen) == 8


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_agrees_with_the_built_model_and_the_counter(name: str) -> None:
    config = ViTConfig.from_name(name)
    agrees_with_torch(config, build(config, "meta"))


@st.composite
def configs(draw: st.DrawFn) -> ViTConfig:
    """Any small ViT: square or not, with or without stem, CLS, pre-logits and head."""
    count = st.integers(1, 3)
    stages = draw(st.none() | st.lists(st.integers(1, 2), max_size=3))
    resnet = (
        None if stages is None else ResNetConfig(num_layers=tuple(stages), width_factor=draw(st.sampled_from([0.5, 1])))
    )
    patch, heads = (draw(st.integers(1, 4)), draw(st.integers(1, 4))), draw(count)
    stride = resnet.stride if resnet else 1
    rows, columns = draw(count), draw(st.integers(2, 4))
    classifier = draw(st.sampled_from(["token", "gap"]))
    return ViTConfig(
        image_size=(rows * patch[0] * stride, columns * patch[1] * stride),
        patch_size=patch,
        in_channels=draw(count),
        hidden_size=heads * draw(st.integers(1, 8)),
        num_layers=draw(count),
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
@given(config=configs())
def test_formula_counter_and_trace_agree(config: ViTConfig) -> None:
    model = build(config, "meta")
    counted = cost(config)
    agrees_with_torch(config, model)
    assert sum(row.macs for row in counted.rows if not row.name.startswith("stem")) == macs_of_trace(model)
    symbols = letters(config)
    for row in counted.rows:
        assert evaluate(row.formula, symbols) == row.macs, row
        assert evaluate(row.params_formula, symbols) == row.params, row
    assert sum(row.share for row in counted.rows) == pytest.approx(1)


def agrees_with_torch(config: ViTConfig, model: VisionTransformer) -> None:
    counted = cost(config)
    assert counted.params == sum(p.numel() for p in model.parameters())
    images = torch.zeros(2, config.in_channels, *config.image_size, device="meta")
    assert count_flops(model, images) == 2 * 2 * counted.macs_for_logits  # of two images
    head = sum(row.macs for row in counted.rows if row.name in ("pre-logits", "head"))
    assert count_flops(model.features, images) == 2 * (counted.flops - 2 * head)


def count_flops(run: Any, images: Tensor) -> int:
    # On the meta device attention is two plain products, which the counter knows; the fused one for CPUs it does not.
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run(images)
    return counter.get_total_flops()


def macs_of_trace(model: VisionTransformer) -> int:
    """Multiply-adds from the shapes of a run alone: a product of (..., n, k) and (k, m) has ... * n * k * m."""
    images = torch.zeros(1, model.config.in_channels, *model.config.image_size, device="meta")
    shapes = {row.stage.removeprefix("block 0: "): row.shape for row in trace(model, images)}
    size = {stage: math.prod(shape) for stage, shape in shapes.items()}
    width, head_dim = shapes["projected patches"][-1], shapes["queries"][-1]
    block = (
        size["norm"] * 3 * width
        + size["attention weights"] * head_dim  # scores
        + size["attention weights"] * head_dim  # weighted values
        + size["merged heads"] * width
        + 2 * size["second norm"] * shapes["MLP hidden"][-1]
    )
    blocks = sum(stage.endswith("encoder output") for stage in shapes)
    representation = size.get("pre-logits", width)
    return (
        size["flattened patches"] * width
        + blocks * block
        + (width * representation if "pre-logits" in size else 0)
        + representation * size.get("logits", 0)
    )


def evaluate(formula: str, symbols: dict[str, int]) -> int:
    """The number that a formula such as `L·3·S·D²` stands for; an empty one is 0."""
    expression = formula.replace("·", "*").replace("²", "**2").replace("'", "_")
    return eval(expression, {}, symbols) if formula else 0


def letters(config: ViTConfig) -> dict[str, int]:
    """The paper's symbols, from the sizes one would give in words."""
    (H, W), (P1, P2) = config.image_size, config.patch_size
    stride = config.resnet.stride if config.resnet else 1
    N = H * W // (P1 * P2 * stride**2)
    symbols = {
        "H": H,
        "W": W,
        "C": config.in_channels,
        "P": P1,
        "P1": P1,
        "P2": P2,
        "N": N,
        "D": config.hidden_size,
        "M": config.mlp_dim,
    }
    symbols |= {
        "S": N + (config.classifier == "token" or config.gap_class_token),
        "L": config.num_layers,
        "K": config.num_classes,
    }
    symbols["R"] = config.representation_size or 0
    if config.resnet:
        symbols |= {"C_": config.resnet.out_channels, "w": config.resnet.width}
    return symbols


def test_twice_the_resolution_and_half_the_patch_cost_the_same_attention() -> None:
    base = ViTConfig.from_name("B/16")
    for config, patches, tokens, attention in (
        (base, 196, 197, 38_809),
        (base.replace(image_size=448), 784, 785, 616_225),
        (base.replace(patch_size=8), 784, 785, 616_225),
    ):
        counted = cost(config)
        assert (counted.num_patches, counted.num_tokens, counted.attention_elements) == (patches, tokens, attention)


@settings(max_examples=20, deadline=None)
@given(config=configs())
def test_attention_overtakes_the_rest_of_the_blocks_at_the_crossover(config: ViTConfig) -> None:
    # One patch of one pixel a token, so that the image has whatever number of tokens is wanted.
    crossover = cost(config).crossover_tokens
    config = config.replace(resnet=None, patch_size=1, classifier="gap", gap_class_token=False)

    def products(tokens: int) -> tuple[int, int]:
        rows = {row.name: row.macs for row in cost(config.replace(image_size=(1, tokens))).rows}
        rest = rows["query, key, value"] + rows["output projection"] + rows["MLP"]
        return rows["scores q·kᵀ"] + rows["attention·v"], rest

    attention, rest = products(crossover)
    assert attention == rest
    attention, rest = products(crossover + 1)
    assert attention > rest


MEMORY = {
    "token": {},
    "one block": {"num_layers": 1},
    "gap, pre-logits": {"classifier": "gap", "representation_size": 20},
    "gap beside CLS": {"classifier": "gap", "gap_class_token": True},
    "norm of the mean": {"classifier": "gap", "gap_class_token": True, "norm_after_pooling": True},
    "wide image": {"image_size": (16, 64), "patch_size": (8, 4), "representation_size": 20},
    "no head": {"num_classes": 0},
    "narrow MLP": {"mlp_dim": 10},
    "many patches": {"patch_size": 2, "num_layers": 2},
    "root": {"resnet": ResNetConfig(width_factor=0.5), "patch_size": 2},
    "stages": {"resnet": ResNetConfig(num_layers=(2, 1), width_factor=0.5), "patch_size": 2, "image_size": (64, 96)},
    "one unit": {"resnet": ResNetConfig(num_layers=(1,)), "patch_size": 2, "image_size": 64, "classifier": "gap"},
}


@pytest.mark.parametrize("explicit", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("case", MEMORY)
def test_bytes_are_those_of_a_run(case: str, explicit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ViTConfig(**{**TINY, **MEMORY[case]})
    model, batch_size = build(config), 3
    if explicit:
        monkeypatch.setattr(Attention, "forward", explicit_attention)
        batch_size = 1  # of more images, a batched product first copies its strided inputs
    counted = cost(config, batch_size)
    images = torch.randn(batch_size, 3, *config.image_size)
    expected = counted.explicit_attention if explicit else counted.fused_attention
    assert bytes_kept(model, images) == expected.training_sum
    assert peak_bytes(model, images) == expected.inference_peak
    assert counted.parameter_bytes == sum(p.nbytes for p in model.parameters())


def test_bytes_of_bfloat16_are_half_but_for_statistics() -> None:
    config = ViTConfig(**TINY)
    counted = cost(config, 3, torch.bfloat16)
    assert (
        peak_bytes(build(config).bfloat16(), torch.randn(3, 3, 32, 32).bfloat16())
        == counted.fused_attention.inference_peak
    )
    assert counted.dtype == "bfloat16"
    assert 2 * counted.parameter_bytes == cost(config, 3).parameter_bytes
    assert 0.5 < counted.fused_attention.training_sum / cost(config, 3).fused_attention.training_sum < 0.52


def test_dropout_keeps_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "forward", explicit_attention)
    plain = ViTConfig(**TINY)
    images = torch.randn(1, 3, 32, 32)

    def added(config: ViTConfig) -> tuple[int, int]:
        run = bytes_kept(build(config), images) - bytes_kept(build(plain), images)
        return run, cost(config).explicit_attention.training_sum - cost(plain).explicit_attention.training_sum

    run, formula = added(plain.replace(dropout_rate=0.1))
    assert run == 4 * formula > 0  # a mask on a CPU is float32, on CUDA one byte
    run, formula = added(plain.replace(attention_dropout_rate=0.1))
    assert run / (4 + 4) == formula / (4 + 1) > 0  # thinned weights and mask


def explicit_attention(self: Attention, x: Tensor, rows: slice = ALL) -> Tensor:
    """What `Attention.forward` computes, with every weight written out."""
    q, k, v = self.project(x, rows)
    weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
    return self.out((F.dropout(weights, self.dropout_rate, self.training) @ v).transpose(1, 2).flatten(2))


def build(config: ViTConfig, device: str = "cpu") -> VisionTransformer:
    with torch.device(device):
        return VisionTransformer(config)


def bytes_kept(model: VisionTransformer, images: Tensor) -> int:
    """Bytes that a forward pass in training keeps for the backward pass, each storage once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        logits = model.train()(images)
    for given_before in (images, *model.parameters()):
        kept.pop(given_before.untyped_storage().data_ptr(), None)
    assert logits.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


class LiveBytes(TorchDispatchMode):
    """Adds up the storages that operations make, takes off those that have died, and remembers the most."""

    def __init__(self, before: Iterator[Tensor]) -> None:
        super().__init__()
        self.before = [x.untyped_storage() for x in before]  # held, so that none of their addresses is used again
        self.alive, self.now, self.peak = {s.data_ptr() for s in self.before}, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self.watch(x.untyped_storage())
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in self.alive and size:
            self.alive.add(address)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, address, size)

    def forget(self, address: int, size: int) -> None:
        self.alive.discard(address)
        self.now -= size


def peak_bytes(model: VisionTransformer, images: Tensor) -> int:
    """The most that is alive at once in a forward pass without gradients, the images included."""
    with torch.no_grad(), LiveBytes(iter([images, *model.parameters()])) as live:
        model.eval()(images)
    return images.nbytes + live.peak


def test_to_dict_is_json() -> None:
    counted: Cost = cost(ViTConfig.from_name("R50+B/16"), 8, "float16")
    values = json.loads(json.dumps(counted.to_dict()))
    assert values["macs"] == counted.macs
    assert values["fused_attention"]["inference_peak"] == counted.fused_attention.inference_peak
    assert [row["name"] for row in values["rows"]] == [row.name for row in counted.rows]
    assert sum(row["params"] for row in values["rows"]) == values["params"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size must be a whole number >= 1, got 0"):
        cost(ViTConfig(), batch_size=0)
    with pytest.raises(ConfigError, match=r"bfloat16, float16, got 'bfloat61'.*did you mean 'bfloat16'"):
        cost(ViTConfig(), dtype="bfloat61")
