"""The closed form against solvers, leaving out against refitting, the folded head against the formula; the command."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.conftest import tiny, write_pictures
from vitreous.base.errors import ConfigError, DataError, ImageError
from vitreous.base.statistics import student, t975
from vitreous.classifier import Classifier, load
from vitreous.cli.main import app
from vitreous.data.open import open_data
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.features import backbone, extract
from vitreous.evaluation.probe import choose, probe
from vitreous.evaluation.ridge import BIAS, L2, OFFICIAL_L2, fit, nearest
from vitreous.pictures.preprocess import Preprocess

K = 4


def blobs(n, d, seed=0, spread=2.0):
    """Features around K centres, of very different scales, and their classes."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % K
    centres = torch.randn(K, d, generator=g)
    x = centres[labels] + spread * torch.randn(n, d, generator=g)
    return (x * torch.logspace(-2, 2, d) + 3.0).float(), labels


def whitened(x):
    x = x.double()
    x = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-5)
    return torch.cat([x, torch.full((len(x), 1), BIAS, dtype=torch.float64)], dim=1)


def solve(x, labels, l2):
    """The formula as it stands."""
    y = 2.0 * F.one_hot(labels, K).double() - 1.0
    return torch.linalg.solve(x.T @ x + l2 * torch.eye(x.shape[1], dtype=torch.float64), x.T @ y)


@pytest.mark.parametrize("n, d", [(60, 9), (12, 40), (41, 40)], ids=["primal", "dual", "square"])
@pytest.mark.parametrize("l2", [2.0**-10, 1.0, 2.0**10])
def test_the_closed_form_is_the_solution(n, d, l2):
    x, labels = blobs(n, d)
    head = fit(x, labels, K, [l2])
    expected = whitened(x) @ solve(whitened(x), labels, l2)  # (n, K)
    assert torch.allclose(head.logits(x) / head.scale, expected, atol=1e-8)


def test_it_is_scikit_learns_ridge():
    linear = pytest.importorskip("sklearn.linear_model")
    x, labels = blobs(50, 12)
    head = fit(x, labels, K, [8.0])
    theirs = linear.Ridge(alpha=8.0, fit_intercept=False).fit(whitened(x), 2.0 * np.eye(K)[labels] - 1.0)
    assert np.allclose(head.logits(x) / head.scale, theirs.predict(whitened(x)), atol=1e-8)


@pytest.mark.parametrize("n, d", [(30, 7), (12, 25)], ids=["primal", "dual"])
def test_leaving_out_is_refitting_without(n, d):
    x, labels = blobs(n, d)
    z = whitened(x)
    for l2 in (0.5, 64.0):
        left_out = fit(x, labels, K, [l2]).left_out
        for i in range(n):
            others = torch.arange(n) != i
            assert torch.allclose(left_out[i], z[i] @ solve(z[others], labels[others], l2), atol=1e-8)


def test_l2_is_chosen_by_the_left_out_pictures():
    x, labels = blobs(80, 60, spread=3.0)
    chosen = fit(x, labels, K)
    right = {l2: int((fit(x, labels, K, [l2]).left_out.argmax(1) == labels).sum()) for l2 in L2}
    assert right[chosen.l2] == max(right.values())
    assert min(right.values()) < max(right.values())  # so that there was something to choose
    losses = [float(F.cross_entropy(s * chosen.left_out, labels)) for s in (0.8 * chosen.scale, chosen.scale)]
    assert losses[1] < losses[0]


def test_one_shot_has_nothing_to_choose_by():
    x, labels = blobs(K, 20)
    head = fit(x, labels, K)
    assert (head.l2, head.scale) == (OFFICIAL_L2, 1.0)
    assert (head.logits(x).argmax(1) == labels).all()


def test_nearest_neighbours_by_hand():
    known = torch.tensor([[1.0, 0.0], [10.0, 1.0], [0.0, 1.0], [0.1, 5.0]])
    labels = torch.tensor([0, 0, 1, 1])
    queries = torch.tensor([[3.0, 1.0], [1.0, 3.0], [-1.0, 5.0]])
    for k in (1, 2, 4):
        assert nearest(known, labels, queries, 2, k).tolist() == [0, 1, 1]
    # Three far votes do not outweigh a near one: exp((1 - 0.6) / 0.07) is 300.
    far = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8], [0.6, -0.8]])
    assert nearest(far, torch.tensor([0, 1, 1, 1]), torch.tensor([[1.0, 0.0]]), 2, 4).tolist() == [0]


