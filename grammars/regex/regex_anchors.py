"""Anchors wherever they stand, and the difference between matching a text and finding a match in it.

A place in the text is at its start or not, and at its END, just BEFORE_LAST_LINE_FEED, or INSIDE. An expression is
resolved for the place where it begins and the place where it stops; an anchor is then either true or impossible.
"""

from __future__ import annotations

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    Alt,
    CharClass,
    Expr,
    RegexAnchor,
    Repeat,
    Seq,
    alt,
    nonempty,
    nullable,
    seq,
)
from sgl.grammars.algebra.language_operations import matches
from sgl.grammars.regex.repeat_merging import merge_repeats, sequence

ANYTHING = Repeat(CharClass(charset.ANY), 0, None)
INSIDE, END, BEFORE_LAST_LINE_FEED = range(3)
_LINE_FEED = CharClass(charset.single("\n"))


def resolve_anchors(expr: Expr, search: bool, line_feeds: frozenset[int] = frozenset()) -> Expr:
    """The texts that an expression matches as a whole, or with `search` anywhere in them, without anchors.

    Args:
        expr: the expression.
        search: any text may come around the match.
        line_feeds: the positions of the `$` that also hold before a line feed that ends the text (Python).
    """
    whole = sequence((ANYTHING, expr, ANYTHING)) if search else expr
    return _Resolver(line_feeds).resolve(whole, True, END)


