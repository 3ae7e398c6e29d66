"""docs/evaluation.md says what is true: its blocks run, one after the other."""

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

import sgl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/evaluation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the blocks leave, and what they print."""
    names, printed = {}, io.StringIO()
    folder = tmp_path_factory.mktemp("page")
    os.symlink(ROOT / "examples", folder / "examples")
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), sgl.Engine(dtype="float32") as engine:
        sgl.set_default_backend(engine)
        try:
            for block in BLOCKS:
                exec(compile(block, "docs/evaluation.md", "exec"), names)
        finally:
            sgl.set_default_backend(None)
        assert (folder / "evaluation.html").exists() and (folder / "evaluation.csv").exists()
    return names, printed.getvalue()


def test_the_page_prints_what_it_shows(page):
    (shown,) = re.findall(r"```text\n(read: .*?)\n\.\.\.", PAGE, re.S)
    assert re.search(re.sub(r"[\d]+", r"\\d+", re.escape(shown)), page[1])


def test_the_page_finds_what_it_says(page):
    names, printed = page
    assert "confidences: ECE" in printed and "b is better in" in printed and "On the test rows:" in printed
    assert len(names["both"].won) > 10
