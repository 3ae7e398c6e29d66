"""What the caller gives for a grammar: the texts that `%import` may read, and what the terminals of `%declare` are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgl.grammars.errors import InvalidGrammarError


class GrammarImports:
    """`{"units.lark": text, "more/dates.lark": text}`: `%import .units.METRE`, `%import .more.dates (DAY, MONTH)`."""

    def __init__(self, texts: Mapping[str, str] | None, declared: Mapping[str, str | int] | None = None) -> None:
        self.texts = {_module(path): text for path, text in _checked("imports", texts).items()}
        self.declared = _checked("declared", declared, numbers=True)

    def found(self, module: str, relative_to: str) -> str | None:
        """The full name of a module: next to the grammar that imports it, or from the top; None: it was not given."""
        folder = relative_to.rpartition(".")[0]
        sibling = f"{folder}.{module}" if folder else module
        return next((name for name in (sibling, module) if name in self.texts), None)


def _module(path: str) -> str:
    return path.removeprefix("./").removesuffix(".lark").replace("/", ".")


def _checked(name: str, given: Mapping[str, Any] | None, numbers: bool = False) -> dict[str, Any]:
    what = "texts or numbers of tokens" if numbers else "texts"
    if not isinstance(given, Mapping | None):
        raise InvalidGrammarError(f"{name} must be a dict of {what}, not {given!r}")
    for key, value in (given or {}).items():
        number = numbers and type(value) is int and value >= 0
        if not (isinstance(key, str) and (number or isinstance(value, str))):
            raise InvalidGrammarError(f"{name} must be a dict of {what}; {key!r} has {value!r}")
    return dict(given or {})
