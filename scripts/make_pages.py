"""Pages that are run: every Python block of a template is executed, and what it prints is put behind it.

    python -m scripts.make_pages

The templates lie in `scripts/pages`. A block ```` ```python ```` is shown and run, ```` ```python hidden ```` only run;
all blocks of a page share their names. `{{ expression }}` in the text is replaced by the expression's value. Paths
are those of the checkout, where the blocks are run.
"""

import argparse
import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.base.files import write_text

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "scripts" / "pages"
PAGES = {"walkthrough.en.md": "walkthrough.md", "walkthrough.zh.md": "zh/walkthrough.md", "cost.md": "cost.md"}
BLOCK = re.compile(r"```python( hidden)?\n(.*?)```\n", flags=re.DOTALL)
INLINE = re.compile(r"\{\{(.+?)\}\}")


def fill(template: str, name: str = "page") -> str:
    """The template with every block run, in order, and every expression replaced.

    Raises:
        Exception: whatever a block raises, with the page's name in the traceback.
    """
    names: dict[str, Any] = {"__name__": name}
    made, end = [], 0
    for block in BLOCK.finditer(template):
        made.append(_expressions(template[end : block.start()], names))
        hidden, code = block.groups()
        printed = _run(code, name, names)
        if not hidden:
            made.append(f"```python\n{code}```\n")
            made.append(f"\n```text\n{printed}```\n" if printed else "")
        end = block.end()
    return "".join([*made, _expressions(template[end:], names)])


def _run(code: str, name: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), _in_checkout():
        exec(compile(code, name, "exec"), names)
    return printed.getvalue()


def _expressions(text: str, names: dict[str, Any]) -> str:
    return INLINE.sub(lambda found: str(eval(found[1].strip(), names)), text)


@contextlib.contextmanager
def _in_checkout() -> Iterator[None]:
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=list(PAGES), help=f"some of {', '.join(PAGES)}; all by default")
    for name in parser.parse_args().pages:
        text = fill((TEMPLATES / name).read_text(encoding="utf-8"), name)
        write_text(ROOT / "docs" / PAGES[name], text)
        print(f"docs/{PAGES[name]}: {len(text):,} characters")


if __name__ == "__main__":
    main()
