"""The pages under docs/ say what is true: their blocks run, one after the other, on the bundled model."""

from __future__ import annotations

import re
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import sgl
import sgl.compat

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "index.md",
    "language.md",
    "types.md",
    "extract.md",
    "classify.md",
    "documents.md",
    "tools.md",
    "dialects.md",
    "cache.md",
    "report.md",
    "scheduling.md",
]
LETTERS = DOCS.parent / "examples/data/letters.pdf"  # what documents.md reads


def run_blocks(page: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Run a page's blocks in a module of their own, where its classes are looked up."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)):
        exec(compile(block, f"{page}, block {number}", "exec", dont_inherit=True), module.__dict__)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(LETTERS, tmp_path)
    module = run_blocks(page, monkeypatch)
    printed = capsys.readouterr().out
    if page == "cache.md":
        assert re.search(r"prints\n\n```\n(.*?)```", (DOCS / page).read_text(), re.S)[1] in printed
    if page == "language.md":
        assert "timeout of 0.5 s" in printed and "its budget is 3" in printed and "nowhere" in printed
    if page == "report.md":
        assert {"run.html", "batch.html", "run.svg"} <= {path.name for path in tmp_path.iterdir()}
    if page == "scheduling.md":
        assert "8 pages stay in the cache" in printed
        module.engine.close()


@pytest.fixture
def openai_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What OpenAI's client finds by its usual variables: a server of this machine."""
    pytest.importorskip("openai")
    from server_rig import serving

    with sgl.Engine() as engine, serving(engine, served_name="gpt-4.1-mini") as url:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield


def test_the_program_for_remote_apis_runs(openai_server, monkeypatch, capsys):
    page = run_blocks("apis.md", monkeypatch)
    kind, sure, _ = capsys.readouterr().out.split(maxsplit=2)
    assert kind in ("yes", "no") and int(sure) == int(page.state["sure"])
    form = page.form.run(backend=sgl.Scripted({"name": "Ada", "born": "1815"}))
    assert form.text().endswith("Name: Ada\nBorn: 1815.\n")
    page.backend.shutdown()


def test_the_alias_of_compatibility_is_made(monkeypatch):
    try:
        run_blocks("compatibility.md", monkeypatch)
        import sglang

        assert sglang.gen is sgl.gen
    finally:
        sgl.compat.uninstall()
