"""The options of `sgl COMMAND` that the documentation names are there, and those of `sgl serve` are all explained."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from sgl.cli import _parser

ROOT = Path(__file__).parents[2]
PAGES = {  # pages, and the commands whose options they may name
    "docs/server.md": {"serve", "chat"},
    "docs/commands.md": {"serve", "chat", "grammar", "grammar verify", "shard"},
    "docs/loading.md": {"shard"},
    "docs/parallel.md": {"models", "quantize", "shard"},
    "docs/server_tools.md": {"serve"},
    "docs/watching.md": {"serve"},
    "docs/check.md": {"check"},
    "docs/compatibility.md": {"run"},
    "docs/grammars.md": {"grammar"},
    "docs/process.md": {"serve"},
    "docs/gpu.md": {"serve"},
}
OTHERS = {"--help", "--no-deps", "--its", "--own"}  # of pip, and of a reader's own program


def commands() -> dict[str, set[str]]:
    """The long options of each command."""
    parser = _parser()
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: {option for action in command._actions for option in action.option_strings if option.startswith("--")}
        for name, command in found.choices.items()
    }


def named(page: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / page).read_text(encoding="utf-8"))) - OTHERS


@pytest.mark.parametrize("page", PAGES)
def test_options_that_a_page_names_are_there(page):
    known = set().union(*(commands()[name] for name in PAGES[page]))
    assert named(page) <= known, named(page) - known


def test_every_option_of_serve_is_explained():
    pages = set().union(*(named(page) for page, about in PAGES.items() if "serve" in about))
    both = pages | {option.replace("--no-", "--", 1) for option in pages}  # --no-page tells of --page
    assert commands()["serve"] - {"--help"} <= both


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in commands() if f"`sgl {name}" not in text] == []
