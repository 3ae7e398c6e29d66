"""What the caller gives for a grammar: the texts that `%import` may read, and those of terminals of `%declare`."""

from __future__ import annotations

from collections.abc import Mapping

from sgl.grammars.errors import InvalidGrammarError


class Imports:
    """`{"units.lark": text, "more/dates.lark": text}`: `%import .units.METRE`, `%import .more.dates (DAY, MONTH)`."""

    def __init__(self, texts: Mapping[str, str] | None, declared: Mapping[str, str] | None = None) -> None:
        self.texts = {_module(path): text for path, text in _checked("imports", texts).items()}
        self.declared = _checked("declared", declared)

    def found(self, module: str, relative_to: str) -> str | None:
        """The full name of a module: beside the grammar that imports it, or from the top; None: it was not given."""
        folder = relative_to.rpartition(".")[0]
        beside = f"{folder}.{module}" if folder else module
        return next((name for name in (beside, module) if name in self.texts), None)


def _module(path: str) -> str:
    return path.removeprefix("./").removesuffix(".lark").replace("/", ".")


def _checked(name: str, given: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(given, Mapping | None):
        raise InvalidGrammarError(f"{name} must be a dict of texts, not {given!r}")
    for key, text in (given or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidGrammarError(f"{name} must be a dict of texts; {key!r} has {text!r}")
    return dict(given or {})
