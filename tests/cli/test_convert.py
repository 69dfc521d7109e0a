"""`vitreous convert` as people call it."""

from pathlib import Path

import torch
from typer.testing import CliRunner

from tests.conftest import tiny
from vitreous.classifier import Classifier, load
from vitreous.cli.main import app
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.families import FAMILIES


def saved(folder: Path, **overrides: object) -> Path:
    model = tiny(**overrides)
    Classifier(model, Preprocess(size=model.config.image_size), list("abcdefg")).save(folder / "ours.safetensors")
    return folder / "ours.safetensors"


def convert(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def test_there_and_back(tmp_path: Path) -> None:
    source = saved(tmp_path)
    code, out, err = convert(source, tmp_path / "model.npz", "--to", "google")
    assert (code, out.strip()) == (0, str(tmp_path / "model.npz"))
    assert "class names" in err
    again, ours = (load(path).model.state_dict() for path in (tmp_path / "model.npz", source))
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.items())


def test_what_cannot_be_expressed_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, gelu="erf")
    code, out, err = convert(source, tmp_path / "model.npz", "--to", "google")
    assert (code, out) == (1, "")
    assert "GELU tanh in place of erf" in err
    assert not (tmp_path / "model.npz").exists()
    assert convert(source, tmp_path / "model.npz", "--to", "google", "--allow-changes")[0] == 0
    code, _, err = convert(source, tmp_path / "model.npz", "--to", "kears")
    assert code == 1
    assert "unknown family 'kears'" in err


def test_the_help_names_every_family() -> None:
    result = CliRunner().invoke(app, ["convert", "--help"], env={"COLUMNS": "200"})
    assert [name for name in FAMILIES if name not in result.stdout] == []
