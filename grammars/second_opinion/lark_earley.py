"""EBNF grammars as lark's Earley parser reads them, with its lexer that tries every way to cut a text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sgl.grammars.second_opinion.bnf_translation import in_larks_syntax
from sgl.grammars.second_opinion.no_verdict_error import NoVerdictError

if TYPE_CHECKING:
    from sgl.grammars.ebnf import Syntax

Items = Iterable[tuple[str, Any]] | None


def earley_recogniser(
    grammar: str, syntax: Syntax = "auto", start: str | None = None, imports: Items = None, declared: Items = None
) -> Callable[[str], bool]:
    """The arguments are those of `compile_ebnf`. Raises NoVerdictError where lark does not know the syntax."""
    from sgl.grammars.ebnf import is_headed

    if is_headed(grammar, syntax):
        grammar, start = in_larks_syntax(grammar, start or "root"), None
    if declared:
        raise NoVerdictError("lark has no texts for the terminals of %declare")
    from lark import Lark
    from lark.exceptions import LarkError, UnexpectedInput

    loader = _loader(dict(imports or ()))
    options: Any = {"parser": "earley", "lexer": "dynamic_complete", "ambiguity": "forest", "source_path": "grammar"}
    try:
        parser = Lark(grammar, start=start or "start", import_paths=[loader], **options)
    except (LarkError, re.error) as error:
        raise NoVerdictError(f"lark cannot read it: {_first_line(error)}") from error

    def accepts(text: str) -> bool:
        try:
            parser.parse(text)
        except UnexpectedInput:
            return False
        return True

    return accepts


def _loader(imports: dict[str, str]) -> Callable[[Any, str], tuple[str, str]]:
    """Finds grammars next to the one that imports them or from the top. `common` is lark's; no file is read."""

    def load(folder: Any, path: str) -> tuple[str, str]:
        for place in (posixpath.join(str(folder or ""), path), path):
            if place in imports:
                return place, imports[place]
        if folder is None and path == "common.lark":
            raise FileNotFoundError(path)  # lark goes on to its own
        raise NoVerdictError(f"%import from {path!r}, whose text is not given")

    return load


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip() or type(error).__name__
