"""The runtime is chosen by measurement, gives PyTorch's logits, and the choice is remembered and explained."""

import json

import pytest
import torch

from tests.conftest import tiny, write_pictures
from vitreous.base.errors import ConfigError, ImageError, VitreousError, WeightsError
from vitreous.base.files import cache_folder
from vitreous.classifier import Classifier
from vitreous.engine import compile as compiling
from vitreous.engine import runtimes
from vitreous.engine.choice import Row
from vitreous.engine.compile import compile
from vitreous.pictures.preprocess import Preprocess

LABELS = tuple("abcdefg")
FAST = [name for name in runtimes.RUNTIMES if name != "torch.compile" and runtimes.missing(name) is None]


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """A memory of its own, few rounds, and no minutes of C++ compilation."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "ROUNDS", 3)
    missing = runtimes.missing
    reason = "needs a C++ compiler, such as g++"
    monkeypatch.setattr(compiling, "missing", lambda name: reason if name == "torch.compile" else missing(name))


@pytest.fixture
def clf():
    return Classifier(tiny(), Preprocess.preset("google", size=32), LABELS)


@pytest.mark.parametrize("runtime", FAST)
@pytest.mark.parametrize("batch", [1, 5])
def test_every_runtime_gives_the_same_logits_and_predictions(clf, runtime, batch):
    compiled = compile(clf, runtime, threads=1, batch_size=2)
    images = torch.randn(batch, 3, 32, 32)
    torch.testing.assert_close(compiled.compute(images), clf.compute(images), atol=1e-5, rtol=1e-5)
    pixels = list(torch.randint(0, 256, (batch, 3, 50, 40), dtype=torch.uint8))
    ours, theirs = clf.predict(pixels), compiled.predict(pixels)
    assert [[g.label for g in row] for row in theirs] == [[g.label for g in row] for row in ours]
    assert (compiled.choice.runtime, compiled.choice.threads) == (runtime, 1)
    with pytest.raises(ImageError, match="3, 32, 32"):
        compiled.compute(torch.zeros(1, 3, 64, 64))


def test_torch_compile_with_frozen_weights(clf):
    if runtimes.missing("torch.compile"):
        pytest.skip("no C++ compiler")
    model = tiny(num_layers=1)
    run = runtimes.open_compiled(model, 1, torch.float32)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        wanted = model(images)
    torch.testing.assert_close(run(images), wanted, atol=1e-5, rtol=1e-5)
    assert all(p.requires_grad for p in model.parameters())  # the classifier's own weights are untouched


def test_the_choice_is_measured_explained_and_remembered(clf, monkeypatch):
    first = compile(clf)
    rows = {(row.runtime, row.threads) for row in first.choice.rows}
    assert {name for name, _ in rows} >= set(FAST)
    assert all(row.difference <= 1e-4 for row in first.choice.rows if row.seconds)
    assert first.choice.runtime in repr(first)
    assert "needs a C++ compiler" in first.choice.table()
    assert f"* {first.choice.runtime}" in first.choice.table()
    monkeypatch.setattr(compiling, "_measure", lambda *a: pytest.fail("measured again"))
    again = compile(clf)
    assert again.choice.remembered
    assert (again.choice.runtime, again.choice.rows) == (first.choice.runtime, first.choice.rows)
    assert str(again.choice) == f"{first.choice} (measured before)"
    for otherwise in (dict(batch_size=2), dict(measure_again=True)):
        with pytest.raises(pytest.fail.Exception, match="measured again"):
            compile(clf, **otherwise)
    for file in cache_folder("choices").iterdir():
        file.write_text("{")
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        compile(clf)


@pytest.mark.parametrize(
    "seconds, wanted",
    [
        ({"torch": 1.0, "onnxruntime": 0.97, "openvino": 1.2}, "torch"),  # 3 % may be noise
        ({"torch": 1.0, "onnxruntime": 0.90, "openvino": 0.80}, "openvino"),
        ({"torch": 1.0, "onnxruntime": 0.90}, "onnxruntime"),
        ({"torch": 1.0}, "torch"),
    ],
)
def test_nothing_slower_than_eager_is_chosen(seconds, wanted):
    rows = [Row(name, 2, taken, seconds["torch"] / taken, 1e-6, final=True) for name, taken in seconds.items()]
    rows.append(Row("torch.compile", 2, note="failed: no reason"))
    chosen = compiling._best(rows, [], "float32")
    assert chosen.runtime == wanted
    assert ("nothing was more than 1.05 times" in str(chosen)) == (wanted == "torch")


def test_a_runtime_with_other_logits_is_left_out(clf, monkeypatch):
    honest = compiling.open_onnxruntime

    def off(path, threads):
        run, metadata = honest(path, threads)
        return (lambda images: run(images) + 1e-3), metadata

    monkeypatch.setattr(compiling, "open_onnxruntime", off)
    compiled = compile(clf)
    assert compiled.choice.runtime != "onnxruntime"
    assert "its logits are not PyTorch's" in compiled.choice.table()
    with pytest.raises(VitreousError, match=r"onnxruntime: its logits differ from PyTorch's by 1\.0e-03"):
        compile(clf, "onnxruntime", threads=1)


@pytest.mark.parametrize("precision, runtime", [("int8", "onnxruntime"), ("bfloat16", "torch")])
def test_another_precision_only_with_its_cost_in_accuracy(clf, tmp_path, precision, runtime):
    data = write_pictures(tmp_path / "data", dict.fromkeys(LABELS, 2))
    with pytest.raises(ConfigError, match="give data to measure"):
        compile(clf, precision=precision)
    compiled = compile(clf, runtime, threads=1, precision=precision, data=data)
    assert compiled.accuracy.n == 14
    assert compiled.accuracy.same > 0.5
    assert "points) on 14 pictures" in repr(compiled)
    images = torch.randn(2, 3, 32, 32)
    difference = (compiled.compute(images) - clf.compute(images)).abs().max()
    assert 1e-4 < difference < 1  # it is another precision indeed


def test_later_changes_of_the_classifier_and_a_head_of_zeros(clf):
    compiled = compile(clf, "onnxruntime", threads=1)
    images = torch.randn(1, 3, 32, 32)
    before = compiled.compute(images)
    with torch.no_grad():
        clf.model.head.weight.zero_()
    assert torch.equal(compiled.compute(images), before)
    clf.reset_head(LABELS)
    with pytest.raises(WeightsError, match="all zeros"):
        compile(clf, "onnxruntime", threads=1).predict(torch.zeros(3, 32, 32, dtype=torch.uint8))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"runtime": "openvin"}, "did you mean 'openvino'"),
        ({"threads": 0}, "threads must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"runtime": "torch", "precision": "int8", "data": "x"}, "int8 is computed by onnxruntime"),
    ],
)
def test_what_there_is_not(clf, settings, message):
    with pytest.raises(ConfigError, match=message):
        compile(clf, **settings)


def test_a_runtime_that_is_not_installed(clf, monkeypatch):
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None)
    with pytest.raises(VitreousError, match=r"openvino needs onnx and openvino: pip install 'vitreous\[openvino\]'"):
        compile(clf, "openvino")
    monkeypatch.setattr(runtimes.shutil, "which", lambda name: None)
    assert runtimes.missing("torch.compile") == "needs a C++ compiler, such as g++"


def test_the_command_says_on_stderr_what_it_chose(clf, tmp_path):
    from typer.testing import CliRunner

    from vitreous.cli.main import app

    clf.save(tmp_path / "m.safetensors")
    data = write_pictures(tmp_path / "data", {"a": 3})
    words = ["predict", str(tmp_path / "m.safetensors"), str(data), "--format", "json"]
    plain = CliRunner().invoke(app, words)
    asked = CliRunner().invoke(app, [*words, "--runtime", "onnxruntime"])
    assert (plain.exit_code, asked.exit_code) == (0, 0), asked.stderr
    assert "onnxruntime" in asked.stderr
    ours, theirs = json.loads(plain.stdout), json.loads(asked.stdout)
    assert [row["label"] for row in theirs] == [row["label"] for row in ours]
