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
from sgl.grammars.expr import EMPTY, NEVER, Alt, Chars, Expr, Graph, Literal, Repeat, Seq, Within, alt, nullable, repeat, seq

MOST_STATES = 4000
Part = frozenset[Expr]
State = tuple[Part, ...]


def combine(included: Sequence[Expr], excluded: Sequence[Expr] = ()) -> Expr:
    """The texts in all of `included` and none of `excluded`; a trimmed deterministic Graph, or NEVER.

    Raises:
        GrammarLimitError: it needs more than 4,000 states.
    """
    start: State = tuple(frozenset((e,)) for e in (*included, *excluded))
    states: dict[State, int] = {start: 0}
    edges: list[list[tuple[CharSet, int]]] = []
    order = [start]
    for state in order:
        edges.append([])
        for chars, target in _moves(state, len(included)):
            if target not in states:
                states[target] = len(order)
                order.append(target)
            edges[-1].append((chars, states[target]))
        if len(order) > MOST_STATES:
            raise GrammarLimitError(f"combining patterns needs more than {MOST_STATES} states")
    finals = [_accepts(state, len(included)) for state in order]
    return _trim(edges, finals)


def _accepts(state: State, included: int) -> bool:
    found = [any(map(nullable, part)) for part in state]
    return all(found[:included]) and not any(found[included:])


def _moves(state: State, included: int) -> list[tuple[CharSet, State]]:
    """Where the characters lead, those with the same target together; dead ends are left out."""
    forms = [[move for e in part for move in linear(e)] for part in state]
    cuts = sorted({cut for form in forms for chars, _ in form for low, high in chars for cut in (low, high + 1)})
    grouped: dict[State, list[tuple[int, int]]] = {}
    for low, high in zip(cuts, cuts[1:], strict=False):
        target = tuple(frozenset(e for chars, e in form if charset.contains(chars, low)) for form in forms)
        if all(target[:included]):
            grouped.setdefault(target, []).append((low, high - 1))
    return [(charset.normalise(ranges), target) for target, ranges in grouped.items()]


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


def _trim(edges: list[list[tuple[CharSet, int]]], finals: list[bool]) -> Expr:
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
    kept = tuple(tuple((Chars(c), order[t]) for c, t in edges[s] if t in useful) for s in sorted(useful))
    return Graph(kept, tuple(finals[s] for s in sorted(useful)))


def texts(words: Iterable[str]) -> Expr:
    """The language of a few exact texts."""
    return alt(*(seq(*(Chars(charset.single(c)) for c in word)) for word in words))
