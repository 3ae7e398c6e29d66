"""The reference of the site has every public name, and each of them has words."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

import sgl
import sgl.grammars

DOCS = Path(__file__).parents[2] / "docs"
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def entries(page: str) -> list[str]:
    return ENTRY.findall((DOCS / page).read_text())


@pytest.mark.parametrize(("page", "module"), [("reference.md", sgl), ("reference_grammars.md", sgl.grammars)])
def test_has_every_public_name_once(page, module):
    assert sorted(entries(page)) == sorted(f"{module.__name__}.{name}" for name in module.__all__)


@pytest.mark.parametrize("name", sgl.__all__)
def test_every_public_name_has_a_docstring(name):
    assert inspect.getdoc(getattr(sgl, name)), f"sgl.{name} has no docstring"


@pytest.fixture
def reference(monkeypatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    import reference

    yield reference
    sys.modules.pop("reference", None)


def test_an_entry_shows_signature_words_and_methods(reference):
    text = reference.entry("sgl.Budget")
    assert text.startswith("### `sgl.Budget` { #sgl.Budget }")
    assert "```python\nBudget(" in text and inspect.getdoc(sgl.Budget).splitlines()[0] in text
    assert "#### `ProgramState.fork`" in reference.entry("sgl.ProgramState")


def test_a_long_signature_keeps_its_marks(reference):
    def f(a, b, /, c: int = 1, *, d: dict[str, int] | None = None, eeeeeeeeeeeeeeeeeeeee: int = 2, ffffffffffffffffff: int = 3) -> str: ...

    shown = reference._wrapped(inspect.signature(f))
    assert [line.strip(" ,") for line in shown.splitlines()[1:-1]][:5] == ["a", "b", "/", "c: int = 1", "*"]


def test_an_unknown_name_stops_the_build(reference):
    with pytest.raises(Exception, match=r"no 'sgl\.gne'"):
        reference.entry("sgl.gne")
