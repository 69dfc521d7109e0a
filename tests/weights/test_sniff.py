"""Files under wrong names, in wrappers, without a head, with too much or too little, and with something to hide."""

import argparse
import logging
import pickle
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import TINY, tiny
from tests.weights.peers import assert_same_tensors, classifier, images, timm_vit
from vitreous.base.errors import WeightsError
from vitreous.classifier import Classifier, load
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.convert import convert

CONFIG = ViTConfig(**TINY, gelu="erf")


@pytest.fixture(scope="module")
def tensors():
    return {name: tensor.clone() for name, tensor in timm_vit(CONFIG).state_dict().items()}


def loads_as(path, tensors, **settings):
    clf = load(path, num_heads=3, **settings)
    assert torch.equal(clf.model.blocks[1].attention.qkv.weight, tensors["blocks.1.attn.qkv.weight"])
    assert torch.equal(clf.model.head.bias, tensors["head.bias"])
    assert clf.provenance["tensors"] == f"{len(tensors)} of {len(tensors)} tensors"
    return clf


@pytest.mark.parametrize(
    ("family", "written", "named"),
    [
        ("google", "m.npz", "m.bin"),
        ("timm", "m.safetensors", "m.pth"),
        ("timm", "m.pth", "m.npz"),
        ("torchvision", "m.pth", "m.safetensors"),
        ("native", "m.safetensors", "m.npz"),
    ],
)
def test_the_name_of_a_file_says_nothing(family, written, named, tmp_path):
    clf = classifier(gelu="tanh" if family == "google" else "erf")
    convert(clf, tmp_path / written, to=family)
    (tmp_path / written).rename(tmp_path / named)
    assert_same_tensors(clf.model.state_dict(), load(tmp_path / named, num_heads=3).model.state_dict())


def prefixed(tensors, prefix):
    return {prefix + name: tensor for name, tensor in tensors.items()}


WRAPPERS = {
    "plain": lambda t: t,
    "ordered": lambda t: OrderedDict(t),
    "state_dict": lambda t: {
        "state_dict": t,
        "epoch": 7,
        "arch": "vit",
        "optimizer": {"state": {0: {"m": t["norm.bias"]}}},
    },
    "model": lambda t: {"model": t},
    "DistributedDataParallel": lambda t: {"model": prefixed(t, "module.")},
    "torch.compile": lambda t: prefixed(t, "_orig_mod."),
    "both": lambda t: prefixed(t, "module._orig_mod."),
    "Lightning": lambda t: {"state_dict": prefixed(t, "model."), "callbacks": {}, "pytorch-lightning_version": "2"},
    "Lightning, net": lambda t: {"state_dict": prefixed(t, "net."), "hyper_parameters": {"lr": 0.1}},
    "deep": lambda t: {"checkpoint": {"model": {"state_dict": prefixed(t, "encoder.module.")}}},
    "parameters": lambda t: {name: torch.nn.Parameter(tensor) for name, tensor in t.items()},
    "training arguments": lambda t: {"model": t, "args": argparse.Namespace(lr=0.1, epochs=3)},
    "EMA alone": lambda t: {"model_ema": t},
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("old_format", [False, True])
def test_wrappers_are_taken_off(wrapper, old_format, tensors, tmp_path):
    torch.save(WRAPPERS[wrapper](tensors), tmp_path / "m.pth", _use_new_zipfile_serialization=not old_format)
    clf = loads_as(tmp_path / "m.pth", tensors)
    assert ("ema" in str(clf.provenance.get("weights"))) == (wrapper == "EMA alone")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "student.backbone."])
def test_prefixes_in_safetensors(prefix, tensors, tmp_path):
    save_file(prefixed(tensors, prefix), tmp_path / "m.safetensors")
    loads_as(tmp_path / "m.safetensors", tensors)


EMAS = {
    "timm": lambda t, e: {"state_dict": t, "state_dict_ema": e},
    "DeiT": lambda t, e: {"model": t, "model_ema": e},
    "Lightning": lambda t, e: {"state_dict": prefixed(t, "model.") | prefixed(e, "ema_model.")},
    "torch": lambda t, e: {"model": t, "averaged": {"n_averaged": torch.tensor(3)} | prefixed(e, "module.")},
}


