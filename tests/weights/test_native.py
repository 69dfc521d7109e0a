"""Our own file: everything in it comes back, bit by bit."""

from pathlib import Path

import pytest
import torch

from tests.conftest import tiny
from vitreous.base.errors import WeightsError
from vitreous.classifier import Classifier, load
from vitreous.config import ResNetConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.safefile import read_metadata, write_safetensors

LABELS = ("Katze", "犬", 'a "quoted" name', "", "e", "f", "g")


def classifier(**overrides: object) -> Classifier:
    model = tiny(**overrides)
    preprocess = Preprocess.preset("timm", size=model.config.image_size)
    return Classifier(model, preprocess, LABELS, {"family": "timm", "trained": {"seed": 3, "top1": 0.9}})


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"image_size": (16, 64), "classifier": "gap", "gelu": "erf", "layer_norm_eps": 1e-12},
        {"representation_size": 24, "position_resize": "huggingface", "dropout_rate": 0.1},
        {"patch_size": 1, "resnet": ResNetConfig(num_layers=(1, 2), width_factor=0.5)},
    ],
    ids=["token", "gap", "pre-logits", "hybrid"],
)
def test_everything_comes_back(tmp_path: Path, overrides: dict[str, object]) -> None:
    clf = classifier(**overrides)
    clf.save(tmp_path / "cats.bin")
    again = load(tmp_path / "cats.bin")
    assert again.model.config == clf.model.config
    assert (again.preprocess, again.labels, again.provenance) == (clf.preprocess, LABELS, clf.provenance)
    tensors = again.model.state_dict()
    assert tensors.keys() == clf.model.state_dict().keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in clf.model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_stay_what_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    clf = classifier()
    clf.model.to(dtype)
    clf.save(tmp_path / "half.safetensors")
    again = load(tmp_path / "half.safetensors").model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in clf.model.state_dict().items())


def test_training_does_not_write_into_the_file(tmp_path: Path) -> None:
    """The weights are the mapped file; writing to them copies the page."""
    path = tmp_path / "model.safetensors"
    classifier().save(path)
    before, clf = path.read_bytes(), load(path)
    with torch.no_grad():
        for parameter in clf.model.parameters():
            parameter.mul_(2)
    clf.save(path)  # over the very file that is mapped
    assert path.read_bytes() != before
    again = load(path).model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in clf.model.state_dict().items())


def test_a_newer_format_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    classifier().save(path)
    meta = read_metadata(path)["__metadata__"]
    tensors = load(path).model.state_dict()
    write_safetensors(tmp_path / "newer", tensors, meta | {"vitreous.format": "2"})
    with pytest.raises(WeightsError, match=r"newer has format version 2.*upgrade"):
        load(tmp_path / "newer")
    for labels in ('["a"]', "[1, 2, 3, 4, 5, 6, 7]", "{", "7"):
        write_safetensors(tmp_path / "odd", tensors, meta | {"vitreous.labels": labels})
        with pytest.raises(WeightsError, match=r"odd: its header is damaged"):
            load(tmp_path / "odd")
    del tensors["cls_token"]
    write_safetensors(tmp_path / "lacking", tensors | {"more": torch.zeros(1)}, meta)
    with pytest.raises(WeightsError, match=r"lacking: \d+ of \d+.*missing: cls_token; not part of this model: more"):
        load(tmp_path / "lacking")
