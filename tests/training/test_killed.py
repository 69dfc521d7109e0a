"""Kill -9 at any moment, a full disk, a torn file: the run goes on and ends bit-equal (pitfall T32)."""

import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.conftest import TINY, write_pictures
from tests.training.forks import finish, start
from vitreous.base.errors import VitreousError, WeightsError
from vitreous.config import ViTConfig
from vitreous.training.loop import Loop
from vitreous.training.recipe import Recipe
from vitreous.training.run import pretrain
from vitreous.training.state import PREVIOUS, STATE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

RECIPE = Recipe(
    steps=12,
    batch_size=4,
    warmup_steps=2,
    optimizer="adamw",
    base_lr=1e-3,
    augment="trivial",
    mixup_alpha=0.4,
    dropout_rate=0.1,
    ema_decay=0.9,
    eval_every=3,
    checkpoint_every=2,
    val_fraction=0.2,
)
CONFIG = ViTConfig(**{**TINY, "num_layers": 1, "hidden_size": 24})
MOMENTS = {"save_state": "checkpoint", "_measure": "evaluation", "_step": "step", "flush": "log"}
FILES = ("model.safetensors", "state.safetensors", "log.jsonl")


def train(data: Path, out: Path, **settings: Any) -> None:
    pretrain(CONFIG, data, out, RECIPE, resume=True, progress=False, num_workers=0, **settings)


def watched(data: Path, out: Path, where: str | None, number: int, notes: Path) -> None:
    """Train, and count the function calls within each kind of moment; at the `number`-th one `where`, kill -9.

    Calls, not seconds, so that the moments are the same on a fast machine and a slow one.
    """
    inside: list[str] = []
    counts: Counter[str] = Counter()

    def profile(frame: Any, event: str, argument: Any) -> None:
        name = frame.f_code.co_name
        if event == "call" and name in MOMENTS and "vitreous/training" in frame.f_code.co_filename:
            inside.append(name)
        elif event == "return" and inside and name == inside[-1]:
            inside.pop()
        if inside:
            moment = MOMENTS[inside[-1]]
            counts[moment] += 1
            if moment == where and counts[moment] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    train(data, out)
    sys.setprofile(None)
    notes.write_text(json.dumps(counts))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("data"), {"a": 8, "b": 7})


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    assert finish(start(watched, data, out / "run", None, 0, out / "notes.json")) == [0]
    return out


def test_t32_killed_at_twenty_moments_it_ends_bit_equal(data, whole, tmp_path):
    calls = json.loads((whole / "notes.json").read_text())
    assert calls.keys() == set(MOMENTS.values())
    draw = random.Random(0)
    kills: Counter[str] = Counter()
    runs = [tmp_path / "0"]
    while kills.total() < 20:
        where = ("step", "checkpoint", "evaluation", "log")[kills.total() % 4]
        number = draw.randint(1, max(calls[where] // 3, 1))  # not too late for a run that is nearly done
        (code,) = finish(start(watched, data, runs[-1], where, number, tmp_path / "notes.json"))
        assert code in (0, -signal.SIGKILL)
        if code == 0:  # it came to its end before the moment: on with another run
            runs.append(tmp_path / str(len(runs)))
        else:
            kills[where] += 1
    assert min(kills.values()) == 5
    for run in runs:
        assert finish(start(train, data, run)) == [0]
        for name in FILES:
            assert (run / name).read_bytes() == (whole / "run" / name).read_bytes(), (run, name)
        assert not list(run.glob(".*.part"))  # what was half written is cleared away
        assert {path.name for path in run.glob("state*")} == {STATE, PREVIOUS}


def stopped(data: Path, out: Path, step: int) -> None:
    """Train until a step, as if the power had gone there."""
    learning_rate = Loop._learning_rate

    def cut(self: Loop, now: int) -> float:
        if now == step:
            os._exit(7)
        return learning_rate(self, now)

    Loop._learning_rate = cut  # type: ignore[method-assign]
    train(data, out)


@pytest.mark.parametrize("damage", ["cut off", "holes", "empty", "gone"])
def test_the_state_before_it_is_taken_where_the_newest_is_torn(data, whole, tmp_path, damage, caplog):
    assert finish(start(stopped, data, tmp_path / "run", 7)) == [7]
    newest = tmp_path / "run" / STATE
    content = newest.read_bytes()
    if damage == "gone":
        newest.unlink()  # killed between the two renames
    else:
        half = len(content) // 2
        newest.write_bytes({"cut off": content[:half], "holes": content[:half] + bytes(half), "empty": b""}[damage])
    assert finish(start(train, data, tmp_path / "run")) == [0]
    for name in FILES:
        assert (tmp_path / "run" / name).read_bytes() == (whole / "run" / name).read_bytes(), name


def test_where_no_state_is_whole_it_says_so(data, tmp_path):
    assert finish(start(stopped, data, tmp_path, 5)) == [7]
    for name in (STATE, PREVIOUS):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"state\.safetensors is not a whole .*state\.previous.*start the run anew"):
        train(data, tmp_path)


def on_a_full_disk(data: Path, out: Path, notes: Path) -> None:
    """Train on, where no file may be larger than half a state."""
    resource.setrlimit(resource.RLIMIT_FSIZE, ((out / STATE).stat().st_size // 2,) * 2)
    try:
        train(data, out)
    except VitreousError as error:
        notes.write_text(str(error))


def test_a_full_disk_stops_the_run_and_leaves_the_last_good_state(data, whole, tmp_path):
    run = tmp_path / "run"
    assert finish(start(stopped, data, run, 5)) == [7]
    before = load_file(run / STATE)
    assert finish(start(on_a_full_disk, data, run, tmp_path / "notes")) == [0]
    words = (tmp_path / "notes").read_text()
    assert f"{run / STATE}: the state after step 6 cannot be written" in words
    assert f"the last one is whole, in {run / STATE}. Make room there and go on with --resume" in words
    after = load_file(run / STATE)
    assert all((before[name] == after[name]).all() for name in before)
    assert not list(run.glob(".*.part"))
    assert finish(start(train, data, run)) == [0]
    for name in FILES:
        assert (run / name).read_bytes() == (whole / "run" / name).read_bytes(), name


def test_t32_two_epochs_and_two_more_are_four(data, whole, tmp_path):
    """12 pictures are three steps of four: twelve steps are four epochs."""
    assert finish(start(stopped, data, tmp_path / "run", 6)) == [7]
    assert finish(start(train, data, tmp_path / "run")) == [0]
    for name in FILES:
        assert (tmp_path / "run" / name).read_bytes() == (whole / "run" / name).read_bytes(), name
