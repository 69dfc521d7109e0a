"""Google's files, as every version of its code left them, against the official numbers; and the way back."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import shared, tiny
from vitreous.base.errors import WeightsError
from vitreous.classifier import load
from vitreous.config import ResNetConfig, ViTConfig
from vitreous.model import VisionTransformer
from vitreous.weights import google
from vitreous.weights.sniff import read_checkpoint

Arrays = dict[str, np.ndarray[Any, Any]]
CASES = ("token", "prelogits", "gap", "hybrid-stem", "hybrid-stages")


def official(case: str) -> tuple[Arrays, torch.Tensor, torch.Tensor]:
    """Parameters, images (B, C, H, W) and logits (B, K) of one golden case."""
    io = np.load(shared(f"golden/{case}.io.npz"))
    images = torch.from_numpy(io["images_nhwc"]).permute(0, 3, 1, 2).contiguous()
    return dict(np.load(shared(f"golden/{case}.params.npz"))), images, torch.from_numpy(io["logits"])


@torch.no_grad()
def check(path: Path, images: torch.Tensor, logits: torch.Tensor) -> None:
    """The file gives these logits."""
    model = read_checkpoint(path).build(str(path))
    assert (model(images) - logits).abs().max() <= 1e-5 * logits.abs().max()


def renamed(arrays: Arrays, *pairs: tuple[str, str]) -> Arrays:
    out = {}
    for name, array in arrays.items():
        for old, new in pairs:
            name = name.replace(old, new)
        out[name] = array
    return out


def published(arrays: Arrays) -> Arrays:
    """The names of the published files, which number the parts of a block through."""
    return renamed(
        arrays,
        ("LayerNorm_1/", "LayerNorm_2/"),
        ("MultiHeadDotProductAttention_0/", "MultiHeadDotProductAttention_1/"),
        ("MlpBlock_0/", "MlpBlock_3/"),
    )


def prefixed(prefix: str, arrays: Arrays) -> Arrays:
    """Part of a larger state, as vit_jax and big_vision save it."""
    rest = {"opt/state/step": np.array(7)}
    if prefix == "params/img/":
        rest |= {"params/txt/head/kernel": np.ones((3, 4), np.float32), "params/t": np.ones(1, np.float32)}
    return {prefix + name: array for name, array in arrays.items()} | rest


def scanned(arrays: Arrays) -> Arrays:
    """All blocks stacked into one, as big_vision's scan over blocks has them."""
    out: Arrays = {}
    blocks: dict[str, list[np.ndarray[Any, Any]]] = {}
    for name, array in arrays.items():
        if "encoderblock_" in name:
            _, number, rest = name.split("/", 2)
            assert int(number.removeprefix("encoderblock_")) == len(blocks.setdefault(rest, []))
            blocks[rest].append(array)
        else:
            out[name] = array
    return out | {f"Transformer/encoderblock/{rest}": np.stack(parts) for rest, parts in blocks.items()}


def positions_on_top(arrays: Arrays) -> Arrays:
    """big_vision's place for positions; those of the patches alone."""
    arrays = dict(arrays)
    positions = arrays.pop("Transformer/posembed_input/pos_embedding")
    if "cls" in arrays:  # what the class token's position adds goes into the token itself
        arrays["cls"] = arrays["cls"] + positions[:, :1]
        positions = positions[:, 1:]
    return arrays | {"pos_embedding": positions}


def old_group_norm(arrays: Arrays) -> Arrays:
    """GroupNorm as flax stored it once: (1, 1, 1, C)."""
    return {name: a.reshape(1, 1, 1, -1) if "gn" in name else a for name, a in arrays.items()}


HISTORY: dict[str, Callable[[Arrays], Arrays]] = {
    "today": dict,
    "published": published,
    "opt/target/": lambda arrays: prefixed("opt/target/", published(arrays)),
    "params/": lambda arrays: prefixed("params/", arrays),
    "params/img/": lambda arrays: prefixed("params/img/", arrays),
    "scanned": scanned,
    "scanned big_vision": lambda arrays: prefixed("params/", positions_on_top(scanned(arrays))),
    "old GroupNorm": lambda arrays: published(old_group_norm(arrays)),
    "column-major": lambda arrays: {name: np.asfortranarray(array) for name, array in scanned(arrays).items()},
    "big-endian": lambda arrays: {name: array.astype(">f4") for name, array in arrays.items()},
    "float64": lambda arrays: {name: array.astype(np.float64) for name, array in arrays.items()},
}


