"""Metrics against scores computed by hand, every picture counted once; the report."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.conftest import tiny, write_pictures
from vitreous.base.errors import DataError, ImageError, WeightsError
from vitreous.classifier import Classifier
from vitreous.data.open import open_data
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.figures import running_mean
from vitreous.evaluation.report import EXAMPLES, Story
from vitreous.pictures.preprocess import Preprocess

LABELS = tuple("abcdefg")


@pytest.fixture
def clf():
    return Classifier(tiny(), Preprocess.preset("google", size=32), LABELS)


@pytest.fixture
def data(tmp_path):
    return open_data(write_pictures(tmp_path / "data", {"a": 4, "c": 6, "d": 2, "g": 1}))


@pytest.mark.parametrize("batch_size", [1, 5, 13])
def test_metrics_by_hand(clf, data, batch_size):
    found = evaluate(clf, data, progress=False, num_workers=0, batch_size=batch_size)
    split = data.split("all").with_classes(LABELS)
    logits = clf.logits([split.open(i) for i in range(13)])
    labels = torch.from_numpy(split.labels)
    order = logits.argsort(dim=-1, descending=True)
    assert found.n == 13
    assert found.loss == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)
    assert found.top1 == (order[:, 0] == labels).float().mean().item()
    assert found.top5 == pytest.approx((order[:, :5] == labels[:, None]).any(1).float().mean().item())
    by_hand = np.zeros((7, 7), int)
    for true, predicted in zip(labels.tolist(), order[:, 0].tolist(), strict=True):
        by_hand[true, predicted] += 1
    assert (found.confusion == by_hand).all()
    assert [(c.n, c.correct) for c in found.classes] == list(zip(by_hand.sum(1), by_hand.diagonal(), strict=True))
    low, high = found.interval()
    assert 0 <= low <= found.top1 <= high <= 1


def test_fewer_than_five_classes(tmp_path):
    clf = Classifier(tiny(num_classes=3), Preprocess.preset("google", size=32), ("a", "b", "c"))
    found = evaluate(clf, write_pictures(tmp_path, {"a": 2, "b": 1}), progress=False, num_workers=0)
    assert found.top5 == 1.0
    assert found.guesses.shape == (3, 3)


def test_what_cannot_be_measured_says_why(clf, data, tmp_path):
    other = write_pictures(tmp_path / "other", {"a": 1, "x": 1})
    with pytest.raises(DataError, match="class 'x' is not among the 7 classes"):
        evaluate(clf, other, progress=False)
    nameless = Classifier(tiny(), Preprocess.preset("google", size=32))
    with pytest.raises(DataError, match="4 classes, and the model has 7 without names"):
        evaluate(nameless, data, progress=False)
    with pytest.raises(WeightsError, match="all zeros"):
        evaluate(clf.reset_head(labels=LABELS), data, progress=False)


def test_report_is_one_whole_page(clf, data, tmp_path):
    found = evaluate(clf, data, progress=False, num_workers=0)
    log = [{"step": i, "loss": 2.0 / (i + 1), "lr": 0.01, "grad_norm": 1.0} for i in range(20)]
    log[9] |= {"val_top1": 0.5, "val_loss": 1.0}
    found.save(tmp_path, Story(log=log, notes=["One & <two>."]))
    assert json.loads((tmp_path / "metrics.json").read_text()) == json.loads(json.dumps(found.to_dict()))
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert f"{found.top1:.1%}" in page
    assert page.count("<tr><td><img") == 5  # of the pairs of classes that are most often confused
    assert "prefers-color-scheme: dark" in page
    assert "{&#39;" not in page  # no Python dictionary is shown
    assert "One &amp; &lt;two&gt;." in page
    right = round(found.top1 * found.n)
    assert page.count('<figure class="card">') == min(right, EXAMPLES) + min(found.n - right, EXAMPLES)
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")


def test_running_mean():
    assert running_mean(np.array([1.0, 2.0, 3.0, 4.0]), 2).tolist() == [1.0, 1.5, 2.5, 3.5]


def test_every_picture_counts_once_in_a_last_batch_of_one(clf, tmp_path):
    data = open_data(write_pictures(tmp_path / "many", {"a": 200, "b": 313}, size=(8, 8)))
    found = evaluate(clf, data, progress=False, num_workers=0, batch_size=512)
    assert (found.n, len(found.guesses), sum(c.n for c in found.classes)) == (513, 513, 513)
    smaller = evaluate(clf, data, progress=False, num_workers=0, batch_size=100)
    assert found.top1 == smaller.top1
    assert found.loss == pytest.approx(smaller.loss, abs=1e-5)


def test_broken_pictures_stop_or_are_counted_out(clf, data):
    (data.root / "c" / "002.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"c/002\.png: empty"):
        evaluate(clf, data, progress=False, num_workers=0)
    found = evaluate(clf, data, progress=False, num_workers=0, batch_size=4, on_broken="skip")
    assert (found.n, found.skipped, found.classes[2].n) == (12, ("c/002.png",), 5)
    assert "c/002.png" not in found.names
    assert found.to_dict()["skipped"] == ["c/002.png"]
    assert found.confusion.sum() == 12
    for picture in data.root.rglob("*.png"):
        picture.write_bytes(b"")
    with pytest.raises(DataError, match="none of the 13 pictures"):
        evaluate(clf, data, progress=False, num_workers=0, on_broken="skip")
