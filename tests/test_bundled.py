"""The model that comes with the package."""

import json

import pytest
import torch

from scripts.make_mini import ASSET, CONFIG, LOG, PREPROCESS, SECOND, main
from tests.conftest import ROOT, shared, write_pictures
from vitreous.classifier import load
from vitreous.cli.demo import SIZE, start, untrained
from vitreous.data.open import open_data
from vitreous.training.recipe import Recipe
from vitreous.weights.safefile import read_safetensors


def test_it_is_small_and_says_where_it_comes_from():
    assert ASSET.stat().st_size <= 8e6
    clf = load("vitreous:mini")
    assert clf.model.config == CONFIG.replace(num_classes=10)
    assert clf.preprocess == PREPROCESS
    assert clf.labels == ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    assert all(parameter.dtype == torch.float32 for parameter in clf.model.parameters())
    _, stored = read_safetensors(ASSET)
    assert all(tensor.dtype == torch.float16 for tensor in stored.values())
    assert str(ROOT.parent) not in str(clf.provenance)
    first, second = Recipe.load("mini"), Recipe.load("mini", **SECOND)
    for name, recipe, found in (("first", first, clf.provenance["start"]), ("second", second, clf.provenance)):
        assert Recipe.load(LOG / name / "recipe.toml") == recipe
        assert found["samples"] == recipe.steps * recipe.batch_size
        assert found["scores"]["raw"]["top1"] == json.loads((LOG / name / "metrics.json").read_text())["top1"]
        assert (LOG / name / "log.jsonl").stat().st_size < 100_000


def test_it_knows_the_test_pictures():
    (test,) = open_data(shared("data/cifar10-jpeg/test.zip")).splits.values()
    some = test.select(range(0, len(test), 20))  # 500
    clf = load("vitreous:mini")
    right = [
        guesses[0].label == test.classes[int(label)]
        for guesses, label in zip(clf.predict([some.open(i) for i in range(len(some))]), some.labels, strict=True)
    ]
    stated = clf.provenance["scores"]["raw"]["top1"]
    assert sum(right) / len(right) == pytest.approx(stated, abs=0.06)  # three standard errors


def test_it_can_be_made_again(tmp_path, monkeypatch):
    import zipfile

    for part in ("train", "test"):
        write_pictures(tmp_path / part, {"a": 8, "b": 8})
        with zipfile.ZipFile(tmp_path / f"{part}.zip", "w") as archive:
            for path in (tmp_path / part).rglob("*.*"):
                archive.write(path, path.relative_to(tmp_path / part))
    out, asset = tmp_path / "run", tmp_path / "mini.safetensors"
    words = ["make_mini", "--data", str(tmp_path), "--out", str(out), "--asset", str(asset), "--steps", "1"]
    monkeypatch.setattr("sys.argv", [*words, "--log", str(tmp_path / "log")])
    main()
    made = load(asset)
    assert made.labels == ("a", "b")
    assert str(tmp_path) not in str(made.provenance)
    assert made.provenance["start"]["scores"]["raw"]["n"] < made.provenance["scores"]["raw"]["n"] == 16
    assert (tmp_path / "log" / "second" / "log.jsonl").exists()


def test_the_demo_starts_from_it_with_resized_positions():
    clf = start()
    mini, ours, random = load("vitreous:mini").model, clf.model, untrained(clf).model
    assert ours.config == mini.config.replace(image_size=SIZE) == random.config
    assert torch.equal(ours.position_embedding[:, 0], mini.position_embedding[:, 0])  # of CLS: kept apart
    assert ours.position_embedding.shape[1] == 1 + (SIZE // 8) ** 2
    for (name, a), b, c in zip(mini.named_parameters(), ours.parameters(), random.parameters(), strict=True):
        if name != "position_embedding":
            assert torch.equal(a, b), name
            assert not torch.equal(a, c) or name.endswith(("bias", "norm1.weight", "norm2.weight", "norm.weight")), name
