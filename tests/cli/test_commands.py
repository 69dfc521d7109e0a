"""The commands as a user types them: what they print, what they write, and how they fail."""

import csv
import io
import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.conftest import tiny, write_pictures
from vitreous.classifier import Classifier, load
from vitreous.cli.main import app
from vitreous.pictures.preprocess import Preprocess

LABELS = ("green", "grey", "red")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model and pictures."""
    place = tmp_path_factory.mktemp("place")
    write_pictures(place / "data", dict.fromkeys(LABELS, 6))
    clf = Classifier(tiny(num_classes=3), Preprocess.preset("google", size=32), LABELS, {"family": "test"})
    clf.save(place / "model.safetensors")
    return place


@pytest.fixture
def vitreous(place, monkeypatch):
    def run(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    return run


def test_finetune_then_evaluate_then_predict(vitreous, place):
    settings = [word for pair in ("batch_size=8", "base_lr=0.02", "accum_steps=1") for word in ("--set", pair)]
    words = ["--steps", 12, "--image-size", "24x40", *settings, "--workers", 0]
    done = vitreous("finetune", "model.safetensors", "data", "--out", "run", *words)
    assert done.exit_code == 0, done.stderr
    assert "accuracy" in done.stdout
    assert load(place / "run/model.safetensors").model.config.image_size == (24, 40)
    measured = vitreous("evaluate", "run/model.safetensors", "data", "--out", "measured", "--json", "--workers", "0")
    assert measured.exit_code == 0, measured.stderr
    found = json.loads(measured.stdout)
    assert found == json.loads((place / "measured/metrics.json").read_text())
    assert (found["n"], found["data"]) == (3, "data (held out in training)")
    assert (place / "measured/report.html").stat().st_size > 10_000
    table = vitreous("evaluate", "run/model.safetensors", "data", "--out", "measured", "--split", "all")
    assert "18 pictures" in table.stdout
    assert max(map(len, table.stdout.splitlines())) <= 80
    again = vitreous("finetune", "model.safetensors", "data", "--out", "run", *words)
    assert again.exit_code == 1
    assert "already holds a run" in again.stderr


def test_resume_goes_on(vitreous, place):
    words = ["model.safetensors", "data", "--out", "resumed", "--set", "batch_size=4", "--set", "accum_steps=1"]
    words += ["--workers", "0", "--set", "checkpoint_every=2"]
    assert vitreous("finetune", *words, "--steps", 5).exit_code == 0
    before = load_file(place / "resumed/model.safetensors")
    assert vitreous("finetune", *words, "--steps", 5, "--resume").exit_code == 0
    after = load_file(place / "resumed/model.safetensors")
    assert all((before[name] == after[name]).all() for name in before)


def test_pretrain_by_name(vitreous, place):
    words = ["--steps", 2, "--image-size", 32, "--patch-size", 16, "--set", "batch_size=4", "--workers", 0, "--json"]
    done = vitreous("pretrain", "Ti/16", "data", "--out", "pretrained", *words)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["evaluation"]["n"] == 3
    assert load(place / "pretrained/model.safetensors").labels == LABELS


@pytest.mark.parametrize("format", ["table", "json", "csv"])
def test_predict_formats(vitreous, format):
    done = vitreous("predict", "model.safetensors", "data/red", "data/grey/000.png", "--format", format, "--top-k", 2)
    assert done.exit_code == 0, done.stderr
    if format == "table":
        assert done.stdout.count(".png") == 7
        return
    rows = json.loads(done.stdout) if format == "json" else list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["picture"] for row in rows][::2] == [f"data/red/{i:03}.png" for i in range(6)] + ["data/grey/000.png"]
    assert {row["label"] for row in rows} <= set(LABELS)
    assert all(float(a["probability"]) >= float(b["probability"]) for a, b in zip(rows[::2], rows[1::2], strict=True))


def test_predict_to_parquet(vitreous, place):
    from pyarrow import parquet

    done = vitreous("predict", "model.safetensors", "data", "--format", "parquet", "-o", "p.parquet", "--top-k", 1)
    assert done.exit_code == 0, done.stderr
    table = parquet.read_table(place / "p.parquet")
    assert table.num_rows == 18
    assert table.column_names == ["picture", "rank", "label", "index", "probability"]
    assert vitreous("predict", "model.safetensors", "data", "--format", "parquet").exit_code == 2


def test_a_broken_picture_does_not_stop_the_others(vitreous, place):
    (place / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    done = vitreous("predict", "model.safetensors", "broken.jpg", "data/red/000.png", "--format", "json", "--top-k", 1)
    assert done.exit_code == 1
    assert [row["picture"] for row in json.loads(done.stdout)] == ["data/red/000.png"]
    assert "broken.jpg" in done.stderr


def test_info(vitreous):
    done = vitreous("info", "B/16", "--trace")
    assert done.exit_code == 0
    for shape in ("1x3x224x224", "1x196x768", "1x197x768", "1x12x197x64", "1x12x197x197", "1x197x3072", "1x1000"):
        assert shape in done.stdout
    assert "86,567,656" in done.stdout
    assert "17.564 G" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    compared = vitreous("info", "B/16", "--image-size", "448").stdout
    assert "616,225" in compared
    assert "785" in compared
    assert "616,225" in vitreous("info", "B/16", "--patch-size", "8").stdout
    of_file = json.loads(vitreous("info", "model.safetensors", "--json", "--trace").stdout)
    assert of_file["labels"] == list(LABELS)
    assert of_file["trace"][-1]["shape"] == [1, 3]
    assert "green, grey, red" in vitreous("info", "model.safetensors").stdout


def wrong(case, place):
    """Arguments that cannot work, and what the one line on stderr must name."""
    model, data, out = "model.safetensors", "data", ["--out", f"out-{case.replace(' ', '-')}"]
    if case == "no model":
        return ["predict", "nowhere.safetensors", "data"], "nowhere.safetensors: no such file"
    if case == "no picture":
        return ["predict", model, "nowhere.jpg"], "nowhere.jpg: no such file"
    if case == "no data":
        return ["evaluate", model, "nowhere", *out], "nowhere: no such file or folder"
    if case == "empty folder":
        (place / "empty").mkdir(exist_ok=True)
        return ["finetune", model, "empty", *out], "empty holds no pictures"
    if case == "corrupt picture":
        write_pictures(place / "corrupt", {"a": 3, "b": 3})
        whole = (place / "corrupt/b/001.png").read_bytes()
        (place / "corrupt/b/001.png").write_bytes(whole[: len(whole) // 2])
        return ["finetune", model, "corrupt", *out, "--set", "batch_size=8", "--steps", "2"], "corrupt/b/001.png"
    if case == "wrong size":
        return ["predict", model, "data/red/000.png", "--image-size", "30"], "30x30 is not a whole number of 8x8"
    if case == "truncated model":
        whole = (place / model).read_bytes()
        (place / "half.safetensors").write_bytes(whole[: len(whole) // 2])
        return ["predict", "half.safetensors", "data"], "half.safetensors"
    if case == "text as model":
        (place / "text.npz").write_text("no model at all, just text")
        return ["info", "text.npz"], "text.npz"
    if case == "other classes":
        write_pictures(place / "other", {"green": 1, "blue": 1})
        return ["evaluate", model, "other", *out], "class 'blue' is not among the 3 classes"
    if case == "unknown variant":
        return ["pretrain", "B/61", data, *out], "did you mean 'B/16'"
    assert case == "unknown recipe key"
    return ["finetune", model, data, *out, "--set", "base_rl=1"], "did you mean 'base_lr'"


@pytest.mark.parametrize(
    "case",
    [
        "no model",
        "no picture",
        "no data",
        "empty folder",
        "corrupt picture",
        "wrong size",
        "truncated model",
        "text as model",
        "other classes",
        "unknown variant",
        "unknown recipe key",
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_1(vitreous, place, case):
    words, says = wrong(case, place)
    done = vitreous(*words)
    assert done.exit_code == 1
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert says in line
    assert "Traceback" not in done.stderr
    assert not done.exception or isinstance(done.exception, SystemExit)


def test_bad_usage_is_exit_code_2(vitreous):
    assert vitreous("predict").exit_code == 2
    assert vitreous("no-such-command").exit_code == 2
    assert vitreous("predict", "model.safetensors", "data", "--image-size", "big").exit_code == 2
    assert vitreous("finetune", "model.safetensors", "data").exit_code == 2  # --out is missing


def test_as_a_process_with_and_without_debug(place):
    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "vitreous", *words], cwd=place, capture_output=True, text=True, timeout=120
        )

    plain = run("predict", "nowhere.npz", "data")
    assert (plain.returncode, plain.stdout) == (1, "")
    assert plain.stderr == "error: nowhere.npz: no such file\n"
    debug = run("predict", "nowhere.npz", "data", "--debug")
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr
    assert run("--version").stdout.startswith("vitreous ")
