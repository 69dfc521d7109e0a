"""`vitreous models` as people call it."""

import json

import pytest
from typer.testing import CliRunner

from vitreous.cli.main import app
from vitreous.weights import catalog


def test_the_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["models"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + len(catalog.entries())
    assert max(map(len, lines)) <= 80
    assert "69 of 69; load one as google:NAME" in result.stderr


def test_filters_and_json() -> None:
    result = CliRunner().invoke(app, ["models", "Ti/16", "384", "--json"])
    (entry,) = json.loads(result.stdout)
    assert entry["name"] == "augreg/Ti_16-i21k-none-wd_0.03-lr_0.03-384"
    assert (entry["google_top1"], entry["timm_top1"]) == (78.22, 78.424)
    assert catalog.resolve(entry["name"]) == entry["path"]


def test_nothing_found_is_said() -> None:
    result = CliRunner().invoke(app, ["models", "B/64"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no checkpoint matches B/64" in result.stderr