@pytest.mark.parametrize("history", HISTORY)
@pytest.mark.parametrize("case", CASES)
def test_every_layout_gives_the_official_logits(tmp_path: Path, case: str, history: str) -> None:
    arrays, images, logits = official(case)
    with (tmp_path / "weights.bin").open("wb") as file:  # the name says nothing
        np.savez(file, **HISTORY[history](arrays))
    check(tmp_path / "weights.bin", images, logits)


@pytest.mark.parametrize("history", ["today", "scanned"])
def test_compressed_files_are_read_too(tmp_path: Path, history: str) -> None:
    arrays, images, logits = official("token")
    np.savez_compressed(tmp_path / "weights.npz", **HISTORY[history](arrays))
    check(tmp_path / "weights.npz", images, logits)


@pytest.mark.parametrize("case", CASES)
def test_the_architecture_is_read_off_the_arrays(case: str) -> None:
    values = json.loads(shared("golden/cases.json").read_text())[case]
    config = google.read(shared(f"golden/{case}.params.npz")).config
    assert config == ViTConfig.from_dict(values)
    assert (config.gelu, config.layer_norm_eps, config.position_resize) == ("tanh", 1e-6, "google")


def test_bfloat16_as_numpy_stores_it(tmp_path: Path) -> None:
    arrays, images, _ = official("token")
    halves = {name: torch.from_numpy(array).bfloat16() for name, array in arrays.items()}
    np.savez(tmp_path / "half.npz", **{name: t.view(torch.int16).numpy().view("V2") for name, t in halves.items()})
    np.savez(tmp_path / "whole.npz", **{name: t.float().numpy() for name, t in halves.items()})
    half, whole = (google.read(tmp_path / name) for name in ("half.npz", "whole.npz"))
    assert all(tensor.dtype == torch.float32 for tensor in half.tensors.values())
    assert all(torch.equal(half.tensors[name], whole.tensors[name]) for name in whole.tensors)
    assert torch.equal(half.build("half")(images), whole.build("whole")(images))


SHAPES: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"classifier": "gap"},
    "pre-logits": {"representation_size": 40},
    "no head": {"num_classes": 0},
    "grey": {"in_channels": 1},
    "not square": {"image_size": (16, 64), "patch_size": (4, 16)},
    "stem": {"patch_size": 2, "resnet": ResNetConfig()},
    "stages": {"patch_size": 1, "resnet": ResNetConfig(num_layers=(1, 2), width_factor=0.5)},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_ours_to_google_and_back_is_bit_equal(tmp_path: Path, shape: str) -> None:
    model = tiny(**SHAPES[shape])
    google.write(tmp_path / "model.npz", model.config, model.state_dict())
    again = google.read(tmp_path / "model.npz")
    assert again.config == model.config
    assert again.tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in model.state_dict().items())
    assert all(tensor.is_contiguous() for tensor in again.tensors.values())


def test_a_grid_that_is_not_square(tmp_path: Path) -> None:
    """Of our own files it is known; of others it must be said, and a square number of patches is a square."""
    model = tiny(image_size=(16, 32))
    google.write(tmp_path / "ours.npz", model.config, model.state_dict())
    np.savez(tmp_path / "others.npz", **np.load(tmp_path / "ours.npz"))
    assert google.read(tmp_path / "ours.npz").config.image_size == (16, 32)
    assert google.read(tmp_path / "others.npz", (16, 32)).config.image_size == (16, 32)
    for size in (None, (16, 48)):
        with pytest.raises(WeightsError, match=r"8 patches.*no square grid.*image_size"):
            google.read(tmp_path / "others.npz", size)
    assert google.read(shared("golden/token.params.npz"), (16, 64)).config.image_size == (32, 32)


