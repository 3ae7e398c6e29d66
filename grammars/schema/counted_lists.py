"""Lists whose items are counted by kind, as an automaton over items: `contains` with its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from sgl.grammars.algebra.expr import NEVER, AutomatonExpr, Expr, GrammarRule, RuleCall, seq
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.schema.json_spelling import JsonWhitespace
from sgl.grammars.schema.schema_shapes import ArrayShape, ContainsShape, Where

_MOST_STATES = 2000
_MOST_KINDS = 3
State = tuple[int, ...]  # items so far, then how many of them each `contains` has counted, as far as it matters
Choice = tuple[bool, ...]  # which of the `contains` count an item


class CountedList:
    """The items of an array between its brackets.

    A `contains` without an upper bound may leave items uncounted, so that nothing need be negated for it.
    """

    def __init__(
        self,
        arrays: ArrayShape,
        value: Callable[[Where], Expr],
        negate: Callable[[Where, str], Where],
        blanks: JsonWhitespace,
    ) -> None:
        if len(arrays.contains) > _MOST_KINDS:
            raise UnsupportedGrammarError(
                arrays.contains[0].keyword, arrays.place, f"more than {_MOST_KINDS} apply to one array"
            )
        self._arrays, self._value, self._negate, self._blanks = arrays, value, negate, blanks
        self._cap = max(len(arrays.prefix), arrays.least, arrays.most or 0, *(c.start for c in arrays.contains))
        self._items: dict[tuple[int, Choice], Expr] = {}
        self._rules: dict[Where, Expr] = {}

    def expr(self) -> Expr:
        """The list, NEVER when there is none."""
        start: State = (0, *(0 for _ in self._arrays.contains))
        order = [start]
        edges: list[list[tuple[Expr, int]]] = []
        numbers = {start: 0}
        for state in order:
            edges.append([])
            for item, target in self._steps(state):
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
                edges[-1].append((item, numbers[target]))
            if len(order) > _MOST_STATES:
                raise UnsupportedGrammarError(
                    self._arrays.contains[0].keyword, self._arrays.place, "it counts too many items"
                )
        return self._closed(edges, [self._accepts(state) for state in order])

    def _closed(self, edges: list[list[tuple[Expr, int]]], accepting: list[bool]) -> Expr:
        """Only states that can end are kept, and a blank may come before the closing bracket."""
        useful = _productive(edges, accepting)
        if 0 not in useful:
            return NEVER
        last = len(edges)
        kept = [[(item, t) for item, t in out if t in useful] for out in edges]
        for state, final in enumerate(accepting):
            if final:
                kept[state].append((self._blanks.closing if state else self._blanks.empty, last))
        return AutomatonExpr((*map(tuple, kept), ()), (*(False for _ in edges), True))

    def _accepts(self, state: State) -> bool:
        counts = zip(state[1:], self._arrays.contains, strict=True)
        return state[0] >= self._arrays.least and all(count >= c.least for count, c in counts)

    def _steps(self, state: State) -> Iterator[tuple[Expr, State]]:
        most = self._arrays.most
        if most is not None and state[0] >= most:
            return
        before = self._blanks.comma if state[0] else self._blanks.opening
        for choice in product((False, True), repeat=len(self._arrays.contains)):
            target = self._after(state, choice)
            item = self._item(min(state[0], self._cap), choice) if target else NEVER
            if target and item != NEVER:
                yield seq(before, item), target

    def _after(self, state: State, choice: Choice) -> State | None:
        """None where a count would pass its bound, or where it would not matter."""
        counts = []
        for count, counted, contained in zip(state[1:], choice, self._arrays.contains, strict=True):
            if counted and (state[0] < contained.start or count == _enough(contained)):
                return None
            counts.append(count + counted)
        return (min(state[0] + 1, max(self._cap, 1)), *counts)

    def _item(self, at: int, choice: Choice) -> Expr:
        key = (at, choice)
        if key not in self._items:
            places = self._arrays.at(at)
            for counted, contained in zip(choice, self._arrays.contains, strict=True):
                if counted:
                    places += contained.places
                elif contained.most is not None and at >= contained.start:
                    places += self._negate(contained.places, "maxContains")
            self._items[key] = self._shared(tuple(dict.fromkeys(places)))
        return self._items[key]

    def _shared(self, places: Where) -> Expr:
        """A rule, so that an item is lowered once and not for each count."""
        found = self._rules.get(places)
        if found is None:
            item = self._value(places)
            found = self._rules[places] = (
                item if item == NEVER else RuleCall(GrammarRule("a counted item", lambda: item))
            )
        return found


def _enough(contained: ContainsShape) -> int:
    return contained.least if contained.most is None else contained.most


def _productive(edges: list[list[tuple[Expr, int]]], accepting: list[bool]) -> set[int]:
    found = {state for state, final in enumerate(accepting) if final}
    grown = True
    while grown:
        more = {state for state, out in enumerate(edges) if any(target in found for _, target in out)} - found
        found |= more
        grown = bool(more)
    return found
