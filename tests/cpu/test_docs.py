"""The pages under docs/ say what is true: their blocks run, one after the other, on the bundled model."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)


@pytest.mark.parametrize("page", ["index.md", "language.md", "tools.md", "dialects.md", "cache.md"])
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # classes are looked up in the module that made them
    monkeypatch.setitem(sys.modules, "page", module)
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page}, block {number}", "exec", dont_inherit=True), module.__dict__)
    printed = capsys.readouterr().out
    if page == "cache.md":
        assert re.search(r"prints\n\n```\n(.*?)```", (DOCS / page).read_text(), re.S)[1] in printed
    if page == "language.md":
        assert "timeout of 0.5 s" in printed and "its budget is 3" in printed and "nowhere" in printed
