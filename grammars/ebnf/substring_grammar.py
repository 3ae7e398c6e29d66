"""`%regex {"substring_words": ...}`: any run of neighbouring pieces of a text, or nothing."""

from __future__ import annotations

import json
import re
from typing import Any

from sgl.grammars.algebra.expr import EMPTY, AutomatonExpr, Expr, GrammarRule, Literal, RuleCall, nonempty, optional
from sgl.grammars.ebnf.grammar_source import GrammarText

_WORDS = re.compile(r"\s+|\w+|[^\s\w]+")
MOST_PIECES = 20_000


def read_json(source: GrammarText, directive: str, at: int, start: int) -> tuple[Any, int]:
    """The JSON value that follows a directive, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(source.text, start)
    except (ValueError, RecursionError) as error:
        source.invalid(f"{directive} is not followed by a JSON value: {error}", at)


def substring_expr(source: GrammarText, value: Any, at: int) -> Expr:
    pieces = _pieces(source, value, at)
    if len(pieces) > MOST_PIECES:
        source.unsupported(f"%regex of more than {MOST_PIECES} pieces", at)
    if not pieces:
        return EMPTY
    runs = nonempty(_runs(pieces))
    return optional(RuleCall(GrammarRule("a substring", lambda: runs)))


def _runs(pieces: list[str]) -> AutomatonExpr:
    """The suffix automaton (Blumer et al. 1985) over pieces: deterministic, of at most twice as many states."""
    ways: list[dict[str, int]] = [{}]
    links, lengths = [-1], [0]
    last = 0
    for piece in pieces:
        new, at = len(ways), last
        ways.append({})
        links.append(0)
        lengths.append(lengths[last] + 1)
        while at >= 0 and piece not in ways[at]:
            ways[at][piece] = new
            at = links[at]
        if at >= 0:
            links[new] = _linked(ways, links, lengths, at, piece)
        last = new
    edges = tuple(tuple((Literal(piece.encode()), target) for piece, target in way.items()) for way in ways)
    return AutomatonExpr(edges, (True,) * len(edges))


def _linked(ways: list[dict[str, int]], links: list[int], lengths: list[int], at: int, piece: str) -> int:
    """The state of the longest suffix that was seen before: a copy of the one there is, where that is of longer ones
    too.
    """
    known = ways[at][piece]
    if lengths[known] == lengths[at] + 1:
        return known
    copy = len(ways)
    ways.append(dict(ways[known]))
    links.append(links[known])
    lengths.append(lengths[at] + 1)
    while at >= 0 and ways[at].get(piece) == known:
        ways[at][piece] = copy
        at = links[at]
    links[known] = copy
    return copy


def _pieces(source: GrammarText, value: Any, at: int) -> list[str]:
    if not isinstance(value, dict) or len(value) != 1:
        source.invalid("%regex takes an object with one member", at)
    [(kind, given)] = value.items()
    if kind not in ("substring_chunks", "substring_words", "substring_chars"):
        source.unsupported(f"%regex {kind}", at, "substring_chunks, substring_words and substring_chars are")
    if kind == "substring_chunks":
        if not (isinstance(given, list) and all(isinstance(piece, str) for piece in given)):
            source.invalid("%regex substring_chunks takes a list of strings", at)
        return [piece for piece in given if piece]
    if not isinstance(given, str):
        source.invalid(f"%regex {kind} takes a string", at)
    return _WORDS.findall(given) if kind == "substring_words" else list(given)
