"""The one loop over pictures: what every kind of predictor says, in memory and on disk, with and without gaps."""

import json

import pytest
import torch

from tests.conftest import tiny, write_pictures
from vitreous.base.errors import ConfigError, ImageError
from vitreous.classifier import Classifier
from vitreous.data.open import open_data
from vitreous.engine.compile import compile
from vitreous.engine.export import export
from vitreous.engine.exported import load_exported
from vitreous.evaluation import outputs as module
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.outputs import outputs, stream
from vitreous.pictures.preprocess import Preprocess

LABELS = tuple("abcdefg")
QUIET = {"progress": False, "num_workers": 0}


@pytest.fixture
def clf():
    return Classifier(tiny(representation_size=24), Preprocess.preset("google", size=32), LABELS)


@pytest.fixture
def split(tmp_path):
    return open_data(write_pictures(tmp_path / "data", {"a": 4, "c": 6, "g": 1})).split("all").with_classes(LABELS)


@pytest.mark.parametrize("spill", [2**30, 0])
def test_logits_labels_and_features_in_memory_and_on_disk(clf, split, monkeypatch, spill):
    monkeypatch.setattr(module, "SPILL", spill)
    found = outputs(clf, split, features=True, batch_size=4, **QUIET)
    images = clf.prepare([split.open(i) for i in range(11)])
    with torch.no_grad():
        y = clf.model.represent(images)
        logits = clf.model(images)
    torch.testing.assert_close(found.logits, logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.features, y, atol=1e-5, rtol=1e-5)
    assert found.labels.tolist() == split.labels.tolist()
    torch.testing.assert_close(clf.model.classify(found.features), found.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("features", [False, True])
def test_gaps_are_named_and_everything_else_keeps_its_place(clf, split, features):
    whole = outputs(clf, split, features=features, **QUIET)
    for gone in (0, 5, 6):
        split.open(gone).write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"a/000\.png"):
        outputs(clf, split, features=features, **QUIET)
    found = outputs(clf, split, features=features, batch_size=2, on_broken="skip", **QUIET)
    assert [gap.index for gap in found.broken] == [0, 5, 6]
    kept = [1, 2, 3, 4, 7, 8, 9, 10]
    assert list(found.split.names) == [split.names[i] for i in kept]
    torch.testing.assert_close(found.logits, whole.logits[kept], atol=1e-5, rtol=1e-5)
    broken = []
    rows = [row for part in stream(clf, split, [10, 5, 2, 0], batch_size=2, num_workers=0, broken=broken)
            for row in part.rows]  # fmt: skip
    assert rows == [10, 2]
    assert [gap.index for gap in broken] == [5, 0]


@pytest.mark.parametrize("preprocess", ["metadata", "graph"])
def test_a_compiled_model_and_an_exported_file_are_measured_like_the_classifier(clf, split, tmp_path, preprocess):
    data = open_data(split.root)
    wanted = evaluate(clf, data, **QUIET)
    compiled = compile(clf, "onnxruntime", threads=1)
    assert evaluate(compiled, data, **QUIET).top1 == wanted.top1
    export(clf, tmp_path / "model.onnx", preprocess=preprocess)
    found = evaluate(load_exported(tmp_path / "model.onnx", threads=1), data, **QUIET)
    assert (found.guesses[:, 0] == wanted.guesses[:, 0]).all()
    assert found.loss == pytest.approx(wanted.loss, abs=1e-4)
    found.save(tmp_path / "out")
    assert json.loads((tmp_path / "out/metrics.json").read_text())["top1"] == wanted.top1
    assert "patches of 8x8" in (tmp_path / "out/report.html").read_text()
    with pytest.raises(ConfigError, match="features are had of a classifier, not of Compiled"):
        outputs(compiled, data.split("all"), features=True, **QUIET)


def test_pictures_of_many_sizes_go_through_a_graph_that_takes_pixels(clf, tmp_path):
    for side in (20, 33, 50):
        write_pictures(tmp_path / "data", {f"{side}": 2}, size=(side, side + 3))
    for name, folder in zip("abc", ("20", "33", "50"), strict=True):
        (tmp_path / "data" / folder).rename(tmp_path / "data" / name)
    data = open_data(tmp_path / "data")
    export(clf, tmp_path / "model.onnx", preprocess="graph")
    found = evaluate(load_exported(tmp_path / "model.onnx", threads=1), data, batch_size=4, **QUIET)
    wanted = evaluate(clf, data, **QUIET)
    assert found.n == 6
    assert found.loss == pytest.approx(wanted.loss, abs=1e-3)
