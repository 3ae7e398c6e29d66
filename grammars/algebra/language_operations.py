"""Set operations on languages of characters: intersection and difference.

A component's state is a set of terms, one a way to go on. The product of all components is determinised, and states
from which nothing can end are cut off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.character_partition import CharacterPartition
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import NEVER, AutomatonExpr, CharClass, Expr, alt, seq
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.algebra.interned_terms import TermStore
from sgl.grammars.algebra.length_clipping import clip_lengths
from sgl.grammars.errors import GrammarLimitError

MOST_STATES = 8000
MOST_WORK = 100_000
Part = tuple[int, ...]  # sorted terms
State = tuple[Part, ...]
DEAD: Part = ()
_MOST_RECOGNISERS = 64
_recognisers: dict[int, tuple[Expr, Recogniser]] = {}


def combine(included: Sequence[Expr], excluded: Sequence[Expr] = (), least: int = 0, most: int | None = None) -> Expr:
    """The texts of `least` to `most` characters in all of `included` and none of `excluded`.

    Returns:
        NEVER where there are none; else an expression without dead ends, mostly a deterministic AutomatonExpr.

    Raises:
        GrammarLimitError: it needs too many states, or too much work to find them.
    """
    if len(included) == 1 and not excluded:
        bounded = clip_lengths(included[0], least, most)
        if bounded is not None:
            return bounded
    core = extension()
    if core is None:
        return product(included, excluded, least, most)
    found = core.combine(tuple(included), tuple(excluded), least, most, MOST_STATES, MOST_WORK, _alphabet)
    if found is None:
        raise _too_much()
    return AutomatonExpr(*found) if found else NEVER


def determined(included: Sequence[Expr], excluded: Sequence[Expr] = ()) -> AutomatonExpr | None:
    """The texts in all of `included` and none of `excluded` as a deterministic graph over characters; None: no text.

    Raises:
        GrammarLimitError: it needs too many states, or too much work to find them.
    """
    core = extension()
    if core is None:
        made = product(included, excluded)
        return made if isinstance(made, AutomatonExpr) else None
    found = core.combine(tuple(included), tuple(excluded), 0, None, MOST_STATES, MOST_WORK, _alphabet)
    if found is None:
        raise _too_much()
    return AutomatonExpr(*found) if found else None


def product(included: Sequence[Expr], excluded: Sequence[Expr], least: int = 0, most: int | None = None) -> Expr:
    """`combine` in Python without short cuts: the oracle of `core/languages/language_product.c` and its fallback."""
    terms = TermStore()
    start = tuple((terms.of(e),) for e in (*included, *excluded))
    return _Product(terms, len(included), least, most).graph(start)


def _alphabet(sets: list[CharSet]) -> tuple[list[int], int, Callable[[int], CharClass]]:
    """What the C core asks of an alphabet: the classes of each set, all classes, and the characters of classes."""
    alphabet = CharacterPartition(sets)
    return alphabet.masks, alphabet.everything, lambda mask: CharClass(alphabet.chars(mask))


def _too_much() -> GrammarLimitError:
    return GrammarLimitError(f"combining patterns needs more than {MOST_STATES} states or too much work")


class _Product:
    """Explores the states that all components reach together; the first `included` of them must stay alive."""

    def __init__(self, terms: TermStore, included: int, least: int, most: int | None) -> None:
        self._terms = terms
        self._alphabet = CharacterPartition(terms.sets)
        self._included = included
        self._least, self._most = least, most
        self._parts: dict[Part, list[tuple[int, Part]]] = {}
        self._known: dict[State, list[tuple[CharClass, State]]] = {}
        self._finals: dict[State, bool] = {}
        self._chars: dict[int, CharClass] = {}
        self._work = 0

    def graph(self, start: State) -> Expr:
        order = [(start, 0)]
        states = {order[0]: 0}
        edges: list[list[tuple[CharClass, int]]] = []
        for state, count in order:
            edges.append([])
            for chars, after in self._moves(state) if count != self._most else ():
                target = after, count + 1 if self._most is not None else min(count + 1, self._least)
                if target not in states:
                    states[target] = len(order)
                    order.append(target)
                edges[-1].append((chars, states[target]))
            self._check(len(order))
        return trimmed(edges, [self._accepts(state, count) for state, count in order])

    def _check(self, states: int) -> None:
        if states > MOST_STATES or self._work > MOST_WORK:
            raise _too_much()

    def _accepts(self, state: State, count: int) -> bool:
        final = self._finals.get(state)
        if final is None:
            nullable = self._terms.nullable
            found = [any(nullable[term] for term in part) for part in state]
            final = all(found[: self._included]) and not any(found[self._included :])
            self._finals[state] = final
        return final and count >= self._least

    def _moves(self, state: State) -> list[tuple[CharClass, State]]:
        """Where the characters lead, those with the same target together; dead ends are left out."""
        known = self._known.get(state)
        if known is not None:
            return known
        pieces: list[tuple[int, State]] = [(self._alphabet.everything, ())]
        for i, part in enumerate(state):
            pieces = _refine(pieces, self._part(part), i < self._included)
            self._work += len(pieces)
        grouped: dict[State, int] = {}
        for mask, target in pieces:
            grouped[target] = grouped.get(target, 0) | mask
        known = [(self._set(mask), target) for target, mask in grouped.items()]
        self._known[state] = known
        return known

    def _part(self, part: Part) -> list[tuple[int, Part]]:
        """One component's moves over disjoint sets of classes."""
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = self._partition(part)
        return found

    def _partition(self, part: Part) -> list[tuple[int, Part]]:
        """Cut the alphabet by the moves of all terms; those with the same target go together."""
        to: dict[int, int] = {}
        for term in part:
            for chars, after in self._terms.linear(term):
                to[after] = to.get(after, 0) | self._alphabet.masks[chars]
        pieces: list[tuple[int, list[int]]] = []
        for after, mask in to.items():
            pieces = _cut(pieces, mask, after)
            self._work += len(pieces)
        return [(mask, tuple(sorted(targets))) for mask, targets in pieces]

    def _set(self, mask: int) -> CharClass:
        found = self._chars.get(mask)
        if found is None:
            found = self._chars[mask] = CharClass(self._alphabet.chars(mask))
        return found


