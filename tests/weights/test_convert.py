"""Ours -> another family -> ours: the same bits, and a reason where it cannot be."""

import logging
from dataclasses import replace

import pytest
import torch

from tests.conftest import tiny
from tests.weights.peers import NAMES, assert_near, assert_same_tensors, classifier, header, images
from vitreous.base.errors import ConfigError, WeightsError
from vitreous.classifier import Classifier, load
from vitreous.config import ResNetConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.convert import convert

ROOT_ONLY = dict(image_size=64, patch_size=4, resnet=ResNetConfig(numerics="timm"))
STAGES = dict(image_size=64, patch_size=1, resnet=ResNetConfig(num_layers=(1, 2), width_factor=0.5, numerics="timm"))
SHAPES = {
    "square": {},
    "rectangle": dict(image_size=(32, 48)),
    "oblong patches": dict(image_size=(32, 48), patch_size=(8, 16)),
    "mean over patches": dict(classifier="gap"),
    "mean beside a class token": dict(classifier="gap", gap_class_token=True),
    "norm after the mean": dict(classifier="gap", norm_after_pooling=True),
    "pre-logits": dict(representation_size=24),
    "grey": dict(in_channels=1),
    "backbone": dict(num_classes=0),
    "backbone with pre-logits": dict(num_classes=0, representation_size=48),
    "hybrid, root alone": ROOT_ONLY,
    "hybrid, stages": STAGES,
}
FORMATS = {
    "google": ("google", "model.npz"),
    "timm": ("timm", "folder"),
    "timm file": ("timm", "model.safetensors"),
    "timm pickle": ("timm", "model.pth"),
    "huggingface": ("huggingface", "folder"),
    "torchvision": ("torchvision", "model.safetensors"),
    "torchvision pickle": ("torchvision", "model.pth"),
    "mmpretrain": ("mmpretrain", "model.safetensors"),
    "mmpretrain pickle": ("mmpretrain", "model.pth"),
    "native": ("native", "model.safetensors"),
}
GAP = {"mean over patches", "mean beside a class token", "norm after the mean"}
HYBRIDS = {"hybrid, root alone", "hybrid, stages"}
CANNOT = {
    "google": {"mean beside a class token", "norm after the mean"},
    "timm": {"pre-logits", "backbone with pre-logits", "hybrid, stages"},
    "timm file": {"pre-logits", "backbone with pre-logits"},
    "timm pickle": {"pre-logits", "backbone with pre-logits", "mean beside a class token"},
    "huggingface": {"pre-logits", *GAP, *HYBRIDS},
    "torchvision": {"rectangle", "oblong patches", "grey", "backbone", "backbone with pre-logits", *GAP, *HYBRIDS},
    "mmpretrain": {"mean over patches", "mean beside a class token", "backbone with pre-logits", *HYBRIDS},
    "native": set(),
}


def make(shape, family):
    """A classifier with the constants of the family's code."""
    overrides = dict(SHAPES[shape])
    if family == "google":
        overrides["gelu"] = "tanh"
        if resnet := overrides.get("resnet"):
            overrides["resnet"] = replace(resnet, numerics="google")
    if overrides.get("in_channels") == 1:
        model = tiny(**{"gelu": "erf", **overrides})
        return Classifier(model, Preprocess(size=32, mean=(0.5,), std=(0.5,)), NAMES)
    return classifier(**overrides)


