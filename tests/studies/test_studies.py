"""Each study runs, and its committed page and figure are made of its committed numbers."""

import json
import math
import re

import pytest

from scripts.studies import ablation, harness, learned, permutation, resolution, transfer, translation
from tests.conftest import tiny
from vitreous.classifier import Classifier
from vitreous.pictures.preprocess import Preprocess

STUDIES = {module.NAME: module for module in (ablation, learned, permutation, resolution, translation)}
PAGES = STUDIES | {transfer.NAME: transfer}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_made_of_the_numbers(name):
    module = PAGES[name]
    numbers = json.loads((harness.PAGES / f"{name}.json").read_text(encoding="utf-8"))
    assert module.page(numbers) == (harness.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert all(math.isfinite(value) for value in leaves(numbers))
    assert numbers["cpu_seconds"] < 2 * 30 * 60
    drawn = harness.draw(module.figure, numbers)
    assert drawn.count("<svg") == 1
    committed = (harness.PAGES / f"{name}.svg").read_text(encoding="utf-8")
    assert texts(drawn) == texts(committed)


@pytest.mark.parametrize("name", STUDIES)
def test_it_runs(name, tmp_path):
    module, optional = STUDIES[name], {}
    if name == "learned":
        clf = Classifier(tiny(num_classes=7), Preprocess.preset("google", size=32))
        clf.save(tmp_path / "model.safetensors")
        optional = {"bundled": tmp_path / "model.safetensors", "dinov2": tmp_path / "none", "pictures": harness.SAMPLE}
    words = ["--quick", "--out", str(tmp_path)]
    harness.main(name, module.measure, module.figure, module.page, words, **optional)
    numbers = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert all(math.isfinite(value) for value in leaves(numbers))
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert f"({name}.svg)" in page
    assert "**Limits.**" in page
    if name == "permutation":
        for run in numbers["runs"]:
            exact, kept = run["differences"]["zero, float64"], run["differences"]["kept, float64"]
            assert max(exact.values()) < 1e-12
            assert max(run["differences"]["zero, float32"].values()) < 1e-5
            assert kept["CLS"] > 1e-3
    if name == "translation":
        for run in numbers["runs"]:
            for state in ("random", "trained"):
                found = run[state]
                assert max(found["convolutions, no border"], found["ViT, positions zero"]) < 1e-12
                assert min(found["convolutions, zeros around"], found["ViT"]) > 1e-3


def leaves(value):
    """Every number in nested lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, (int, float)):
        yield value


def texts(drawn: str) -> list[str]:
    """The words of an SVG file."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
