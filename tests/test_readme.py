"""Every command and every snippet of the README runs as it stands there."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from tests.conftest import ROOT, tiny
from vitreous.classifier import Classifier
from vitreous.cli.demo import unpack
from vitreous.cli.main import app
from vitreous.pictures.preprocess import Preprocess

BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as `make demo` leaves it, with a smaller model and fewer pictures."""
    place = tmp_path_factory.mktemp("readme")
    unpack(place / "all")
    for picture in sorted((place / "all").glob("*/*/*.jpg"))[::8]:
        target = place / "vitreous-demo/pictures" / picture.relative_to(place / "all")
        target.parent.mkdir(parents=True, exist_ok=True)
        picture.rename(target)
    clf = Classifier(tiny(num_classes=10), Preprocess.preset("google", size=32), tuple("0123456789"))
    clf.save(place / "vitreous-demo/run/model.safetensors")
    return place


def test_snippets_run_in_order(place, monkeypatch):
    monkeypatch.chdir(place)
    assert len(BLOCKS) >= 8
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "README.md", "exec"), {})
            continue
        for line in code.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line)
            assert program == "vitreous"
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, f"{line}\n{done.output}"
    assert (place / "sevens.csv").read_text().startswith("picture,rank,label,index,probability\n")


def test_the_two_commands_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for command in re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        assert command in targets


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert target.startswith("http") or (ROOT / target).exists(), target
