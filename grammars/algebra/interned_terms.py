"""Expressions over characters as small integers: equal ones are the same integer, so sets of them hash fast.

Each knows whether it matches the empty text, and its linear form: the sets of first characters with what must follow
(partial derivatives, Antimirov 1996). Counted repeats are never unrolled up front.
"""

from __future__ import annotations

from collections.abc import Iterable

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import Alt, AutomatonExpr, CharClass, Expr, Literal, LiteralSet, Repeat, Seq

EMPTY, NEVER = 0, 1
Move = tuple[int, int]
_CHARS, _SEQ, _ALT, _REPEAT, _STATE = range(5)


class TermStore:
    """A store of terms; `sets` are the sets of characters that their linear forms speak of by index."""

    def __init__(self) -> None:
        self.sets: list[CharSet] = []
        self.nullable: list[bool] = [True, False]
        self._keys: list[tuple[int, ...]] = [(), ()]
        self._ids: dict[tuple[int, ...], int] = {}
        self._set_ids: dict[CharSet, int] = {}
        self._edges: list[list[list[Move]]] = []
        self._accepting: list[tuple[bool, ...]] = []
        self._linear: dict[int, tuple[Move, ...]] = {EMPTY: (), NEVER: ()}

    def of(self, expr: Expr) -> int:
        """The term of an expression of characters."""
        match expr:
            case CharClass(chars):
                return self._chars(chars)
            case Literal(data):
                return self._word(data.decode())
            case LiteralSet(literals):
                return self._alt(self._word(word.decode()) for word in literals)
            case Seq(items):
                found = EMPTY
                for item in reversed(items):
                    found = self._seq(self.of(item), found)
                return found
            case Alt(items):
                return self._alt(map(self.of, items))
            case Repeat(item, minimum, maximum):
                return self._repeat(self.of(item), minimum, -1 if maximum is None else maximum)
            case AutomatonExpr():
                self._edges.append([[(self.of(item), target) for item, target in out] for out in expr.edges])
                self._accepting.append(expr.accepting)
                return self._state(len(self._edges) - 1, 0)
        raise TypeError(f"no language of characters: {type(expr).__name__}")

    def linear(self, term: int) -> tuple[Move, ...]:
        """All (index of the set of first characters, what must follow) of a term."""
        found = self._linear.get(term)
        if found is None:
            found = self._linear[term] = tuple(dict.fromkeys(self._moves(*self._keys[term])))
        return found

    def _moves(self, kind: int, *parts: int) -> list[Move]:
        if kind == _CHARS:
            return [(parts[0], EMPTY)]
        if kind == _ALT:
            return [move for part in parts for move in self.linear(part)]
        if kind == _SEQ:
            first, rest = parts
            found = [(chars, self._seq(after, rest)) for chars, after in self.linear(first)]
            return found + list(self.linear(rest)) if self.nullable[first] else found
        if kind == _REPEAT:
            item, least, most = parts
            rest = self._repeat(item, max(least - 1, 0), max(most - 1, -1))
            return [(chars, self._seq(after, rest)) for chars, after in self.linear(item)]
        graph, state = parts
        return [
            (chars, self._seq(after, self._state(graph, target)))
            for item, target in self._edges[graph][state]
            for chars, after in self.linear(item)
        ]

    def _intern(self, nullable: bool, *key: int) -> int:
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._keys)
            self._keys.append(key)
            self.nullable.append(nullable)
        return found

    def _chars(self, chars: CharSet) -> int:
        if not chars:
            return NEVER
        index = self._set_ids.get(chars)
        if index is None:
            index = self._set_ids[chars] = len(self.sets)
            self.sets.append(chars)
        return self._intern(False, _CHARS, index)

    def _word(self, text: str) -> int:
        found = EMPTY
        for char in reversed(text):
            found = self._seq(self._chars(charset.single(char)), found)
        return found

    def _seq(self, first: int, rest: int) -> int:
        if first == EMPTY or rest == NEVER:
            return rest
        if rest == EMPTY or first == NEVER:
            return first
        heads: list[int] = []
        while self._keys[first][0] == _SEQ:
            _, head, first = self._keys[first]
            heads.append(head)
        for head in (first, *reversed(heads)):
            rest = self._intern(self.nullable[head] and self.nullable[rest], _SEQ, head, rest)
        return rest

    def _alt(self, parts: Iterable[int]) -> int:
        unique = sorted({part for part in parts if part != NEVER})
        if len(unique) < 2:
            return unique[0] if unique else NEVER
        return self._intern(any(self.nullable[part] for part in unique), _ALT, *unique)

    def _repeat(self, item: int, least: int, most: int) -> int:
        """`most` below zero: no bound."""
        if most == 0 or item == EMPTY:
            return EMPTY
        if item == NEVER:
            return NEVER if least else EMPTY
        if least == most == 1:
            return item
        return self._intern(least == 0 or self.nullable[item], _REPEAT, item, least, most)

    def _state(self, graph: int, state: int) -> int:
        return self._intern(self._accepting[graph][state], _STATE, graph, state)
