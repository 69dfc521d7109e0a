"""The site builds without a warning, its snippets run, and the pages that print numbers say what the code says."""

import logging
import re
import shlex
import warnings
import zipfile

import pytest
from typer.testing import CliRunner

from scripts import make_pages
from tests.conftest import ROOT, tiny
from vitreous.classifier import Classifier
from vitreous.cli.main import app
from vitreous.pictures.preprocess import Preprocess

DOCS = ROOT / "docs"
RUN = set(make_pages.PAGES.values())
SNIPPETS = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model and the pictures that the snippets speak of."""
    place = tmp_path_factory.mktemp("docs")
    with zipfile.ZipFile(ROOT / "vitreous/assets/sign-language-digits.zip") as archive:
        for part, count in (("train", 3), ("val", 1)):
            for digit in "0123456789":
                names = sorted(n for n in archive.namelist() if n.startswith(f"{part}/{digit}/") and n.endswith("jpg"))
                for i, name in enumerate(names[:count]):
                    target = place / f"pictures/{part}/{digit}/IMG_{i}.jpg"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
    clf = Classifier(tiny(num_classes=10), Preprocess.preset("google", size=32), tuple("0123456789"))
    clf.save(place / "model.safetensors")
    return place


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippets_run(name, place, monkeypatch):
    text = (DOCS / name).read_text(encoding="utf-8")
    blocks = re.findall(r"```(bash|python)\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(place)
    for language, code in blocks:
        if language == "python" and name not in RUN:  # those are run as a whole, below
            exec(compile(code, name, "exec"), {})
        for line in code.replace("\\\n", " ").splitlines() if language == "bash" else ():
            program, *words = shlex.split(line)
            assert program == "vitreous"
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.parametrize(("template", "page"), make_pages.PAGES.items())
def test_pages_say_what_their_code_says(template, page, tmp_path, monkeypatch):
    import scripts.walkthrough_figures as figures
    import vitreous.anatomy.figure

    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    monkeypatch.setattr(vitreous.anatomy.figure, "save", lambda *rest: None)
    made = make_pages.fill((make_pages.TEMPLATES / template).read_text(encoding="utf-8"), template)
    committed = (DOCS / page).read_text(encoding="utf-8")
    assert words(made) == words(committed)
    # The last digit may differ on another processor.
    assert numbers(made) == pytest.approx(numbers(committed), abs=2e-3)
    assert "{{" not in made
    if template.startswith("walkthrough"):
        assert {path.name for path in tmp_path.iterdir()} == {"patches.svg", "attention.svg", "probabilities.svg"}


def test_both_languages_run_the_same_code():
    english, chinese = (
        [code for _, code in make_pages.BLOCK.findall((make_pages.TEMPLATES / name).read_text(encoding="utf-8"))]
        for name in ("walkthrough.en.md", "walkthrough.zh.md")
    )
    assert english == chinese
    assert len(english) >= 15


def test_the_site_builds_without_a_warning(tmp_path, monkeypatch, caplog):
    mkdocs = pytest.importorskip("mkdocs.commands.build", reason="the site is built with mkdocs: the extra 'docs'")
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    with caplog.at_level(logging.WARNING, logger="mkdocs"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the plugins' own making
        mkdocs.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    page = (tmp_path / "site/walkthrough.html").read_text(encoding="utf-8")
    assert 'src="walkthrough/patches.svg"' in page
    for html in (tmp_path / "site").rglob("*.html"):
        sources = re.findall(r'(?:src|href)="(https?://[^"]+)"', html.read_text(encoding="utf-8"))
        assert not [s for s in sources if re.search(r"\.(js|css|woff2?)\b|fonts", s)], (
            html
        )  # nothing comes from elsewhere


def test_every_study_is_listed():
    index = (DOCS / "studies/index.md").read_text(encoding="utf-8")
    for page in (DOCS / "studies").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page


def test_make_docs_builds_it():
    assert re.search(r"^docs: .*\n\t.*mkdocs build --strict$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def words(page: str) -> str:
    return re.sub(r"\s+", " ", NUMBER.sub("#", page))


def numbers(page: str) -> list[float]:
    return [float(found.replace(",", "").rstrip(".")) for found in NUMBER.findall(page) if found.strip(",.")]