class _Resolver:
    def __init__(self, line_feeds: frozenset[int]) -> None:
        self._line_feeds = line_feeds
        self._sides: dict[int, tuple[bool, bool]] = {}
        self._known: dict[tuple[int, bool, int], Expr] = {}
        self._alive: list[Expr] = []

    def resolve(self, expr: Expr, start: bool, end: int) -> Expr:
        """The language of an expression that begins at the start of the text or not, and stops at `end`."""
        starts, ends = self._anchored(expr)
        if not (starts or ends):
            return expr
        key = (id(expr), start and starts, end if ends else INSIDE)
        found = self._known.get(key)
        if found is None:
            self._alive.append(expr)
            found = self._known[key] = self._resolved(expr, start, end)
        return found

    def _resolved(self, expr: Expr, start: bool, end: int) -> Expr:
        match expr:
            case RegexAnchor(at_start, position):
                at_end = end == END or (end == BEFORE_LAST_LINE_FEED and position in self._line_feeds)
                return EMPTY if (start if at_start else at_end) else NEVER
            case Alt(items):
                return alt(*(self.resolve(item, start, end) for item in items))
            case Seq(items):
                cut = self._border(items)
                return self._pair(_whole(items[:cut]), _whole(items[cut:]), start, end)
            case Repeat():
                return self._repeat(expr, start, end)
        return expr

    def _pair(self, first: Expr, rest: Expr, start: bool, end: int) -> Expr:
        if self._anchored(first)[1] and (self._anchored(rest) != (False, False) or not nullable(rest)):
            return self._bound_pair(first, rest, start, end)
        if self._anchored(first)[1]:
            inner = self.resolve(first, start, INSIDE)
            return _either(seq(inner, rest), self._before(first, rest, start, end), inner, EMPTY)
        head = self.resolve(first, start, INSIDE)
        later = self.resolve(rest, False, end)
        if not (start and self._anchored(rest)[0] and nullable(head)):
            return seq(head, later)
        return _either(seq(head, later), self.resolve(rest, True, end), EMPTY, later)

    def _before(self, first: Expr, rest: Expr, start: bool, end: int) -> Expr:
        """What else `first` matches where a rest without anchors is empty, or is the line feed that ends the text."""
        found = [self.resolve(first, start, end)]
        if self._feeds(rest, end):
            found.append(seq(self.resolve(first, start, BEFORE_LAST_LINE_FEED), _LINE_FEED))
        return alt(*found)

    def _bound_pair(self, first: Expr, rest: Expr, start: bool, end: int) -> Expr:
        """Both sides of a border that is in the text's middle or, where one side is empty, at one of its ends."""
        later = self.resolve(rest, False, end)
        found = [seq(nonempty(self.resolve(first, start, INSIDE)), nonempty(later))]
        if nullable(later):
            found.append(nonempty(self.resolve(first, start, end)))
        if self._feeds(later, end):
            found.append(seq(nonempty(self.resolve(first, start, BEFORE_LAST_LINE_FEED)), _LINE_FEED))
        return alt(*found, *self._from_nothing(first, rest, start, end))

    def _from_nothing(self, first: Expr, rest: Expr, start: bool, end: int) -> list[Expr]:
        """What the rest matches where `first` is empty."""
        whole = self.resolve(rest, start, end)
        if nullable(self.resolve(first, start, INSIDE)):
            return [whole]
        found: list[Expr] = [EMPTY] if nullable(whole) and nullable(self.resolve(first, start, end)) else []
        if self._feeds(whole, end):
            found += [_LINE_FEED] * nullable(self.resolve(first, start, BEFORE_LAST_LINE_FEED))
        return found

    def _repeat(self, expr: Repeat, start: bool, end: int) -> Expr:
        """Rounds that match something; rounds that match nothing fill up the least number of them."""
        item, least, most = expr.item, expr.minimum, expr.maximum
        only, first = self.resolve(item, start, end), self.resolve(item, start, INSIDE)
        last = self.resolve(item, False, end)
        found: list[Expr] = [EMPTY] * (least == 0 or nullable(only))
        if nullable(first) or nullable(last):
            least = 1
        if least <= 1:
            found.append(nonempty(only))
        if most is None or most >= 2:
            rest = None if most is None else most - 2
            middle = merge_repeats(nonempty(self.resolve(item, False, INSIDE)), max(least - 2, 0), rest)
            found.append(seq(nonempty(first), middle, nonempty(last)))
            if self._feeds(last, end):
                fewer = Repeat(item, max(least - 1, 0), None if most is None else most - 1)
                found.append(seq(nonempty(self.resolve(fewer, start, BEFORE_LAST_LINE_FEED)), _LINE_FEED))
        return alt(*found)

    def _feeds(self, rest: Expr, end: int) -> bool:
        """Whether the rest of the text may be just a line feed, before which a `$` holds."""
        return bool(self._line_feeds) and end == END and matches(rest, "\n")

    def _border(self, items: tuple[Expr, ...]) -> int:
        """Where to cut a sequence: before its first item with anchors, or after that item."""
        return next((i for i, item in enumerate(items) if self._anchored(item) != (False, False)), 0) or 1

    def _anchored(self, expr: Expr) -> tuple[bool, bool]:
        """Whether there are anchors of the start, and of the end, in an expression."""
        if isinstance(expr, RegexAnchor):
            return expr.start, not expr.start
        if not isinstance(expr, Seq | Alt | Repeat):
            return False, False
        found = self._sides.get(id(expr))
        if found is None:
            self._alive.append(expr)
            parts = (expr.item,) if isinstance(expr, Repeat) else expr.items
            sides = [self._anchored(part) for part in parts]
            found = self._sides[id(expr)] = any(s for s, _ in sides), any(e for _, e in sides)
        return found


def _either(loose: Expr, bound: Expr, left: Expr, right: Expr) -> Expr:
    """`loose` or `bound`, whose branches that `left` or `right` has already are dropped."""
    known = {*_branches(left), *_branches(right)} - {EMPTY}
    return alt(loose, *(branch for branch in _branches(bound) if branch not in known))


def _whole(items: tuple[Expr, ...]) -> Expr:
    return items[0] if len(items) == 1 else Seq(items)


def _branches(expr: Expr) -> tuple[Expr, ...]:
    return expr.items if isinstance(expr, Alt) else (expr,)