def test_students_quantiles():
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 5, 15, 16, 17, 40, 200):
        assert t975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=1e-4)
    values = [0.7, 0.8, 0.75, 0.9]
    theirs = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert student(values) == pytest.approx(theirs, abs=1e-4)


MODELS = {
    "token": {},
    "gap": {"classifier": "gap"},
    "gap with CLS": {"classifier": "gap", "gap_class_token": True, "norm_after_pooling": True},
    "pre-logits": {"representation_size": 20},
    "headless": {"num_classes": 0},
    "hybrid": {"patch_size": 1, "resnet": {"num_layers": (1, 1), "width_factor": 0.5}},
}


@pytest.mark.parametrize("model", MODELS)
def test_features_are_what_the_head_reads(model):
    vit = tiny(**MODELS[model])
    x = torch.randn(2, 3, 32, 32)
    tokens, prefix = vit.features(x), vit.config.prefix_tokens
    expected = vit.pool(vit.hidden_states(x)[-1] if vit.config.classifier == "gap" else vit.hidden_states(x)[-1][:, :1])
    assert torch.allclose(backbone(vit)(x), expected, atol=1e-5)
    if prefix:
        assert torch.allclose(backbone(vit, "cls")(x), tokens[:, 0], atol=1e-5)
    else:
        with pytest.raises(ConfigError, match="no CLS token"):
            backbone(vit, "cls")
    if vit.config.classifier == "token":
        assert torch.allclose(backbone(vit, "mean")(x), tokens[:, prefix:].mean(1), atol=1e-5)


@pytest.fixture
def place(tmp_path):
    """Pictures whose colour tells the class, and a model that was never trained."""
    write_pictures(tmp_path / "data" / "train", {"ash": 8, "bay": 9, "cork": 12})
    write_pictures(tmp_path / "data" / "val", {"ash": 5, "bay": 4, "cork": 6}, seed=1)
    return tmp_path


def classifier(**overrides):
    return Classifier(tiny(**overrides), Preprocess.preset("google", size=32))


SETTINGS = dict(progress=False, num_workers=0)


@pytest.mark.parametrize("model", ["token", "gap", "gap with CLS", "pre-logits", "headless"])
def test_the_folded_head_predicts_what_was_measured(place, model):
    clf = classifier(**MODELS[model])
    found = probe(clf, place / "data", [2, None], draws=3, **SETTINGS)
    few, whole = found.rows
    assert (few.pictures, whole.pictures, found.n) == (6, 29, 15)
    assert (len(few.ridge), len(whole.ridge)) == (3, 1)
    assert few.neighbours == 2
    assert sum(few.ridge) / 3 > 0.5  # random features tell colours apart
    assert whole.ridge[0] > 0.8
    low, high = few.interval(few.ridge)
    assert 0 <= low <= sum(few.ridge) / 3 <= high <= 1
    found.classifier.save(place / "probed.safetensors")
    again = evaluate(load(place / "probed.safetensors"), place / "data", progress=False, num_workers=0)
    assert again.top1 == whole.ridge[0]
    assert again.loss < math.log(3)
    assert clf.model.config.num_classes == MODELS[model].get("num_classes", 7)  # the one given stays as it is


def test_logits_of_the_folded_head_are_those_of_the_formula(place):
    clf = classifier()
    found = probe(clf, place / "data", None, **SETTINGS)
    data = open_data(place / "data")
    x = extract(clf, data.split("train"), **SETTINGS)
    head = fit(x, torch.from_numpy(data.split("train").labels), 3)
    test = data.split("val")
    logits = found.classifier.logits([test.open(i) for i in range(len(test))])
    assert torch.allclose(logits.double(), head.logits(extract(clf, test, **SETTINGS)), atol=1e-4)


