"""Anchors at the ends of a regex, and the difference between matching a text and finding a match in it."""

from __future__ import annotations

from sgl.grammars import charset
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.expr import EMPTY, NEVER, Alt, Anchor, Chars, Expr, Repeat, Seq, alt, seq

ANYTHING = Repeat(Chars(charset.ANY), 0, None)


def resolve_anchors(expr: Expr, search: bool, pattern: str) -> Expr:
    """Drop the anchors at both ends; with `search`, let any text come where no anchor stands.

    Raises:
        UnsupportedGrammarError: an anchor stands inside the pattern.
    """
    free = ANYTHING if search else EMPTY
    bound, loose = _split(expr, start=True)
    found: list[Expr] = []
    for before, part in ((EMPTY, bound), (free, loose)):
        closed, open_ = _split(part, start=False)
        found += [seq(before, closed), seq(before, open_, free)]
    result = alt(*found)
    _refuse_inner(result, pattern)
    return result


def _split(expr: Expr, start: bool) -> tuple[Expr, Expr]:
    """The parts of an expression that begin (or end) with an anchor, without it, and those that do not."""
    match expr:
        case Anchor() if expr.start == start:
            return EMPTY, NEVER
        case Alt(items):
            pairs = [_split(item, start) for item in items]
            return alt(*(p[0] for p in pairs)), alt(*(p[1] for p in pairs))
        case Seq(items):
            if start:
                bound, loose = _split(items[0], start)
                return _skip(seq(bound, *items[1:]), start), seq(loose, *items[1:])
            bound, loose = _split(items[-1], start)
            return _skip(seq(*items[:-1], bound), start), seq(*items[:-1], loose)
    return NEVER, expr


def _skip(expr: Expr, start: bool) -> Expr:
    """An anchored expression may carry the same anchor again (`^^a`, `^(^a)`)."""
    return alt(*_split(expr, start))


def _refuse_inner(expr: Expr, pattern: str) -> None:
    match expr:
        case Anchor(start, position):
            name = "anchor ^ inside the pattern" if start else "anchor $ inside the pattern"
            raise UnsupportedGrammarError(name, f"position {position} of the regex {pattern!r}")
        case Seq(items) | Alt(items):
            for item in items:
                _refuse_inner(item, pattern)
        case Repeat(item, _, _):
            _refuse_inner(item, pattern)
