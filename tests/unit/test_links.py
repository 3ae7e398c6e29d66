"""Every relative link of the repository's Markdown files and notebooks leads to a file, every anchor to a heading."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "[!.]*/**/*.md", "[!.]*/**/*.ipynb")
    for path in ROOT.glob(pattern)
    if path.relative_to(ROOT).parts[0] != "build" and not {".ipynb_checkpoints", "site-packages"} & {*path.parts}
)
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*~*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
NAMED = re.compile(r"`((?:sgl|lang|runtime|grammars|benchmarks|examples|tests|tutorials|training|docs|\.ci)/[\w./-]*)`")
HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?) *#* *$", re.MULTILINE)
MADE = {"examples/NAME.py"}  # not files of the repository


@cache
def words(page: Path) -> str:
    """The Markdown of a page, of a notebook that of its cells; without what stands in fences."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return FENCE.sub("", text)


def links(markdown: str) -> Iterator[str]:
    """The targets within the repository; what leads to the web is left alone."""
    for plain, html in LINK.findall(CODE.sub("", markdown)):
        if not urlsplit(target := plain or html).scheme and not target.startswith("//"):
            yield unquote(target)


def anchor(heading: str) -> str:
    """Of a heading, as forges and mkdocs make it."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", shown).strip().lower())


def broken(page: Path, markdown: str) -> list[str]:
    """The links of a page that lead nowhere, each with the reason."""
    found = []
    for link in links(markdown):
        path, _, place = link.partition("#")
        target = (ROOT / page.parent / path).resolve() if path else ROOT / page
        if not target.exists():
            found.append(f"{link}: there is no {target}")
        elif ROOT not in target.parents:
            found.append(f"{link}: leads out of the repository")
        elif place and target.suffix in (".md", ".ipynb") and place not in _anchors(target.relative_to(ROOT)):
            found.append(f"{link}: {target.name} has no such heading")
    return found


@cache
def _anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(words(page))}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    assert "\n".join(broken(page, words(page))) == ""


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_are_named_are_there(page):
    """A path in backquotes, such as `lang/nodes/ir.py`."""
    named = set(NAMED.findall(words(page))) - MADE
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_there_are_pages_with_links():
    assert {
        Path("README.md"),
        Path("docs/language.md"),
        Path("docs/reading.md"),
        Path("tutorials/1_first_program.ipynb"),
    } <= set(PAGES)
    assert sum(len(list(links(words(page)))) for page in PAGES) > 100


@pytest.mark.parametrize(
    "link",
    [
        "[a](nowhere.md)",
        "![a](docs/none.png)",
        "[a](docs/gpu.md#nothing)",
        "[a](#nothing)",
        "[a](../../x)",
        '<img src="none.svg">',
    ],
)
def test_a_link_to_nowhere_is_found(link):
    assert len(broken(Path("README.md"), link)) == 1


def test_good_links_and_code_are_left_alone():
    text = (
        '[a](docs/gpu.md#memory) [b](https://example.com/x) [c](docs) `[d](nowhere.md)` [e](docs/gpu.md "title") '
        '<a href="docs/faq.md">'
    )
    assert broken(Path("README.md"), text) == []
    assert anchor("`SGL101`: what [is](x.md) said, here") == "sgl101-what-is-said-here"