def test_a_draw_is_a_function_of_its_seed(place):
    clf = classifier()
    once, twice = (probe(clf, place / "data", [1, 3], draws=4, **SETTINGS) for _ in range(2))
    assert once.to_dict() == twice.to_dict()
    ours, theirs = (found.classifier.model.state_dict() for found in (once, twice))
    assert all((ours[name] == theirs[name]).all() for name in ours)
    train = open_data(place / "data").split("train")
    three, one = choose(train, 3, 2), choose(train, 1, 2)
    assert set(one[1]) < set(three[1])
    assert set(three[0]) != set(three[1])
    assert choose(train, 3, 1, seed=1)[0].tolist() == three[1].tolist()
    assert np.bincount(train.labels[three[0]]).tolist() == [3, 3, 3]


def test_what_cannot_be_asked_for_says_why(place):
    with pytest.raises(DataError, match="class 'ash' has 8 training pictures, fewer than 9 shots: ask for 8 at most"):
        probe(classifier(), place / "data", 9, **SETTINGS)
    with pytest.raises(ConfigError, match="whole numbers"):
        probe(classifier(), place / "data", 0, **SETTINGS)


def test_features_are_kept_by_what_they_are_of(place, monkeypatch):
    clf, split = classifier(), open_data(place / "data").split("train")
    fresh = extract(clf, split, cache=place / "kept", **SETTINGS)
    [file] = (place / "kept").iterdir()
    assert load_file(file)["features"].shape == (29, 48)
    read = []
    monkeypatch.setattr(Preprocess, "load", lambda self, source: read.append(source) or torch.zeros(3, 32, 32))
    reordered = split.select(list(range(28, -1, -1)))
    assert (extract(clf, reordered, cache=place / "kept", **SETTINGS) == fresh.flip(0)).all()
    assert not read
    # Another picture under the same name, and other weights, are other features.
    target = place / "data/train/ash/000.png"
    target.write_bytes((place / "data/val/cork/000.png").read_bytes())
    extract(clf, split, cache=place / "kept", **SETTINGS)
    assert read == [target]
    with torch.no_grad():
        clf.model.blocks[1].mlp.fc1.bias[3] += 1
    extract(clf, split, cache=place / "kept", **SETTINGS)
    assert len(read) == 1 + 29
    assert len(list((place / "kept").iterdir())) == 2


def test_a_broken_picture_loses_nothing(place):
    clf, split = classifier(), open_data(place / "data").split("train")
    (place / "data/train/bay/004.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"bay/004\.png"):
        extract(clf, split, cache=place / "kept", batch_size=4, **SETTINGS)
    [file] = (place / "kept").iterdir()
    assert len(load_file(file)["features"]) == 12  # the whole batches before it


def test_the_command(place, monkeypatch):
    def vitreous(*words):
        return CliRunner().invoke(app, ["probe", "model.safetensors", *map(str, words), "--workers", "0"])

    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("VITREOUS_CACHE", str(place / "cache"))
    classifier(num_classes=0).save("model.safetensors")
    done = vitreous("data", "--shots", "1,5,all", "--out", "probed")
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "15 pictures of data (val); 48 features (cls)." in done.stdout
    assert "kNN: cosine similarity, k = 1, 5, 20." in done.stdout
    assert list((place / "cache/features").iterdir())
    metrics = json.loads((place / "probed/metrics.json").read_text())
    assert [row["shots"] for row in metrics["shots"]] == [1, 5, "all"]
    assert load("probed/model.safetensors").labels == ("ash", "bay", "cork")
    assert json.loads(vitreous("data", "--shots", "1,5,all", "--json").stdout) == metrics
    # Without splits: what is held out here is what `evaluate` measures the saved model on.
    done = vitreous("data/train", "--shots", "all", "--out", "flat", "--val-fraction", "0.3", "--json")
    flat = json.loads(done.stdout)
    assert flat["data"] == "train (held out)"
    found = evaluate(load("flat/model.safetensors"), "data/train", progress=False, num_workers=0)
    assert (found.n, found.top1) == (flat["n"], flat["shots"][0]["ridge"]["mean"])
    for words, code, message in (
        (("data", "--shots", "50"), 1, "class 'ash' has 8 training pictures"),
        (("data", "--shots", "few"), 2, "not a number of shots"),
        (("data", "--shots", "1", "--features", "all"), 1, "features must be cls or mean"),
    ):
        wrong = vitreous(*words)
        assert wrong.exit_code == code
        assert message in wrong.stderr