def again(path, clf):
    """Loaded with what the user would have to say."""
    config = clf.model.config
    return load(
        path,
        image_size=config.image_size,
        num_heads=config.num_heads,
        num_classes=0 if not config.num_classes else None,
        preprocess=clf.preprocess,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", FORMATS)
def test_there_and_back(target, shape, tmp_path):
    family, name = FORMATS[target]
    clf = make(shape, family)
    if shape in CANNOT.get(target, CANNOT[family]):
        with pytest.raises(WeightsError, match="cannot take this model"):
            convert(clf, tmp_path / name, to=family)
        assert not any(tmp_path.iterdir())
        return
    convert(clf, tmp_path / name, to=family)
    back = again(tmp_path / name, clf)
    assert_same_tensors(clf.model.state_dict(), back.model.state_dict())
    with torch.inference_mode():
        x = images(clf.model.config)
        assert_near(back.model(x), clf.model(x))


@pytest.mark.parametrize("target", ["timm", "timm file", "torchvision", "huggingface", "mmpretrain", "native"])
def test_what_comes_back_without_being_told(target, tmp_path):
    family, name = FORMATS[target]
    clf = classifier("google" if family == "native" else family)
    notes = convert(clf, tmp_path / name, to=family)
    assert any("positions" in note for note in notes) == (family != "native")
    back = load(tmp_path / name)
    assert (back.labels, back.preprocess) == (clf.labels, clf.preprocess)
    kept = dict(position_resize=back.model.config.position_resize)
    assert back.model.config == clf.model.config.replace(**kept)
    n = len(header(tmp_path / name / "model.safetensors" if name == "folder" else tmp_path / name)) - 1
    assert target == "native" or back.provenance["tensors"] == f"{n} of {n} tensors"


@pytest.mark.parametrize(
    ("family", "name", "overrides", "word"),
    [
        ("google", "m.npz", dict(gelu="erf"), "GELU tanh in place of erf"),
        ("torchvision", "m.pth", dict(gelu="tanh"), "GELU erf in place of tanh"),
        ("timm", "m.safetensors", dict(gelu="tanh"), "act_layer='gelu_tanh'"),
        ("timm", "folder", dict(layer_norm_eps=1e-12), "LayerNorm eps 1e-06 in place of 1e-12"),
        ("google", "m.npz", dict(gelu="tanh", layer_norm_eps=1e-12), "LayerNorm eps"),
        ("timm", "m.pth", dict(image_size=64, patch_size=4, resnet=ResNetConfig()), "small constants"),
    ],
)
def test_other_constants_are_refused_unless_allowed(family, name, overrides, word, tmp_path, caplog):
    clf = classifier(**overrides)
    with pytest.raises(WeightsError, match=r"logits would change.*allow_changes=True"):
        convert(clf, tmp_path / name, to=family)
    assert not any(tmp_path.iterdir())
    with caplog.at_level(logging.WARNING, "vitreous"):
        notes = convert(clf, tmp_path / name, to=family, allow_changes=True)
    assert word in notes[0]
    assert word in caplog.text
    assert (tmp_path / name).exists()


def test_what_is_lost_is_said(tmp_path):
    clf = classifier("google", gelu="tanh", image_size=(32, 48), dropout_rate=0.1, stochastic_depth_rate=0.2)
    notes = " / ".join(convert(clf, tmp_path / "m.npz", to="google"))
    for word in ("class names", "grid is (4, 6)", "dropout_rate=0.1, stochastic_depth_rate=0.2"):
        assert word in notes
    notes = " / ".join(convert(clf, tmp_path / "folder", to="huggingface"))
    assert "antialias" in notes
    assert "stochastic_depth_rate=0.2" in notes
    assert " dropout_rate" not in notes


def test_paths_that_do_not_fit_the_family(tmp_path):
    clf = classifier()
    (tmp_path / "here").mkdir()
    for family, name, word in (
        ("google", "m.safetensors", r"\.npz"),
        ("torchvision", "folder", r"\.pth"),
        ("huggingface", "m.pth", "a folder"),
        ("timm", "m.npz", "folder"),
    ):
        with pytest.raises(WeightsError, match=word):
            convert(clf, tmp_path / name, to=family, allow_changes=True)
    with pytest.raises(ConfigError, match=r"did you mean 'torchvision'"):
        convert(clf, tmp_path / "m", to="torchvison")
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="is a file already"):
        convert(clf, tmp_path / "file", to="timm")


def test_from_any_family_to_any_other(tmp_path):
    """One model handed round: the same bits at the end."""
    clf = classifier("huggingface")
    convert(clf, tmp_path / "1", to="huggingface")
    convert(load(tmp_path / "1"), tmp_path / "2", to="timm")
    convert(load(tmp_path / "2"), tmp_path / "3.pth", to="torchvision")
    third = load(tmp_path / "3.pth", num_heads=3)
    convert(third, tmp_path / "4.npz", to="google", allow_changes=True)
    assert_same_tensors(clf.model.state_dict(), load(tmp_path / "4.npz").model.state_dict())


def test_the_file_stays_as_it_was_when_the_model_is_trained(tmp_path):
    """The tensors are the mapped file: writing to them copies."""
    convert(classifier(), tmp_path / "m.safetensors", to="timm")
    before = (tmp_path / "m.safetensors").read_bytes()
    model = load(tmp_path / "m.safetensors").model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert (tmp_path / "m.safetensors").read_bytes() == before
