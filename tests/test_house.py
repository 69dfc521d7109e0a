"""The house itself: rooms use only the rooms below them, and no file is longer than one reads in a sitting."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LONGEST = 400  # lines


def layers(folder: Path) -> "subprocess.CompletedProcess[str]":
    """import-linter, as `make lint` runs it, on a copy of the package."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "vitreous", folder / "vitreous", ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_layers_hold(copy):
    done = layers(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "module, line",
    [
        ("model.py", "from vitreous.classifier import Classifier"),
        ("explain/verification/verify.py", "def late():\n    from vitreous.explain.show import page"),
        (
            "data/dataset.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vitreous.training import run",
        ),
        ("base/files.py", "from vitreous.config import ViTConfig"),
    ],
)
def test_an_import_upward_is_found(copy, module, line):
    path = copy / "vitreous" / module
    whole = path.read_text(encoding="utf-8")
    try:
        path.write_text(f"{whole}\n\n{line}\n", encoding="utf-8")
        done = layers(copy)
    finally:
        path.write_text(whole, encoding="utf-8")
    assert done.returncode == 1
    assert module.removesuffix(".py").split("/")[-1] in done.stdout


def test_no_file_is_too_long():
    paths = [p for room in ("vitreous", "tests", "scripts", "benchmarks") for p in (ROOT / room).rglob("*.py")]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in paths}
    assert len(lengths) > 200
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
