"""Texts of a deterministic automaton within bounds of length: a rule for each state and count, made on the way.

The product of a format with a bound of thousands of characters has too many states to be made at once, but a text only
passes a few of them.
"""

from __future__ import annotations

from collections.abc import Callable

from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import EMPTY, NEVER, AutomatonExpr, CharClass, Expr, GrammarRule, RuleCall, alt, seq

Place = tuple[int, int]  # a state, and how many characters were read, as far as that matters


class CountedTexts:
    """The texts of `least` to `most` characters (None: any number) of a graph over characters.

    `write` says how a character of a set is written, `spell` gives the bytes of one.
    """

    def __init__(
        self,
        graph: AutomatonExpr,
        least: int,
        most: int | None,
        write: Callable[[CharSet], Expr],
        spell: Callable[[CharSet], bytes],
    ) -> None:
        self._edges = [
            [(chars.chars, target) for chars, target in out if isinstance(chars, CharClass)] for out in graph.edges
        ]
        self._accepting = graph.accepting
        self._least, self._most = least, most
        self._write, self._spell = write, spell
        self._longest = least + len(graph.edges) if most is None else most
        self._lengths = self._all_lengths()
        self._rules: dict[Place, GrammarRule] = {}

    def expr(self, name: str) -> Expr:
        """A call of the rule of all texts; NEVER where there is none."""
        self._name = name
        return RuleCall(self._rule((0, 0))) if self._left((0, 0)) else NEVER

    def _all_lengths(self) -> list[int]:
        """For each state the lengths of the texts that lead to an end, as a set of bits."""
        ends = [bool(final) for final in self._accepting]
        found = [0] * len(ends)
        for length in range(self._longest + 1):
            found = [bits | end << length for bits, end in zip(found, ends, strict=True)]
            before, ends = ends, [any(ends[target] for _, target in out) for out in self._edges]
            if ends == before:
                more = (1 << self._longest + 1) - (1 << length)
                return [bits | more if end else bits for bits, end in zip(found, ends, strict=True)]
        return found

    def _left(self, place: Place) -> int:
        """The lengths of the texts that may still come, as a set of bits."""
        state, count = place
        room = self._longest if self._most is None else self._most - count
        if room < 0:
            return 0
        below = (1 << max(self._least - count, 0)) - 1
        return self._lengths[state] & ((1 << room + 1) - 1) & ~below

    def _moves(self, place: Place) -> list[tuple[CharSet, Place]]:
        state, count = place
        after = count + 1 if self._most is not None else min(count + 1, self._least)
        return [(chars, (target, after)) for chars, target in self._edges[state] if self._left((target, after))]

    def _rule(self, place: Place) -> GrammarRule:
        found = self._rules.get(place)
        if found is None:
            name = f"{self._name}, state {place[0]} after {place[1]} characters"
            found = self._rules[place] = GrammarRule(name, lambda: self._body(place), lambda: self._end(place))
        return found

    def _body(self, place: Place) -> Expr:
        ends = [EMPTY] if self._left(place) & 1 else []
        return alt(
            *(seq(self._write(chars), RuleCall(self._rule(after))) for chars, after in self._moves(place)), *ends
        )

    def _end(self, place: Place) -> bytes:
        """A text of the fewest characters, each of the fewest bytes."""
        found = bytearray()
        while not (left := self._left(place)) & 1:
            rest = (left & -left).bit_length() - 2
            ways = [(self._spell(chars), after) for chars, after in self._moves(place) if self._left(after) >> rest & 1]
            spelled, place = min(ways, key=lambda way: len(way[0]))
            found += spelled
        return bytes(found)
