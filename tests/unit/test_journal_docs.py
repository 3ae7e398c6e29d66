"""docs/replay.md says what is true: its blocks run, one after the other."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import sgl

PAGE = (Path(__file__).parents[2] / "docs/replay.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the blocks leave behind, and what they print."""
    pytest.importorskip("torch")
    names, printed = {}, io.StringIO()
    source = tmp_path_factory.mktemp("page")
    with contextlib.chdir(source), contextlib.redirect_stdout(printed):
        for block in BLOCKS:
            exec(compile(block, "docs/replay.md", "exec"), names)
    yield names, printed.getvalue()
    sgl.global_config.default_backend.close()
    sgl.set_default_backend(None)


def test_errors_print_what_the_page_says(page):
    comments = re.findall(r"print\(error\)  # (.*)", PAGE)
    assert len(comments) == 3
    for comment in comments:
        parts = [re.escape(part.strip()) for part in comment.split("...") if part.strip()]
        assert re.search(".*".join(parts), page[1]), (comment, page[1])


def test_the_recording_was_sampled(page):
    first, _, third = page[0]["recorded"]
    assert first.text() != third.text()


def test_only_the_missing_was_computed(page):
    served, computed = map(int, re.search(r"(\d+) nodes from the journal, (\d+) computed", page[1]).groups())
    assert served + computed == 18 and served <= 8
