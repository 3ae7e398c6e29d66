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
    def f(
        a,
        b,
        /,
        c: int = 1,
        *,
        d: dict[str, int] | None = None,
        eeeeeeeeeeeeeeeeeeeee: int = 2,
        ffffffffffffffffff: int = 3,
    ) -> str: ...

    shown = reference._wrapped(inspect.signature(f))
    assert [line.strip(" ,") for line in shown.splitlines()[1:-1]][:5] == ["a", "b", "/", "c: int = 1", "*"]


def test_what_is_given_has_no_constructor_and_backends_only_their_own_methods(reference):
    assert "```python\nProgramState(" not in reference.entry("sgl.ProgramState")
    backend = reference.entry("sgl.OpenAI")
    assert (
        "OpenAI(\n    model_name: str," in backend
        and "`OpenAI.shutdown`" in backend
        and "OpenAI.perform" not in backend
    )


def test_names_that_are_left_out_are_there(reference):
    """A method that was renamed would come back unseen, or a class keep a constructor that nobody calls."""
    listed = set(entries("reference.md") + entries("reference_runtime.md") + entries("reference_grammars.md"))
    assert reference.GIVEN | set(reference.INSIDE) <= listed
    for path, names in reference.INSIDE.items():
        assert [name for name in names if not hasattr(reference._find(path), name)] == []


def test_manners_of_calling_are_shown(reference):
    text = reference.entry("sgl.AsyncProgramState")
    assert "async get(name" in text and "copy() -> AsyncContextManager[AsyncProgramState]" in text


def test_columns_and_sections_become_lists(reference):
    options = reference.entry("sgl.runtime.build.engine_config.EngineConfig")
    assert "\n- `page_size`: token slots of a KV page\n" in options and "whatever else is running" in options
    assert "\nRaises:\n\n- `InvalidGrammarError`: " in reference.entry("sgl.grammars.compile_regex")
    assert '```python\nengine = sgl.Engine("Qwen/Qwen3-0.6B")' in reference.entry("sgl.Engine")


def test_an_unknown_name_stops_the_build(reference):
    with pytest.raises(Exception, match=r"no 'sgl\.gne'"):
        reference.entry("sgl.gne")


def test_of_two_names_one_is_documented_and_the_other_is_one_line():
    """`fork`/`copy`, `type`/`dtype`, `journal`/`record`, `max_tokens`/`max_new_tokens`."""
    for alias, name in (
        (sgl.ProgramState.copy, "fork()"),
        (sgl.AsyncProgramState.copy, "fork()"),
        (sgl.record, "`journal`"),
    ):
        assert name in alias.__doc__ and len(alias.__doc__.strip().splitlines()) == 1
    assert "keeps its variables to itself" in sgl.ProgramState.fork.__doc__ and "`seed` makes" in sgl.journal.__doc__
    described = " ".join(sgl.gen.__doc__.split())
    assert described.count("`dtype`") == 1 and "`dtype` is an older name of `type`" in described
    assert described.count("`max_new_tokens`") == 1 and "max_new_tokens" not in sgl.SglFunction.run.__doc__
