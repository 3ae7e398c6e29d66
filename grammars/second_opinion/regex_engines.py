"""Regular expressions as Python's `re` and as interegular's automata read them."""

from __future__ import annotations

import re
from collections.abc import Callable

from sgl.grammars.second_opinion.no_verdict_error import NoVerdictError

_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_ASCII_CLASS = re.compile(r"\\[dDsSwW]")
_PLAIN = re.compile(r"[\t-\r -~]*")


def re_recogniser(pattern: str) -> Callable[[str], bool]:
    """Raises NoVerdictError where `re` does not know the syntax."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise NoVerdictError(f"re cannot read it: {error}") from error
    return lambda text: compiled.fullmatch(text) is not None


def automaton_recogniser(pattern: str) -> Callable[[str], bool]:
    """interegular's. Its `\\d`, `\\w` and `\\s` are ASCII: of a pattern with these it judges ASCII texts only."""
    from interegular import parse_pattern

    try:
        automaton = parse_pattern(without_outer_anchors(pattern)).to_fsm()
    except Exception as error:  # it raises what its parser stumbles over, of any class
        raise NoVerdictError(f"interegular cannot read it: {str(error) or type(error).__name__}") from error
    only_ascii = _ASCII_CLASS.search(pattern) is not None

    def accepts(text: str) -> bool:
        if only_ascii and not _PLAIN.fullmatch(text):
            raise NoVerdictError(r"its \d, \w and \s are ASCII, and the text is not")
        return bool(automaton.accepts(text))

    return accepts


def without_outer_anchors(pattern: str) -> str:
    """The pattern without the `^` that begins it and the `$` that ends it, which hold wherever all of a text matches.

    Raises NoVerdictError: there are other anchors, which these engines refuse or silently never match.
    """
    atoms = _ATOM.findall(pattern)
    inner = atoms[atoms[:1] == ["^"] : len(atoms) - (atoms[-1:] == ["$"])]
    for anchor in ("^", "$", r"\A", r"\Z", r"\z"):
        if anchor in inner:
            raise NoVerdictError(f"anchor {anchor} inside a pattern")
    return "".join(inner)
