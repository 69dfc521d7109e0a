"""One process and two with gloo: the same run, the same scores, every picture once (pitfalls T31, T33)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import tiny, write_pictures
from tests.training.forks import on_processes
from vitreous.classifier import Classifier
from vitreous.evaluation.evaluate import evaluate
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.loop import Loop
from vitreous.training.recipe import Recipe
from vitreous.training.run import finetune

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

# Everything random is on, the batch comes in two parts, and the GAP model has no CLS token (T33).
MODEL = dict(classifier="gap", num_layers=2, stochastic_depth_rate=0.3)
RECIPE = Recipe(
    steps=20,
    batch_size=8,
    accum_steps=2,
    warmup_steps=4,
    base_lr=0.02,
    augment="rand",
    erasing=0.2,
    mixup_alpha=0.5,
    cutmix_alpha=0.5,
    label_smoothing=0.1,
    dropout_rate=0.2,
    attention_dropout_rate=0.2,
    ema_decay=0.9,
    eval_every=10,
    checkpoint_every=5,
)


def train(data: Path, out: Path, strategy: str, optimizer: str, power_cut: int | None) -> None:
    learning_rate = Loop._learning_rate

    def cut(self: Loop, step: int) -> float:
        if step == power_cut:
            raise SystemExit(0)
        return learning_rate(self, step)

    Loop._learning_rate = cut  # type: ignore[method-assign]
    try:
        clf = Classifier(tiny(**MODEL), Preprocess.preset("google", size=32))
        recipe = RECIPE.replace(optimizer=optimizer, base_lr=0.02 if optimizer == "sgd" else 1e-4)
        finetune(clf, data, out, recipe, progress=False, num_workers=0, strategy=strategy, resume=power_cut is None)
    finally:
        Loop._learning_rate = learning_rate  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_pictures(folder / "train", {"a": 7, "b": 6, "c": 8})
    write_pictures(folder / "val", {"a": 2, "b": 2, "c": 1})
    return folder


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """The run on one process, with each optimiser."""
    out = tmp_path_factory.mktemp("alone")
    for optimizer in ("sgd", "adamw"):
        train(data, out / optimizer, "ddp", optimizer, None)
    return out


@pytest.mark.parametrize(("strategy", "optimizer"), [("ddp", "adamw"), ("fsdp", "sgd")])
def test_t33_two_processes_are_one_with_the_same_batch(data, alone, tmp_path, strategy, optimizer):
    on_processes(2, train, data, tmp_path / "run", strategy, optimizer, 13)  # stopped after the state of step 10
    on_processes(2, train, data, tmp_path / "run", strategy, optimizer, None)
    for name in ("model.safetensors", "state.safetensors"):
        one, two = load_file(alone / optimizer / name), load_file(tmp_path / "run" / name)
        assert one.keys() == two.keys()
        worst = max((one[key] - two[key]).abs().max().item() for key in one)
        assert worst < 1e-6, (name, worst)
    logs = [(run / "log.jsonl").read_text().splitlines() for run in (alone / optimizer, tmp_path / "run")]
    for one_step, other_step in zip(*logs, strict=True):
        assert json.loads(one_step) == pytest.approx(json.loads(other_step), abs=1e-5)
    scores = [json.loads((run / "metrics.json").read_text()) for run in (alone / optimizer, tmp_path / "run")]
    assert scores[0]["n"] == scores[1]["n"] == scores[1]["ema"]["n"] == 5  # T31: an odd number on two processes
    assert scores[0]["confusion"] == scores[1]["confusion"]


def whole_run(data: Path, out: Path) -> None:
    train(data, out, "ddp", "sgd", None)


def test_a_run_on_two_processes_that_was_stopped_ends_bit_equal(data, tmp_path):
    on_processes(2, whole_run, data, tmp_path / "whole")
    on_processes(2, train, data, tmp_path / "parts", "ddp", "sgd", 13)
    on_processes(2, whole_run, data, tmp_path / "parts")
    for name in ("model.safetensors", "state.safetensors", "log.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name


def measure(data: Path, out: Path, batch_size: int = 2) -> None:
    from vitreous.base import processes

    processes.connect()
    clf = Classifier(tiny(num_classes=3), Preprocess.preset("google", size=32), ("a", "b", "c"))
    found = evaluate(clf, data, "val", progress=False, num_workers=0, batch_size=batch_size, on_broken="skip")
    (out / f"{processes.rank()}.json").write_text(json.dumps([found.to_dict(), list(found.names)]))


def test_t31_every_picture_is_counted_once_on_any_number_of_processes(data, tmp_path):
    measure(data, tmp_path)
    alone = json.loads((tmp_path / "0.json").read_text())
    assert (alone[0]["n"], len(set(alone[1]))) == (5, 5)
    for count in (2, 3):
        on_processes(count, measure, data, tmp_path)
        for rank in range(count):
            found, names = json.loads((tmp_path / f"{rank}.json").read_text())
            assert names == alone[1]
            assert found.pop("loss") == pytest.approx(alone[0]["loss"], abs=1e-6)
            assert found == {key: value for key, value in alone[0].items() if key != "loss"}


def test_t31_one_picture_more_than_a_batch_is_counted_on_two_processes(tmp_path):
    write_pictures(tmp_path / "many" / "train", {"a": 1, "b": 1, "c": 1})
    write_pictures(tmp_path / "many" / "val", {"a": 171, "b": 170, "c": 172}, size=(32, 32))
    on_processes(2, measure, tmp_path / "many", tmp_path, 512)
    for rank in range(2):
        found, names = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (found["n"], len(set(names))) == (513, 513)


def test_shares_hold_each_thing_once(monkeypatch):
    from vitreous.base import processes

    for n, count in ((0, 2), (1, 3), (5, 2), (513, 4)):
        monkeypatch.setattr(processes, "count", lambda count=count: count)
        found = []
        for rank in range(count):
            monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
            found += processes.share(n)
        assert found == list(range(n))
    assert torch.distributed.is_initialized() is False


def predict(folder: Path) -> None:
    import sys

    from vitreous.cli.main import app

    sys.argv = ["vitreous"]
    words = ["predict", str(folder / "model.safetensors"), str(folder / "pictures"), "--top-k", "2"]
    app([*words, "--format", "parquet", "-o", str(folder / "guesses.parquet")], standalone_mode=False)


def test_predictions_of_two_processes_are_one_file(data, tmp_path):
    from pyarrow import parquet

    write_pictures(tmp_path / "pictures", {"a": 20, "b": 17})
    clf = Classifier(tiny(num_classes=3), Preprocess.preset("google", size=32), ("a", "b", "c"))
    clf.save(tmp_path / "model.safetensors")
    predict(tmp_path)
    alone = parquet.read_table(tmp_path / "guesses.parquet").to_pylist()
    (tmp_path / "guesses.parquet").unlink()
    on_processes(2, predict, tmp_path)
    together = parquet.read_table(tmp_path / "guesses.parquet").to_pylist()
    assert len(alone) == 2 * 37
    for one, other in zip(alone, together, strict=True):
        assert one.pop("probability") == pytest.approx(other.pop("probability"), abs=1e-6)
        assert one == other
    assert [path.name for path in tmp_path.glob("*guesses*")] == ["guesses.parquet"]