def _cut(pieces: list[tuple[int, list[int]]], mask: int, after: int) -> list[tuple[int, list[int]]]:
    """Add one more target to the classes of `mask`."""
    found: list[tuple[int, list[int]]] = []
    for piece, targets in pieces:
        both = piece & mask
        if both:
            found.append((both, [*targets, after]))
            mask ^= both
        if piece ^ both:
            found.append((piece ^ both, targets))
    if mask:
        found.append((mask, [after]))
    return found


def _refine(pieces: list[tuple[int, State]], moves: list[tuple[int, Part]], needed: bool) -> list[tuple[int, State]]:
    """Cut pieces by one more component; where it cannot move it is dead, which only an excluded one may be."""
    found: list[tuple[int, State]] = []
    for piece, state in pieces:
        for mask, target in moves:
            if piece & mask:
                found.append((piece & mask, (*state, target)))
                piece &= ~mask
                if not piece:
                    break
        if piece and not needed:
            found.append((piece, (*state, DEAD)))
    return found


def trimmed(edges: list[list[tuple[CharClass, int]]], finals: list[bool]) -> Expr:
    """The graph without the states from which nothing can end; NEVER where the first one is such."""
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
    return AutomatonExpr(kept, tuple(finals[s] for s in sorted(useful)))


def texts(words: Iterable[str]) -> Expr:
    """The language of a few exact texts."""
    return alt(*(seq(*(CharClass(charset.single(c)) for c in word)) for word in words))


def matches(expr: Expr, text: str) -> bool:
    """Whether a text is in the language."""
    known = _recognisers.get(id(expr)) or _remembered(expr)
    return known[1].accepts(text)


def _remembered(expr: Expr) -> tuple[Expr, Recogniser]:
    """By identity, as expressions can be large to hash; the memo keeps them alive, so that an id stays theirs."""
    if len(_recognisers) >= _MOST_RECOGNISERS:
        _recognisers.clear()
    found = _recognisers[id(expr)] = expr, Recogniser(expr)
    return found


_STUCK = -1
MOVE_WORK = 10  # a move that is looked at takes so many times what a character does


class Recogniser:
    """Reads texts; the sets of terms that they lead to are states, made when they are first reached.

    work: what was done so far: the characters read, and the moves looked at to make states. The caller may bound it
        by `most_work`; `accepts` raises GrammarLimitError beyond that.
    """

    def __init__(self, expr: Expr) -> None:
        self.work, self.most_work = 0, sys.maxsize
        self._terms = TermStore()
        start = frozenset((self._terms.of(expr),))
        self._states = {start: 0}
        self._parts = [start]
        self._rows: list[dict[str, int]] = [{}]

    def accepts(self, text: str) -> bool:
        state, rows = 0, self._rows
        self.work += len(text)
        for char in text:
            after = rows[state].get(char)
            state = self._step(state, char) if after is None else after
            if state < 0:
                return False
        return any(self._terms.nullable[term] for term in self._parts[state])

    def _step(self, state: int, char: str) -> int:
        terms, code = self._terms, ord(char)
        moves = [move for term in self._parts[state] for move in terms.linear(term)]
        self.work += MOVE_WORK * len(moves)
        if self.work > self.most_work:
            raise GrammarLimitError("to read a text takes too many steps")
        holding = {chars for chars in {chars for chars, _ in moves} if charset.contains(terms.sets[chars], code)}
        part = frozenset(after for chars, after in moves if chars in holding)
        found = self._states.setdefault(part, len(self._parts)) if part else _STUCK
        self._rows[state][char] = found
        if found == len(self._parts):
            self._parts.append(part)
            self._rows.append({})
        return found
