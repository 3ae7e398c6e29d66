"""The glossary is short and sorted, and the paths and classes that pages about the code name are in the tree."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import house_names
import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "CONTRIBUTING.md",
    "docs/glossary.md",
    "docs/internals.md",
    "docs/life_of_a_request.md",
    "docs/life_of_a_weight.md",
    "docs/reading.md",
)
ELSEWHERE = {"RadixCache", "Request", "Req", "LLM", "LLMEngine", "Runtime", "GrammarMatcher"}  # vLLM's, SGLang's
MOST_TERMS = 60
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.]+(?:/[\w.]*)+")
CLASS = re.compile(r"_?[A-Z]\w*[a-z]\w*(?:\.\w+)*")


def spans(page: str) -> list[str]:
    return SPAN.findall(re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL))


@cache
def known() -> set[str]:
    """Names that Python files define, and structs of C."""
    structs = {
        name
        for path in (ROOT / "runtime/csrc").rglob("*.h")
        for name in re.findall(r"^\} (\w+);|^struct (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    return {name.name for name in house_names.names(ROOT)} | {name for pair in structs for name in pair}


def missing(spans: list[str]) -> list[str]:
    paths = [span for span in spans if PATH.fullmatch(span) and not (ROOT / span).exists()]
    named = [span for span in spans if CLASS.fullmatch(span) and span not in ELSEWHERE]
    return paths + [span for span in named if not known().issuperset(span.split("."))]


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_classes_are_there(page: str) -> None:
    assert missing(spans(page)) == []


def test_a_planted_path_and_class_are_found() -> None:
    assert missing(["lang/nowhere.py", "NoSuchClass", "Sequence.no_such_method", "Sequence.extend"]) == [
        "lang/nowhere.py",
        "NoSuchClass",
        "Sequence.no_such_method",
    ]


def rows() -> list[list[str]]:
    lines = [line for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_glossary_is_short_sorted_and_leads_to_code() -> None:
    terms = [row[0] for row in rows()]
    assert 20 < len(terms) <= MOST_TERMS
    assert terms == sorted(set(terms), key=str.lower)
    for term, meaning, place, _ in rows():
        assert meaning and re.fullmatch(r"`[^`]+`", place), term
        assert PATH.fullmatch(place.strip("`")) or CLASS.fullmatch(place.strip("`")), term
