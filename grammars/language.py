"""Set operations on languages of characters: intersection and difference by partial derivatives.

A component's state is a set of expressions, one a way to go on (Antimirov), so counted repeats are never unrolled up
front. The product is determinised, and states from which nothing can end are cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from sgl.grammars import charset
from sgl.grammars.charset import CharSet
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.expr import (
    EMPTY,
    NEVER,
    Alt,
    Chars,
    Expr,
    Graph,
    Literal,
    Repeat,
    Seq,
    Within,
    alt,
    nullable,
    repeat,
    seq,
)

MOST_STATES = 8000
MOST_WORK = 100_000
Part = frozenset[Expr]
State = tuple[Part, ...]
Move = tuple[int, int, Part]
DEAD: Part = frozenset()


def combine(
    included: Sequence[Expr], excluded: Sequence[Expr] = (), least: int = 0, most: int | None = None
) -> Expr:
    """The texts of `least` to `most` characters in all of `included` and none of `excluded`.

    Returns:
        A trimmed deterministic Graph, or NEVER.

    Raises:
        GrammarLimitError: it needs too many states.
    """
    start: State = tuple(frozenset((e,)) for e in (*included, *excluded))
    return _Product(len(included), least, most).graph(start)


class _Product:
    """Explores the states that all components reach together; the first `included` of them must stay alive."""

    def __init__(self, included: int, least: int, most: int | None) -> None:
        self._included = included
        self._least, self._most = least, most
        self._parts: dict[Part, list[Move]] = {}
        self._known: dict[State, list[tuple[Chars, State]]] = {}
        self._finals: dict[State, bool] = {}
        self._work = 0

    def graph(self, start: State) -> Expr:
        order = [(start, 0)]
        states = {order[0]: 0}
        edges: list[list[tuple[Chars, int]]] = []
        for state, count in order:
            edges.append([])
            for chars, after in self._moves(state) if count != self._most else ():
                target = after, count + 1 if self._most is not None else min(count + 1, self._least)
                if target not in states:
                    states[target] = len(order)
                    order.append(target)
                edges[-1].append((chars, states[target]))
            if len(order) > MOST_STATES or self._work > MOST_WORK:
                raise GrammarLimitError(f"combining patterns needs more than {MOST_STATES} states or too much work")
        return _trim(edges, [self._accepts(state, count) for state, count in order])

    def _accepts(self, state: State, count: int) -> bool:
        final = self._finals.get(state)
        if final is None:
            found = [any(map(nullable, part)) for part in state]
            final = all(found[: self._included]) and not any(found[self._included :])
            self._finals[state] = final
        return final and count >= self._least

    def _moves(self, state: State) -> list[tuple[Chars, State]]:
        """Where the characters lead, those with the same target together; dead ends are left out."""
        known = self._known.get(state)
        if known is not None:
            return known
        pieces: list[tuple[int, int, State]] = [(0, 0x10FFFF, ())]
        for i, part in enumerate(state):
            pieces = _refine(pieces, self._part(part), i < self._included)
        grouped: dict[State, list[tuple[int, int]]] = {}
        for low, high, target in pieces:
            grouped.setdefault(target, []).append((low, high))
        known = [(Chars(charset.normalise(ranges)), target) for target, ranges in grouped.items()]
        self._known[state] = known
        return known

    def _part(self, part: Part) -> list[Move]:
        """One component's moves over disjoint ranges in order."""
        found = self._parts.get(part)
        if found is None:
            form = [move for e in part for move in linear(e)]
            self._work += sum(len(chars) for chars, _ in form)
            found = self._parts[part] = _partition(form)
        return found


def _partition(form: list[tuple[CharSet, Expr]]) -> list[Move]:
    cuts = sorted({cut for chars, _ in form for low, high in chars for cut in (low, high + 1)})
    targets: list[set[Expr]] = [set() for _ in cuts]
    place = {cut: i for i, cut in enumerate(cuts)}
    for chars, after in form:
        for low, high in chars:
            for i in range(place[low], place[high + 1]):
                targets[i].add(after)
    bounds = zip(cuts, cuts[1:], targets, strict=False)
    return [(low, high - 1, frozenset(found)) for low, high, found in bounds if found]


def _refine(pieces: list[tuple[int, int, State]], moves: list[Move], needed: bool) -> list[tuple[int, int, State]]:
    """Cut ranges by one more component; where it cannot move it is dead, which only an excluded one may be."""
    found: list[tuple[int, int, State]] = []
    at = 0
    for low, high, state in pieces:
        while at < len(moves) and moves[at][1] < low:
            at += 1
        i = at
        while low <= high:
            start, end, target = moves[i] if i < len(moves) else (high + 1, high + 1, DEAD)
            if low < start:
                if not needed:
                    found.append((low, min(high, start - 1), (*state, DEAD)))
                low = start
            if low <= high:
                found.append((low, min(high, end), (*state, target)))
                low = end + 1
            i += 1
    return found


@lru_cache(maxsize=8192)
def linear(expr: Expr) -> tuple[tuple[CharSet, Expr], ...]:
    """All (first characters, what must follow) of an expression of `Chars` and ASCII literals."""
    match expr:
        case Chars(chars):
            return ((chars, EMPTY),)
        case Literal(data) if data:
            return ((((data[0], data[0]),), Literal(data[1:])),)
        case Alt(items):
            return tuple(dict.fromkeys(move for item in items for move in linear(item)))
        case Repeat(item, minimum, maximum):
            rest = repeat(item, max(minimum - 1, 0), None if maximum is None else maximum - 1)
            return tuple((chars, seq(after, rest)) for chars, after in linear(item))
        case Seq(items):
            rest = seq(*items[1:])
            moves = tuple((chars, seq(after, rest)) for chars, after in linear(items[0]))
            return moves + linear(rest) if nullable(items[0]) else moves
        case Graph():
            return linear(Within(expr, 0))
        case Within(graph, state):
            return tuple(
                (chars, Within(graph, target))
                for item, target in graph.edges[state]
                for chars, _ in linear(item)
            )
    return ()


def _trim(edges: list[list[tuple[Chars, int]]], finals: list[bool]) -> Expr:
    sources: list[list[int]] = [[] for _ in edges]
    for source, out in enumerate(edges):
        for _, target in out:
            sources[target].append(source)
    useful = {i for i, final in enumerate(finals) if final}
    work = list(useful)
    while work:
        new = set(sources[work.pop()]) - useful
        useful |= new
        work += new
    if 0 not in useful:
        return NEVER
    order = {state: i for i, state in enumerate(sorted(useful))}
    kept = tuple(tuple((c, order[t]) for c, t in edges[s] if t in useful) for s in sorted(useful))
    return Graph(kept, tuple(finals[s] for s in sorted(useful)))


def texts(words: Iterable[str]) -> Expr:
    """The language of a few exact texts."""
    return alt(*(seq(*(Chars(charset.single(c)) for c in word)) for word in words))


def matches(expr: Expr, text: str) -> bool:
    """Whether a text is in the language."""
    states = {expr}
    for char in text:
        states = {after for e in states for chars, after in linear(e) if charset.contains(chars, ord(char))}
    return any(map(nullable, states))