def test_equal_weights_give_equal_files(tmp_path: Path) -> None:
    model = tiny()
    for name in ("a.npz", "b.npz"):
        google.write(tmp_path / name, model.config, model.state_dict())
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def timm_model(config: ViTConfig) -> Any:
    """timm's own class for a configuration, with Google's GELU; timm has no pre-logits."""
    from timm.layers import GELUTanh
    from timm.models.vision_transformer import VisionTransformer as Timm
    from timm.models.vision_transformer_hybrid import HybridEmbed, _resnetv2

    hybrid = {}
    if config.resnet:
        backbone = _resnetv2(config.resnet.num_layers)
        hybrid = {"embed_layer": partial(HybridEmbed, backbone=backbone)}
    return Timm(
        img_size=config.image_size,
        patch_size=config.patch_size,
        embed_dim=config.hidden_size,
        depth=config.num_layers,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_dim / config.hidden_size,
        num_classes=config.num_classes,
        act_layer=GELUTanh,
        class_token=config.classifier == "token",
        global_pool="token" if config.classifier == "token" else "avg",
        fc_norm=False,
        **hybrid,
    ).eval()


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"classifier": "gap"},
        {"image_size": (16, 64)},
        {"image_size": 64, "patch_size": 1, "resnet": ResNetConfig(num_layers=(1, 1))},
    ],
    ids=["token", "gap", "not square", "hybrid"],
)
@torch.no_grad()
def test_timm_reads_what_is_written(tmp_path: Path, overrides: dict[str, Any]) -> None:
    model = tiny(**overrides)
    google.write(tmp_path / "model.npz", model.config, model.state_dict())
    peer = timm_model(model.config)
    before = {name: tensor.clone() for name, tensor in peer.state_dict().items()}
    peer.load_pretrained(str(tmp_path / "model.npz"))
    assert not [name for name, tensor in peer.state_dict().items() if torch.equal(tensor, before[name])]
    images = torch.randn(2, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    expected, logits = peer(images), model(images)
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


REFUSED: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "missing": (
        without("Transformer/encoderblock_1/LayerNorm_0/bias"),
        "55 of 56.*missing: Transformer/enc",
    ),
    "extra": (lambda a: a | {"Transformer/extra": a["cls"]}, "56 of 56.*not part of this model: Transformer/extra"),
    "shape": (lambda a: a | {"head/bias": a["head/bias"][:5]}, r"head/bias is \(5,\), expected \(7,\)"),
    "integers": (lambda a: a | {"head/bias": a["head/bias"].astype(int)}, "head/bias is of type int64"),
    "heads": (lambda a: {n: x.repeat(2, 1) if "/query/" in n else x for n, x in a.items()}, "wrong shapes|num_heads"),
    "twice": (lambda a: a | published(a), "twice"),
    "MAP head": (
        lambda a: prefixed("params/img/", a | {"MAPHead_0/probe": a["cls"]}),
        "MAPHead.*attention head",
    ),
    "mixer": (lambda a: {"MixerBlock_0/LayerNorm_0/bias": a["cls"]}, "MLP-Mixer"),
    "experts": (lambda a: a | {"Transformer/encoderblock_1/Moe/Router/kernel": a["cls"]}, "mixture of experts"),
    "sincos2d": (without("Transformer/posembed_input/pos_embedding"), "no position embeddings.*sincos2d"),
    "other things": (lambda a: {"a": a["cls"]}, "not a Google ViT checkpoint.*It holds: a"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_this_model_is_refused_by_name(tmp_path: Path, what: str) -> None:
    change, message = REFUSED[what]
    np.savez(tmp_path / "weights.npz", **change(official("token")[0]))
    with pytest.raises(WeightsError, match=message) as caught:
        read_checkpoint(tmp_path / "weights.npz").build("weights.npz")
    assert "weights.npz" in str(caught.value)


def test_object_arrays_are_not_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    arrays = official("token")[0] | {"head/bias": np.array([Trap()], dtype=object)}
    np.savez(tmp_path / "trap.npz", **arrays)
    with pytest.raises(WeightsError, match=r"pickled Python objects.*\.safetensors"):
        load(tmp_path / "trap.npz")
    assert not (tmp_path / "sprung").exists()


def test_a_zero_head_may_be_fine_tuned_but_not_used(tmp_path: Path) -> None:
    """The official imagenet21k files have one by intent (google-research/vision_transformer issues 10 and 32)."""
    arrays, images, _ = official("prelogits")
    zero = {name: np.zeros_like(array) if name.startswith("head/") else array for name, array in arrays.items()}
    np.savez(tmp_path / "imagenet21k.npz", **published(zero))
    clf = load(tmp_path / "imagenet21k.npz")
    with pytest.raises(WeightsError, match=r"all zeros.*fine-tune"):
        clf.predict(images[0])
    assert isinstance(clf.reset_head(["a", "b"]).model, VisionTransformer)
