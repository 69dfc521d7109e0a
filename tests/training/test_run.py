"""Whole runs on a data set that a tiny model learns in seconds."""

import json
import logging
import os
import signal
import threading

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import TINY, tiny, write_pictures
from vitreous.base.errors import DataError, ImageError, Interrupted, VitreousError
from vitreous.classifier import Classifier, load
from vitreous.config import ViTConfig
from vitreous.evaluation.evaluate import evaluate
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.loop import Loop
from vitreous.training.recipe import Recipe
from vitreous.training.run import finetune, pretrain

QUICK = dict(steps=6, batch_size=8, warmup_steps=1, base_lr=0.01, progress=False, num_workers=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("data"), {"green": 12, "grey": 10, "red": 11})


@pytest.fixture
def clf():
    return Classifier(tiny(), Preprocess.preset("google", size=32))


def test_it_learns_and_keeps_everything_in_one_folder(clf, data, tmp_path):
    before = {name: tensor.clone() for name, tensor in clf.model.state_dict().items()}
    result = finetune(clf, data, tmp_path / "out", **{**QUICK, "steps": 40, "base_lr": 0.03}, image_size=(24, 40))
    assert all(torch.equal(tensor, before[name]) for name, tensor in clf.model.state_dict().items())
    assert result.log[0]["loss"] == pytest.approx(1.0986, abs=1e-4)  # a zero head: ln 3
    assert result.evaluation.top1 >= 0.9
    assert result.evaluation.n == 3  # a tenth of each class, rounded
    saved = load(tmp_path / "out" / "model.safetensors")
    assert saved.labels == ("green", "grey", "red")
    assert saved.model.config.image_size == saved.preprocess.size == (24, 40)
    assert saved.provenance["data"]["train_pictures"] == 30
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["top1"] == result.evaluation.top1
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "model.safetensors",
        "metrics.json",
        "report.html",
        "recipe.toml",
        "log.jsonl",
        "speed.jsonl",
        "state.safetensors",
    }
    assert [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()] == result.log
    # The same folder measured again: the pictures held out then, not those trained on.
    again = evaluate(saved, data, progress=False, num_workers=0)
    assert (again.n, again.top1) == (result.evaluation.n, result.evaluation.top1)
    assert evaluate(saved, data, "all", progress=False, num_workers=0).n == 33
    assert evaluate(saved, data, "train", progress=False, num_workers=0).n == 30


def test_t13_sixteen_pictures_of_two_classes_are_learned_by_heart(tmp_path):
    data = write_pictures(tmp_path / "data", {"a": 8, "b": 8})
    config = ViTConfig(**{**TINY, "num_layers": 2})
    recipe = Recipe(steps=100, batch_size=16, val_fraction=0.0, optimizer="adamw", base_lr=1e-3, warmup_steps=5)
    result = pretrain(config, data, tmp_path / "out", recipe, progress=False, num_workers=0)
    assert result.evaluation is None
    assert min(entry["loss"] for entry in result.log[-10:]) < 0.05
    assert evaluate(result.classifier, data, "all", progress=False, num_workers=0).top1 == 1.0


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_t32_stopped_and_resumed_ends_bit_equal(clf, data, tmp_path, optimizer, monkeypatch):
    settings = {**QUICK, "optimizer": optimizer, "checkpoint_every": 2, "dropout_rate": 0.1, "eval_every": 3}
    settings["momentum_dtype"] = "bfloat16"
    finetune(clf, data, tmp_path / "whole", **settings)
    learning_rate = Loop._learning_rate

    def power_cut(self, step):
        if step == 3:
            raise OSError("power cut")
        return learning_rate(self, step)

    monkeypatch.setattr(Loop, "_learning_rate", power_cut)
    with pytest.raises(OSError, match="power cut"):
        finetune(clf, data, tmp_path / "parts", **settings)
    monkeypatch.undo()
    torch.manual_seed(123)  # whatever else the process has drawn must not matter
    finetune(clf, data, tmp_path / "parts", **settings, resume=True)
    for name in ("model.safetensors", "state.safetensors"):
        whole, parts = load_file(tmp_path / "whole" / name), load_file(tmp_path / "parts" / name)
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[key], parts[key]) for key in whole)
    assert (tmp_path / "whole" / "log.jsonl").read_text() == (tmp_path / "parts" / "log.jsonl").read_text()


