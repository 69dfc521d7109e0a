"""One picture from its question to its verdict, from Python as from the command line."""

import json

import pytest
import torch

from tests.conftest import tiny
from vitreous.base.errors import ConfigError
from vitreous.classifier import Classifier
from vitreous.explain import Verdict, investigate, investigation
from vitreous.pictures.preprocess import Preprocess

PICTURE = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def clf(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Classifier(tiny(), Preprocess.preset("google", size=32), tuple("abcdefg"))


def test_every_map_gets_its_tests_random_weights_and_a_verdict(clf, tmp_path):
    found = investigate(clf, PICTURE, method="rise", target="c", out=tmp_path / "why", progress=False)
    assert list(found.maps) == list(found.checks) == list(found.random_maps) == ["attention", "rise", "occlusion"]
    for check in found.checks.values():
        assert check.label == "c"
        assert [test.operator for test in check.tests] == ["drop", "blur"]
        assert check.randomised is not None
        assert check.randomised.n == 8
        assert check.verdict is not Verdict.UNTESTED
    assert not found.unfinished
    written = json.loads((tmp_path / "why/explanation.json").read_text())
    assert written["checks"]["rise"] == found.to_dict()["checks"]["rise"]
    page = (tmp_path / "why/index.html").read_text()
    assert all((tmp_path / f"why/{name}.png").stat().st_size > 5000 for name in found.maps)
    assert found.checks["rise"].verdict.value in page


def test_without_all_tests_the_verdict_is_open_and_nothing_is_written(clf):
    found = investigate(clf, PICTURE, verify=False, progress=False)
    assert {len(check.tests) for check in found.checks.values()} == {1}
    assert not found.random_maps
    assert "occlusion" in str(found)


def test_a_model_without_a_head_is_only_read(tmp_path):
    found = investigate(tiny(num_classes=0), torch.randn(1, 3, 32, 32), out=tmp_path, progress=False)
    assert list(found.maps) == ["attention"]
    assert "no head" in found.unfinished
    assert "no head" in (tmp_path / "index.html").read_text()


def test_stopped_half_way_what_is_done_stays_and_says_so(clf, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(investigation, "randomisation", stopped)
    with pytest.raises(KeyboardInterrupt):
        investigate(clf, PICTURE, out=tmp_path, progress=False)
    written = json.loads((tmp_path / "explanation.json").read_text())
    assert "Interrupted" in written["unfinished"]
    assert set(written["checks"]) == {"attention", "occlusion"}
    assert "Interrupted" in (tmp_path / "index.html").read_text()


def test_what_cannot_be_investigated_is_said_first(clf):
    with pytest.raises(ConfigError, match="did you mean 'occlusion'"):
        investigate(clf, PICTURE, method="oclusion")
    with pytest.raises(ConfigError, match="one picture is investigated at a time, got 2"):
        investigate(clf, [PICTURE, PICTURE])