@pytest.mark.parametrize("script", EMAS)
def test_raw_or_ema_is_chosen_and_said(script, tensors, tmp_path, caplog):
    average = {name: tensor * 0.5 for name, tensor in tensors.items()}
    torch.save(EMAS[script](tensors, average), tmp_path / "m.pth")
    with caplog.at_level(logging.WARNING, "vitreous"):
        clf = loads_as(tmp_path / "m.pth", tensors)
    assert clf.provenance["weights"].startswith("raw: ")
    assert "not taken: " in clf.provenance["weights"]
    assert "weights taken: raw" in caplog.text
    clf = loads_as(tmp_path / "m.pth", average, weights="ema")
    assert clf.provenance["weights"].startswith("ema: ")
    torch.save({"model": tensors}, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match="holds no ema weights: it holds model"):
        load(tmp_path / "m.pth", num_heads=3, weights="ema")


def test_two_models_are_not_guessed_between(tensors, tmp_path):
    torch.save({"generator": tensors, "critic": tensors}, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match=r"several models \(generator, critic\)"):
        load(tmp_path / "m.pth", num_heads=3)


def test_one_missing_and_one_extra_tensor(tensors, tmp_path):
    gone = "blocks.2.norm1.bias"
    changed = {name: tensor for name, tensor in tensors.items() if name != gone} | {"surplus": torch.zeros(2)}
    torch.save(prefixed(changed, "module."), tmp_path / "m.pth")
    total = len(tensors)
    message = rf"{total - 1} of {total} tensors found; missing: {re.escape(gone)}; not part of this model: surplus"
    with pytest.raises(WeightsError, match=message):
        load(tmp_path / "m.pth", num_heads=3)
    torch.save(tensors | {"blocks.1.mlp.fc2.bias": torch.zeros(47)}, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match=r"blocks\.1\.mlp\.fc2\.bias is \(47,\), expected \(48,\)"):
        load(tmp_path / "m.pth", num_heads=3)
    torch.save(tensors | {"module.norm.bias": torch.zeros(48)}, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match=r"not part of this model: module\.norm\.bias"):
        load(tmp_path / "m.pth", num_heads=3)
    torch.save(prefixed(tensors, "module.") | {"norm.bias": torch.zeros(48)}, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match=r"not part of this model: norm\.bias"):
        load(tmp_path / "m.pth", num_heads=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_single(dtype, tensors, tmp_path):
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, tmp_path / "m.safetensors")
    model = load(tmp_path / "m.safetensors", num_heads=3).model
    assert torch.equal(model.head.weight, tensors["head.weight"].to(dtype).float())
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


def test_heads(tmp_path, tensors):
    """A head of zeros may be trained and not used; other classes give a new one, all else as it was."""
    zero = tensors | {"head.weight": torch.zeros(7, 48), "head.bias": torch.zeros(7)}
    save_file(zero, tmp_path / "zero.safetensors")
    picture = np.zeros((9, 9, 3), np.uint8)
    with pytest.raises(WeightsError, match="all zeros"):
        load(tmp_path / "zero.safetensors", num_heads=3).predict(picture)
    save_file(tensors, tmp_path / "m.safetensors")
    five = load(tmp_path / "m.safetensors", num_heads=3, num_classes=5)
    assert not five.model.head.weight.any()
    assert torch.equal(five.model.norm.weight, tensors["norm.weight"])
    assert load(tmp_path / "m.safetensors", num_heads=3, num_classes=0).model.head is None
    tensors = {name: tensor for name, tensor in tensors.items() if name != "head.bias"}
    save_file(tensors, tmp_path / "half.safetensors")
    with pytest.raises(WeightsError, match=r"missing: head\.bias"):
        load(tmp_path / "half.safetensors", num_heads=3)


def test_google_without_its_head_is_incomplete(tmp_path):
    model = tiny(num_classes=0)
    clf = Classifier(model, Preprocess(size=model.config.image_size))
    (note,) = [note for note in convert(clf, tmp_path / "m.npz", to="google") if "head" in note]
    assert "num_classes=0" in note
    with pytest.raises(WeightsError, match="no classification head"):
        load(tmp_path / "m.npz")
    assert load(tmp_path / "m.npz", num_classes=0).model.head is None


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["zip", "old", "plain pickle", "beside the tensors"])
def test_no_pickle_is_executed(kind, tensors, tmp_path):
    touched = tmp_path / "touched"
    content = {"model": tensors, "args": Payload(touched)} if kind == "beside the tensors" else Payload(touched)
    path = tmp_path / "m.pth"
    if kind == "plain pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind != "old")
    with pytest.raises(WeightsError, match=r"m\.pth holds pickled Python objects.*not opened.*\.safetensors"):
        load(path)
    assert not touched.exists()


def test_no_pickle_in_an_npz_is_executed(tmp_path):
    touched = tmp_path / "touched"
    np.savez(tmp_path / "m.npz", **{"embedding/kernel": np.array([Payload(touched)], dtype=object)})
    with pytest.raises(WeightsError, match=r"pickled Python objects.*\.safetensors"):
        load(tmp_path / "m.npz")
    assert not touched.exists()