def test_a_signal_saves_the_state(clf, data, tmp_path):
    stop = threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGTERM))

    def at_the_first_step(self, step, _rate=Loop._learning_rate):
        if step == 0:
            stop.start()
            stop.join()
        return _rate(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_learning_rate", at_the_first_step)
        with pytest.raises(Interrupted, match="stopped after step 1 of 6; go on with --resume"):
            finetune(clf, data, tmp_path / "out", **QUICK)
    result = finetune(clf, data, tmp_path / "out", **QUICK, resume=True)
    assert len(result.log) == 6


def test_accumulation_equals_the_large_batch(clf, data, tmp_path):
    whole = finetune(clf, data, tmp_path / "whole", **QUICK)
    parts = finetune(clf, data, tmp_path / "parts", **QUICK, accum_steps=4)
    for a, b in zip(whole.log, parts.log, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    for a, b in zip(whole.classifier.model.parameters(), parts.classifier.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_validation_classes(clf, tmp_path):
    write_pictures(tmp_path / "train", {"a": 4, "b": 4, "c": 4})
    write_pictures(tmp_path / "val", {"a": 2, "c": 1})
    result = finetune(clf, tmp_path, tmp_path / "out", **QUICK)
    assert [(c.label, c.n) for c in result.evaluation.classes] == [("a", 2), ("b", 0), ("c", 1)]
    assert result.evaluation.classes[1].accuracy is None
    write_pictures(tmp_path / "val", {"d": 1})
    with pytest.raises(DataError, match="class 'd' is not among the 3 classes"):
        finetune(clf, tmp_path, tmp_path / "out2", **QUICK)


def test_a_run_is_never_overwritten_and_resume_must_fit(clf, data, tmp_path):
    finetune(clf, data, tmp_path / "out", **QUICK)
    with pytest.raises(VitreousError, match="already holds a run"):
        finetune(clf, data, tmp_path / "out", **QUICK)
    with pytest.raises(VitreousError, match=r"another run \(base_lr 0.01 -> 0.02\)"):
        finetune(clf, data, tmp_path / "out", **{**QUICK, "base_lr": 0.02}, resume=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(VitreousError, match="is a file"):
        finetune(clf, data, tmp_path / "file", **QUICK)


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(clf, data, tmp_path):
    with pytest.raises(VitreousError, match=r"loss is (nan|inf).*at step \d+.*smaller base_lr"):
        finetune(clf, data, tmp_path / "out", **{**QUICK, "base_lr": 1e38, "grad_clip": 0.0, "steps": 10})


def test_one_class_is_not_a_task(clf, tmp_path):
    with pytest.raises(DataError, match="only the class 'a'"):
        finetune(clf, write_pictures(tmp_path / "data", {"a": 3}), tmp_path / "out", **QUICK)


def test_keeping_the_head_needs_the_same_classes(clf, data, tmp_path):
    first = finetune(clf, data, tmp_path / "first", **QUICK)
    second = finetune(first.classifier, data, tmp_path / "second", **QUICK, new_head=False)
    assert second.log[0]["loss"] != pytest.approx(1.0986, abs=1e-4)
    with pytest.raises(DataError, match="new_head=false"):
        finetune(clf, data, tmp_path / "third", **QUICK, new_head=False)


@pytest.mark.parametrize(
    "mixing", [{"augment": "medium2"}, {"cutmix_alpha": 1.0, "mixup_alpha": 0.3, "label_smoothing": 0.1}]
)
def test_mixed_batches_are_the_same_in_parts_and_with_workers(clf, data, tmp_path, mixing):
    settings = {**QUICK, **mixing, "steps": 3, "accum_steps": 1}
    whole = finetune(clf, data, tmp_path / "whole", **settings)
    parts = finetune(clf, data, tmp_path / "parts", **{**settings, "accum_steps": 4})
    workers = finetune(clf, data, tmp_path / "workers", **{**settings, "num_workers": 2})
    plain = finetune(clf, data, tmp_path / "plain", **{**QUICK, "steps": 3, "accum_steps": 1})
    assert [entry["loss"] for entry in whole.log] == [entry["loss"] for entry in workers.log]
    for a, b in zip(whole.log, parts.log, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    assert whole.log[0]["loss"] == pytest.approx(1.0986, abs=1e-4)  # ln 3, whatever the targets
    assert whole.log[2]["loss"] != pytest.approx(plain.log[2]["loss"], abs=1e-3)
    for a, b in zip(whole.classifier.model.parameters(), parts.classifier.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.fixture
def damaged(tmp_path):
    folder = write_pictures(tmp_path / "damaged", {"a": 6, "b": 6, "c": 4})
    (folder / "a" / "002.png").write_bytes((folder / "a" / "002.png").read_bytes()[:500])
    (folder / "c" / "001.png").write_text("not a picture")
    return folder


def test_a_broken_picture_stops_training_with_its_name(clf, damaged, tmp_path):
    with pytest.raises(ImageError, match=r"(a/002|c/001)\.png"):
        finetune(clf, damaged, tmp_path / "out", **QUICK)


def test_broken_pictures_are_skipped_counted_and_listed(clf, damaged, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("vitreous"), "propagate", True)
    settings = {
        **QUICK,
        "steps": 4,
        "accum_steps": 1,
        "on_broken": "skip",
        "val_fraction": 0.0,
    }
    result = finetune(clf, damaged, tmp_path / "out", **settings)
    assert result.skipped == ("a/002.png", "c/001.png")
    assert result.samples == 4 * 8 - 2 * 2  # two epochs
    assert result.classifier.provenance["samples"] == 28
    assert result.classifier.provenance["skipped"] == ["a/002.png", "c/001.png"]
    assert sorted(name for entry in result.log for name in entry.get("skipped", [])) == sorted(result.skipped * 2)
    assert [record.message.count("skipped") for record in caplog.records if "skipped" in record.message] == [1, 1]
    # The loss is the mean over those present, in one batch or in parts, some of which may have none.
    parts = finetune(clf, damaged, tmp_path / "parts", **{**settings, "accum_steps": 8})
    for a, b in zip(result.log, parts.log, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    for a, b in zip(result.classifier.model.parameters(), parts.classifier.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_resumed_run_still_lists_what_was_skipped_before(clf, damaged, tmp_path, monkeypatch):
    settings = {**QUICK, "accum_steps": 1, "checkpoint_every": 2, "on_broken": "skip", "val_fraction": 0.0}
    learning_rate = Loop._learning_rate

    def power_cut(self, step):
        if step == 4:
            raise OSError("power cut")
        return learning_rate(self, step)

    monkeypatch.setattr(Loop, "_learning_rate", power_cut)
    with pytest.raises(OSError, match="power cut"):
        finetune(clf, damaged, tmp_path / "out", **settings)
    monkeypatch.undo()
    result = finetune(clf, damaged, tmp_path / "out", **settings, resume=True)
    assert (result.samples, result.skipped) == (6 * 8 - 3 * 2, ("a/002.png", "c/001.png"))


def test_broken_pictures_held_out_are_listed_and_not_measured(clf, tmp_path):
    write_pictures(tmp_path / "train", {"a": 4, "b": 4})
    write_pictures(tmp_path / "val", {"a": 3, "b": 2})
    (tmp_path / "val" / "a" / "001.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"val/a/001\.png"):
        finetune(clf, tmp_path, tmp_path / "stopped", **QUICK)
    result = finetune(clf, tmp_path, tmp_path / "out", **QUICK, accum_steps=1, on_broken="skip")
    assert (result.evaluation.n, result.evaluation.skipped) == (4, ("val/a/001.png",))
    assert [c.n for c in result.evaluation.classes] == [2, 2]
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["skipped"] == ["val/a/001.png"]
    assert (result.skipped, result.samples) == ((), 48)


def test_a_data_set_with_training_pictures_alone_holds_some_out_and_knows_them_again(clf, tmp_path):
    write_pictures(tmp_path / "data" / "train", {"a": 12, "b": 10})
    result = finetune(clf, tmp_path / "data", tmp_path / "out", **QUICK)
    again = evaluate(load(tmp_path / "out" / "model.safetensors"), tmp_path / "data", progress=False, num_workers=0)
    assert list(again.names) == list(result.evaluation.names)
