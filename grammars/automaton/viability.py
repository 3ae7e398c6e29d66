"""Whether a text in which items must differ can still be finished: most can at a glance, a few are searched.

A schema is compiled only if, between the items of such an array, there is always one more value that is new (see
`schema/arrays.py`). So only the value that is being written may lead nowhere: once all that it can become is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from sgl.grammars.algebra.marks import BEGIN, MOST_ITEMS, NEW, REPEATED
from sgl.grammars.automaton.distance import BYTE_COST, Distances
from sgl.grammars.automaton.texts import Text, Texts, kept
from sgl.grammars.automaton.twin import DEAD
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.network.network import Network

_FEW, _MANY = 400, 40_000  # texts that are looked at in a search, without a map of the grammar and with it
_ORDER = {byte: i for i, byte in enumerate(b'"]},0123456789: ' + bytes(range(0x61, 0x7B)))}
_PLAIN = b"a0 A-./_~z9"
Goal = Callable[[Text], bool]


class Viability:
    def __init__(self, texts: Texts, network: Network) -> None:
        self._texts, self._network = texts, network
        self._core = texts.core
        self._endless: dict[int, bool] = {}
        self._after: dict[int, tuple[int, ...]] = {}
        self._distances: Distances | None = None

    def of(self, text: Text) -> bool:
        """Whether the item of the outermost array that is remembered can come to an end that leads on."""
        if not kept(text) or self._between_items(text):
            return True
        if text.part[:1] == b'"' and self.endless(text.base):
            return True
        assert text.open is not None and text.open.outer is not None
        return self._way(text, _ended_within(text)) is not None

    def end(self, text: Text, goal: Goal) -> bytes:
        """A way to a goal. Raises GrammarLimitError where none is found."""
        found = b"" if goal(text) else self._search(text, goal, _MANY, self._map())
        if found is None:
            raise GrammarLimitError("no end of the text was found")
        return found

    def _between_items(self, text: Text) -> bool:
        return not text.part and text.open is not None and text.open.depth == text.open.outer

    def endless(self, base: int) -> bool:
        """Whether, within a string, endlessly many different ones may come of it; False also where that is not easily told."""
        found = self._endless.get(base)
        if found is None:
            found = self._endless[base] = any(self._grows(base, byte) for byte in self._plain(base))
        return found

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
            ends += self._core.live(base) >> 0x22 & 1
            if ends > MOST_ITEMS:
                return True
        return False

    def bytes_after(self, text: Text) -> tuple[int, ...]:
        """The bytes that may come next, most likely to end a value first; more than may come where an item ends."""
        found = self._after.get(text.base)
        if found is None:
            found = self._after[text.base] = self._ordered(text.base)
        return found

    def _ordered(self, base: int) -> tuple[int, ...]:
        live = self._core.live(base)
        for mark in (NEW, REPEATED) if live & (1 << NEW | 1 << REPEATED) else ():
            after = self._texts.base(base, mark)
            live |= 0 if after == DEAD else self._core.live(after)
        found = [byte for byte in range(BEGIN) if live >> byte & 1]
        return tuple(sorted(found, key=lambda byte: _ORDER.get(byte, 100 + byte)))

    def _way(self, text: Text, goal: Goal) -> bytes | None:
        """The bytes that lead to a goal, None where there is no way."""
        if goal(text):
            return b""
        try:
            return self._search(text, goal, _FEW, None)
        except GrammarLimitError:
            return self._search(text, goal, _MANY, self._map())

    def _search(self, text: Text, goal: Goal, most: int, chart: Distances | None) -> bytes | None:
        """Nearest first by a map; without one, in the order of bytes, depth first."""
        seen = {text}
        ways: list[tuple[int, int, bytes, Text]] = [(0, 0, b"", text)]
        while ways:
            _, _, way, here = heapq.heappop(ways)
            for rank, byte in enumerate(self.bytes_after(here)):
                after = self._texts.step(here, byte)
                if after is None or after in seen:
                    continue
                if goal(after):
                    return way + bytes((byte,))
                seen.add(after)
                cost = -len(way) if chart is None else len(way) * BYTE_COST + chart.from_state(self._core, after.base)
                heapq.heappush(ways, (cost, rank if chart is None else len(seen), way + bytes((byte,)), after))
            if len(seen) > most:
                raise GrammarLimitError(f"whether an item can differ from {len(seen)} others was not found out; bound it less")
        return None

    def _map(self) -> Distances:
        if self._distances is None or len(self._distances) < len(self._network):
            self._distances = Distances(self._network)
            self._core.extend()
        return self._distances


def _ended_within(text: Text) -> Goal:
    """Whether the item that is being written has ended."""
    outer = text.open
    assert outer is not None
    while outer.depth != outer.outer:
        assert outer.under is not None
        outer = outer.under
    count, depth = len(outer.items), outer.depth

    def goal(after: Text) -> bool:
        here = after.open
        return here is None or here.depth < depth or (here.depth == depth and len(here.items) > count)

    return goal
