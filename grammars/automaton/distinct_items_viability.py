"""Whether a text in which items must differ can still be finished: most can at a glance, a few are searched.

A schema is compiled only if, between the items of such an array, there is always one more value that is new (see
`schema/arrays.py`). So only the value that is being written may lead nowhere: once all that it can become is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from sgl.grammars.algebra.byte_marks import BEGIN, MOST_ITEMS, NEW, REPEATED
from sgl.grammars.automaton.distinct_items_states import DistinctItemsState, DistinctItemsStates, kept
from sgl.grammars.automaton.python_automaton_core import DEAD
from sgl.grammars.automaton.shortest_completion import BYTE_COST, ShortestCompletions
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.network.transition_network import TransitionNetwork

_FEW, _MANY = 100, 100_000  # steps of a search, without a map of the grammar and with it
_ORDER = {byte: i for i, byte in enumerate(b'"]},0123456789: ' + bytes(range(0x61, 0x7B)))}
_HASTE = 4  # bytes that are left cost so many times those that are written, or all short ways would be looked at
_PLAIN = b"a0 A-./_~z9"
_QUOTE = 0x22
_LONGEST_CHARACTER = 12  # bytes, as two escapes
Goal = Callable[[DistinctItemsState], bool]


class DistinctItemsViability:
    def __init__(self, texts: DistinctItemsStates, network: TransitionNetwork) -> None:
        self._texts, self._network = texts, network
        self._core = texts.core
        self._endless: dict[int, bool] = {}
        self._after: dict[int, tuple[int, ...]] = {}
        self._near: dict[int, list[tuple[int, int]]] = {}
        self._counter = count(0, -1)
        self._distances: ShortestCompletions | None = None

    def of(self, text: DistinctItemsState) -> bool:
        """Whether the item of the outermost array that is remembered can come to an end that leads on."""
        if not kept(text) or self._between_items(text):
            return True
        if text.part[:1] == b'"' and self.endless(text.base):
            return True
        assert text.open is not None and text.open.outer is not None
        return self._way(text, _ended_within(text)) is not None

    def end(self, text: DistinctItemsState, goal: Goal) -> bytes:
        """A way to a goal. Raises GrammarLimitError where none is found."""
        found = b"" if goal(text) else self._search(text, goal, self._map())
        if found is None:
            raise GrammarLimitError("no end of the text was found")
        return found

    def _between_items(self, text: DistinctItemsState) -> bool:
        return not text.part and text.open is not None and text.open.depth == text.open.outer

    def endless(self, base: int, deepest: int = _LONGEST_CHARACTER) -> bool:
        """Whether, within a string, endlessly many different ones may come of it;
        False also where that is not easily decided.
        """
        found = self._endless.get(base)
        if found is None:
            plain = self._plain(base)
            found = any(self._grows(base, byte) for byte in plain)
            if not plain and deepest:
                found = any(self.endless(after, deepest - 1) for after in self._within(base))
            if found or plain:
                self._endless[base] = found
        return found

    def _within(self, base: int) -> set[int]:
        """What follows in the middle of a character or an escape, where the string does not end."""
        live = self._core.live(base) & ~(1 << _QUOTE)
        return {self._texts.base(base, byte) for byte in range(BEGIN) if live >> byte & 1} - {DEAD}

    def _plain(self, base: int) -> list[int]:
        live = self._core.live(base)
        return [byte for byte in _PLAIN if live >> byte & 1]

    def _grows(self, base: int, byte: int) -> bool:
        """One byte again and again: a circle, or more ends on the way than there can be items."""
        ends = 0
        for _ in range(2 * MOST_ITEMS):
            after = self._texts.base(base, byte)
            if after in (base, DEAD):
                return after == base
            base = after
            ends += self._core.live(base) >> _QUOTE & 1
            if ends > MOST_ITEMS:
                return True
        return False

    def bytes_after(self, text: DistinctItemsState) -> tuple[int, ...]:
        """The bytes that may come next, most likely to end a value first; more than may come where an item ends."""
        return self._after_base(text.base)

    def _after_base(self, base: int) -> tuple[int, ...]:
        found = self._after.get(base)
        if found is None:
            found = self._after[base] = self._ordered(base)
        return found

    def _ordered(self, base: int) -> tuple[int, ...]:
        live = self._core.live(base)
        for mark in (NEW, REPEATED) if live & (1 << NEW | 1 << REPEATED) else ():
            after = self._texts.base(base, mark)
            live |= 0 if after == DEAD else self._core.live(after)
        found = [byte for byte in range(BEGIN) if live >> byte & 1]
        return tuple(sorted(found, key=lambda byte: _ORDER.get(byte, 100 + byte)))

    def _way(self, text: DistinctItemsState, goal: Goal) -> bytes | None:
        """The bytes that lead to a goal, None where there is no way."""
        if goal(text):
            return b""
        try:
            return self._first(text, goal)
        except GrammarLimitError:
            return self._search(text, goal, self._map())

    def _first(self, text: DistinctItemsState, goal: Goal) -> bytes | None:
        """Always on by the byte that is most likely to end a value, and back from where nothing follows."""
        seen, way = {text}, bytearray()
        path = [(text, iter(self.bytes_after(text)))]
        while path:
            here, rest = path[-1]
            for byte in rest:
                after = self._texts.step(here, byte)
                if after is None or after in seen:
                    continue
                way.append(byte)
                if goal(after):
                    return bytes(way)
                seen.add(after)
                path.append((after, iter(self.bytes_after(after))))
                break
            else:
                path.pop()
                del way[-1:]
            if len(seen) > _FEW:
                raise _not_found(len(seen))
        return None

    def _search(self, text: DistinctItemsState, goal: Goal, chart: ShortestCompletions) -> bytes | None:
        """Nearest to an end of the grammar first, what is written counted less;
        of those that are as near, the longest.
        """
        seen, steps = {text}, 0
        ways: list[tuple[int, int, int, bytes, DistinctItemsState, int]] = []
        self._add_way(ways, b"", text, 0, chart)
        while ways:
            _, _, _, way, here, place = heapq.heappop(ways)
            self._add_way(ways, way, here, place + 1, chart)
            byte, steps = self._nearest(here.base, chart)[place][1], steps + 1
            after = self._texts.step(here, byte)
            if after is not None and after not in seen:
                if goal(after):
                    return way + bytes((byte,))
                seen.add(after)
                self._add_way(ways, way + bytes((byte,)), after, 0, chart)
            if steps > _MANY:
                raise _not_found(steps)
        return None

    def _add_way(
        self,
        ways: list[tuple[int, int, int, bytes, DistinctItemsState, int]],
        way: bytes,
        text: DistinctItemsState,
        place: int,
        chart: ShortestCompletions,
    ) -> None:
        """What comes of a text by the byte at a place of those that may come, the nearest first."""
        nearest = self._nearest(text.base, chart)
        if place < len(nearest):
            cost = len(way) * BYTE_COST + _HASTE * nearest[place][0]
            heapq.heappush(ways, (cost, -len(way), next(self._counter), way, text, place))

    def _nearest(self, base: int, chart: ShortestCompletions) -> list[tuple[int, int]]:
        """The bytes that may come, each with the cost of what is left after it, the least first."""
        found = self._near.get(base)
        if found is None:
            costs: dict[int, int] = {}
            for byte in self._after_base(base):
                for after in self._targets(base, byte):
                    if after not in costs:
                        costs[after] = chart.from_state(self._core, after)
            ordered = (
                (min(costs[after] for after in self._targets(base, byte)), byte) for byte in self._after_base(base)
            )
            found = self._near[base] = sorted(ordered, key=lambda each: each[0])
        return found

    def _targets(self, base: int, byte: int) -> list[int]:
        """What may follow, whether an item that ends here is new or not."""
        live = self._core.live(base)
        starts = [base, *(self._texts.base(base, mark) for mark in (NEW, REPEATED) if live >> mark & 1)]
        return [after for start in starts if start != DEAD and (after := self._texts.base(start, byte)) != DEAD]

    def _map(self) -> ShortestCompletions:
        if self._distances is None or len(self._distances) < len(self._network):
            self._distances = ShortestCompletions(self._network)
            self._core.extend()
        return self._distances


def _not_found(looked_at: int) -> GrammarLimitError:
    return GrammarLimitError(f"whether an item can differ from {looked_at} others was not found out; bound it less")


def _ended_within(text: DistinctItemsState) -> Goal:
    """Whether the item that is being written has ended."""
    outer = text.open
    assert outer is not None
    while outer.depth != outer.outer:
        assert outer.under is not None
        outer = outer.under
    written, depth = len(outer.items), outer.depth

    def goal(after: DistinctItemsState) -> bool:
        here = after.open
        return here is None or here.depth < depth or (here.depth == depth and len(here.items) > written)

    return goal