def test_compiled_models_are_refused(tmp_path):
    path = tmp_path / "m.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), path)
    with pytest.raises(WeightsError, match="TorchScript archive"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x89HDF\r\n\x1a\n" + bytes(90), "Keras or HDF5"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS.*git lfs pull"),
        (b"<!DOCTYPE html>" + bytes(90), "a web page"),
        (b"hello, world, this is text", "no weight file that is known"),
    ],
)
def test_what_is_no_weight_file(content, message, tmp_path):
    (tmp_path / "m.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        load(tmp_path / "m.pth")


def test_other_contents(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("readme.txt", "no weights")
    with pytest.raises(WeightsError, match="zip archive without weights"):
        load(tmp_path / "m.zip")
    for content, message in (([1, 2], "no tensors by name"), ({"w": torch.zeros(2)}, "no ViT of Google.*it holds: w")):
        torch.save(content, tmp_path / "m.pth")
        with pytest.raises(WeightsError, match=message):
            load(tmp_path / "m.pth")
    torch.save(tiny().state_dict(), tmp_path / "m.pth")
    with pytest.raises(WeightsError, match=r"without the header.*Classifier\.save"):
        load(tmp_path / "m.pth")


def test_folders(tensors, tmp_path):
    with pytest.raises(WeightsError, match="holds no weight file"):
        load(tmp_path)
    save_file(tensors, tmp_path / "any name.safetensors")
    loads_as(tmp_path, tensors)
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match=r"several weight files \(any name\.safetensors, other\.safetensors\)"):
        load(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    loads_as(tmp_path, tensors)
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(WeightsError, match=r"config\.json is not JSON"):
        load(tmp_path)


def claim(path, numbers):
    """A torch file whose tensor claims more numbers than its storage has."""
    torch.save({"patch_embed.proj.weight": torch.zeros(48, 3, 8, 8)}, path)
    content = path.read_bytes()
    old = pickle.dumps(48 * 3 * 8 * 8, protocol=2)[2:-1]
    new = b"J" + struct.pack("<i", numbers)
    assert content.count(old) == 1
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, member in members.items():
            archive.writestr(name, member.replace(old, new) if name.endswith("data.pkl") else member)


def test_sizes_that_the_file_cannot_hold(tmp_path, tensors):
    claim(tmp_path / "m.pth", 2**31 - 1)
    with pytest.raises(WeightsError, match=r"m\.pth"):
        load(tmp_path / "m.pth")
    wide = dict(tensors) | {
        "head.weight": torch.zeros(1, 1).expand(10**6, 10**6),
        "head.bias": torch.zeros(1).expand(10**6),
    }
    torch.save(wide, tmp_path / "m.pth")
    with pytest.raises(WeightsError, match=r"head.*(claims|expected)"):
        load(tmp_path / "m.pth", num_heads=3)
    with zipfile.ZipFile(tmp_path / "m.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", bytes(10**7))
    with pytest.raises(WeightsError, match=r"claims .* bytes of content, more than the file can hold"):
        load(tmp_path / "m.pth")


def test_quantised_tensors_are_refused(tensors, tmp_path):
    save_file(tensors | {"head.weight": torch.zeros(7, 48, dtype=torch.int8)}, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=r"head\.weight is of type torch\.int8.*quantised"):
        load(tmp_path / "m.safetensors", num_heads=3)


def test_a_damaged_header_of_ours_in_a_foreign_file(tmp_path):
    convert(classifier(), tmp_path / "m.safetensors", to="timm")
    save_file(load_file(tmp_path / "m.safetensors"), tmp_path / "m.safetensors", {"vitreous.carried": "{"})
    with pytest.raises(WeightsError, match=r"vitreous\.carried in its header is damaged"):
        load(tmp_path / "m.safetensors")


def test_size_change_keeps_the_class_row_and_the_pattern(tensors, tmp_path, caplog):
    """Positions are resized, not made up: the old grid shows in the new one."""
    save_file(tensors, tmp_path / "m.safetensors")
    old = tensors["pos_embed"]
    for size in ((48, 48), (24, 40)):
        clf = load(tmp_path / "m.safetensors", num_heads=3, image_size=size)
        assert "positions resized from a 4x4" in caplog.text
        new = clf.model.position_embedding.detach()
        assert torch.equal(new[:, 0], old[:, 0])
        back = clf.resize(32).model.position_embedding.detach()
        pair = torch.stack([old[:, 1:].flatten(), back[:, 1:].flatten()])
        assert torch.corrcoef(pair)[0, 1] > 0.7  # of noise: a random one would give 0
        assert clf.model(images(clf.model.config)).shape == (2, 7)
