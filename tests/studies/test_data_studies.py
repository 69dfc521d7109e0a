"""The studies of less data and of transfer run from the command line, and make page, figure and numbers."""

import json

import pytest

from scripts.studies import harness, less_data, transfer
from tests.conftest import tiny, write_pictures
from vitreous.classifier import Classifier
from vitreous.preprocess import Preprocess


@pytest.fixture(params=["less_data", "transfer"])
def study(request, tmp_path):
    """A study's module, and the file that it needs."""
    if request.param == "less_data":
        for part, count in (("train", 20), ("val", 5)):
            write_pictures(tmp_path / "data" / part, {"a": count, "b": count, "c": count}, size=(32, 32))
        return less_data, {"data": tmp_path / "data"}
    clf = Classifier(tiny(image_size=16, patch_size=4, num_classes=7), Preprocess.preset("google", size=16))
    clf.save(tmp_path / "pretrained.safetensors")
    return transfer, {"model": tmp_path / "pretrained.safetensors"}


def test_a_study_makes_its_page_figure_and_numbers(study, tmp_path):
    module, files = study
    out, parts = tmp_path / "out", tmp_path / "parts.jsonl"
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]

    def run(*more):
        functions = (module.measure, module.figure, module.page)
        harness.main(module.NAME, *functions, ["--out", str(out), *more], **files, parts=parts)

    run("--quick", *words)
    numbers = json.loads((out / f"{module.NAME}.json").read_text())
    assert len(numbers["seeds"]) == 2
    for runs in numbers["accuracy"].values():
        assert len(runs) >= 4
        assert all(len(values) == 2 and all(0 <= v <= 100 for v in values) for values in runs.values())
    page = (out / f"{module.NAME}.md").read_text()
    assert f"({module.NAME}.svg)" in page
    assert (out / f"{module.NAME}.svg").read_text().count("<svg") == 1
    for path in files.values():
        assert str(path.parent) not in page + json.dumps(numbers)
    assert not parts.exists()  # two steps are not to be taken for a measurement later
    # Page and figure are functions of the numbers.
    drawn = {path.name: path.read_bytes() for path in out.iterdir()}
    run("--redraw")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == drawn


def test_a_stopped_study_goes_on(tmp_path, monkeypatch):
    for part, count in (("train", 20), ("val", 5)):
        write_pictures(tmp_path / "data" / part, {"a": count, "b": count}, size=(32, 32))
    monkeypatch.setattr(less_data, "STEPS", 1)
    monkeypatch.setattr(less_data, "SEEDS", (0,))
    parts = tmp_path / "parts.jsonl"
    whole = less_data.measure(False, tmp_path / "data", parts)
    lines = parts.read_text().splitlines(keepends=True)
    assert len(lines) == 8
    parts.write_text("".join(lines[:5]))
    trained = []
    train = less_data.train
    monkeypatch.setattr(less_data, "train", lambda *args, **settings: trained.append(1) or train(*args, **settings))
    assert less_data.measure(False, tmp_path / "data", parts) == whole
    assert len(trained) == 3
    assert parts.read_text().splitlines(keepends=True) == lines


def test_a_smaller_share_lies_within_a_larger():
    import torch

    labels = torch.arange(400) % 4
    small, large = (set(less_data.subset(labels, f, seed=1).tolist()) for f in (0.05, 0.2))
    assert small < large
    assert (len(small), len(large)) == (20, 80)
    assert set(less_data.subset(labels, 0.05, seed=2).tolist()) != small
    few, more = (set(transfer.choose(labels, k, seed=1).tolist()) for k in (1, 5))
    assert few < more
