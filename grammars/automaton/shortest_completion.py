"""Shortest completions: the least cost from every node to the end of its rule, loop item or list member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sgl.grammars.algebra.byte_marks import TOKEN
from sgl.grammars.algebra.unordered_parts import EMPTY_SUBSET, PartSubset
from sgl.grammars.automaton.state_closure import Thread
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.network.transition_network import (
    BYTE,
    CALL,
    COPY,
    ENTER,
    LOOP,
    NEXT,
    PICK,
    SEEN,
    SPLIT,
    TransitionNetwork,
)

# A byte costs so much more than a move that reads none that texts are compared by length, and no way is a circle.
BYTE_COST = 1 << 40
TOKEN_COST = 1 << 64  # of a token that the grammar speaks of: more than that of any text that is found
FAR = 1 << 90
MOST_MOVES = 100_000  # of one completion: decoding waits for it, and a longer one is of no use
MOST_VISITS = 2_000_000  # of costs that are read on the way to all: a third of a second or so
MOST_NODES = 60_000
_PREFERRED = bytes(range(0x30, 0x3A)) + bytes(range(0x61, 0x7B)) + bytes(range(0x20, 0x7F))


class DistanceCore(Protocol):
    """The interface to an automaton's core; `python_automaton_core.py` says what the numbers mean."""

    def threads(self, state: int) -> list[Thread]: ...

    def frame(self, index: int) -> list[Thread]: ...

    def subset(self, index: int) -> PartSubset: ...

    def piece_end(self, text: int, place: int) -> bytes: ...


class ShortestCompletions:
    """Builds every rule of the network but those that know their end, so it is made only when a text must be cut short.

    It speaks of the nodes that the network has when it is made.
    """

    def __init__(self, network: TransitionNetwork) -> None:
        self.network = network
        self._ends = network.finish(MOST_NODES)
        if len(network) > MOST_NODES:
            raise GrammarLimitError(f"finding an end of the grammar takes more than {MOST_NODES} of its parts")
        self._nodes = [network.node(i) for i in range(len(network))]
        classes = {node[1] for node in self._nodes if node[0] == BYTE}
        self._marks = {number for number in classes if network.class_mask(number) == 1 << TOKEN}
        self._cost = [FAR] * len(self._nodes)
        self._effort = [1] * len(self._nodes)
        self._relax()

    def __len__(self) -> int:
        return len(self._nodes)

    def _relax(self) -> None:
        """Make costs shorter until none changes: in every sweep, from ends to starts, of nodes that read a changed
        one."""
        readers = self._readers()
        stale: Sequence[int] = range(len(self._nodes))
        visits = 0
        while stale:
            visits += sum(self._effort[index] for index in stale)
            if visits > MOST_VISITS:
                raise GrammarLimitError(
                    f"finding an end of the grammar takes more than {MOST_VISITS} visits of its parts"
                )
            changed = [index for index in stale if self._shorter(index)]
            stale = sorted({reader for index in changed for reader in readers[index]})

    def _shorter(self, index: int) -> bool:
        before, self._cost[index] = self._cost[index], min(self._through(index), self._cost[index])
        return self._cost[index] < before

    def _readers(self) -> list[list[int]]:
        """For each node those whose costs depend on it; and how many each reads."""
        found: list[list[int]] = [[] for _ in self._nodes]
        for index in range(len(self._nodes)):
            reads = self._read(index)
            self._effort[index] += len(reads)
            for read in reads:
                found[read].append(index)
        return found

    def _read(self, index: int) -> list[int]:
        """The nodes whose costs `_through` reads."""
        kind, a, b, _, _ = self._nodes[index]
        if kind == SPLIT:
            return list(self.network.targets(a, b))
        if kind == CALL:
            return [b] if a in self._ends else [self.network.entries[a], b]
        if kind == ENTER:
            return [b, *self._read_inside(a)]
        return [b] if kind == BYTE else [a] if kind == LOOP else []

    def _read_inside(self, start: int) -> list[int]:
        kind, body, _, _, loop = self._nodes[start]
        if kind == LOOP:
            return [body]
        table = self.network.part_table(loop)
        return [node for node in (start, self._nodes[loop][3], table.extra, *table.parts) if node >= 0]

    def _through(self, index: int) -> int:
        kind, a, b, _, _ = self._nodes[index]
        cost = self._cost
        if kind == BYTE:
            return cost[b] + (TOKEN_COST if a in self._marks else BYTE_COST)
        if kind == SPLIT:
            return min((cost[t] for t in self.network.targets(a, b)), default=FAR) + 1
        if kind == CALL:
            called = len(self._ends[a]) * BYTE_COST if a in self._ends else cost[self.network.entries[a]]
            return called + cost[b] + 1
        if kind == ENTER:
            return self._entered(a) + cost[b] + 1
        if kind == COPY:
            return len(self.network.texts[a].shortest) * BYTE_COST
        return self._loop(index, 0) if kind == LOOP else 0

    def _entered(self, start: int) -> int:
        """A loop, or a list in any order, from its start to its end."""
        kind, _, _, _, loop = self._nodes[start]
        if kind == LOOP:
            return self._loop(start, 0)
        return self._cost[start] + self._price(self._remaining(loop, EMPTY_SUBSET, True))

    def _loop(self, loop: int, count: int) -> int:
        _, body, least, _, _ = self._nodes[loop]
        return max(least - count, 0) and min(self._cost[body] * max(least - count, 0), FAR)

    def _remaining(self, pick: int, subset: PartSubset, picking: bool) -> list[int]:
        """Where the cheapest members and separators that end a list start, in order.

        `picking`: a member must come now; otherwise one has just ended.
        """
        table = self.network.part_table(pick)
        parts = [part for part in range(table.required) if not subset.used >> part & 1]
        more = max(table.least - subset.members - len(parts), int(picking and not parts), 0)
        others = [part for part in range(table.required, len(table.parts)) if not subset.used >> part & 1]
        members = [table.parts[part] for part in parts] + self._cheapest(table.extra, others, table.parts, more)
        separator = self._nodes[pick][3]
        starts = [start for member in members for start in (separator, member)]
        return starts[1:] if picking else starts

    def _cheapest(self, extra: int, others: list[int], parts: tuple[int, ...], count: int) -> list[int]:
        """The starts of so many members out of optional parts, each once, and the extra, at will."""
        found = sorted((parts[part] for part in others), key=self._cost.__getitem__) if count else []
        if extra < 0:
            return found[:count]
        cheaper = [start for start in found if self._cost[start] < self._cost[extra]][:count]
        return cheaper + [extra] * (count - len(cheaper))

    def _price(self, starts: list[int]) -> int:
        return min(sum(self._cost[start] for start in starts), FAR)

    def _after_member(self, node: int, subset: PartSubset) -> list[int]:
        """What ends a list once the way from a node within it has come to the end of a member or a separator."""
        kind, pick, part, _, loop = self._nodes[node]
        while kind not in (PICK, SEEN):
            node = self._onward(node)
            kind, pick, part, _, loop = self._nodes[node]
        if kind == PICK:
            return self._remaining(loop, subset, True)
        return self._remaining(loop, self.network.part_table(pick).added(pick, subset, part), False)

    def _onward(self, node: int) -> int:
        """The next node of the same level on a shortest way."""
        kind, a, b, _, _ = self._nodes[node]
        return min(self.network.targets(a, b), key=self._cost.__getitem__) if kind == SPLIT else b

    def _rest(self, core: DistanceCore, thread: Thread) -> int:
        """The cost from a thread to the end of its frame."""
        node, count, _ = thread
        kind, a, _, _, loop = self._nodes[node]
        if kind == LOOP:
            return self._loop(node, count)
        if kind == COPY:
            return len(core.piece_end(a, count)) * BYTE_COST
        if loop < 0:
            return self._cost[node]
        if self._nodes[loop][0] == LOOP:
            return self._cost[node] + self._loop(loop, count + 1)
        return self._cost[node] + self._price(self._after_member(node, core.subset(count)))

    def from_state(self, core: DistanceCore, state: int) -> int:
        """The cost from a state to an end."""
        threads = core.threads(state)
        costs = {0: 0}
        for frame in below(core, threads):
            costs[frame] = min(self._rest(core, t) + costs[t[2]] for t in core.frame(frame))
        return min((self._rest(core, t) + costs[t[2]] for t in threads), default=0)

    def shortest(self, core: DistanceCore, state: int) -> bytes:
        """A shortest text that leads from a state to an end. Raises GrammarLimitError where it takes too many moves."""
        work: list[tuple[int, int]] = []
        for thread in reversed(self._levels(core, core.threads(state))):
            work += self._planned(core, thread)
        found = bytearray()
        for _ in range(MOST_MOVES):
            if not work:
                return bytes(found)
            self._follow(core, work, found)
        raise GrammarLimitError(f"the shortest text that completes the grammar takes more than {MOST_MOVES} moves")

    def _levels(self, core: DistanceCore, threads: list[Thread]) -> list[Thread]:
        """The cheapest of some threads, then the cheapest of those that go on after it, and so on to the bottom."""
        costs = {0: 0}
        for frame in below(core, threads):
            costs[frame] = min(self._rest(core, t) + costs[t[2]] for t in core.frame(frame))
        levels: list[Thread] = []
        while True:
            levels.append(min(threads, key=lambda t: self._rest(core, t) + costs[t[2]]))
            if levels[-1][2] == 0:
                return levels
            threads = core.frame(levels[-1][2])

    def _planned(self, core: DistanceCore, thread: Thread) -> list[tuple[int, int]]:
        """Nodes and counts to follow to the end of the thread's frame, the first one last."""
        node, count, _ = thread
        loop = self._nodes[node][4]
        if loop < 0 or self._nodes[loop][0] == LOOP:
            return [(node, count)]
        return _stacked([node, *self._after_member(node, core.subset(count))])

    def _follow(self, core: DistanceCore, work: list[tuple[int, int]], found: bytearray) -> None:
        """Move the top of an explicit stack one node along a shortest way."""
        node, count = work.pop()
        kind, a, b, _, _ = self._nodes[node]
        if kind == BYTE:
            found.append(_nicest(self.network.class_mask(a)))
            work.append((b, count))
        elif kind == COPY:
            found += core.piece_end(a, count) if count else self.network.texts[a].shortest
        elif kind == SPLIT:
            work.append((self._onward(node), count))
        elif kind == CALL and a in self._ends:
            found += self._ends[a]
            work.append((b, count))
        elif kind == CALL:
            work += [(b, count), (self.network.entries[a], 0)]
        elif kind == ENTER:
            work.append((b, count))
            self._enter(work, a)
        elif kind == LOOP and count < b:
            work.append((a, count))
        elif kind == NEXT:
            work.append((a, count + 1))

    def _enter(self, work: list[tuple[int, int]], start: int) -> None:
        kind, _, _, _, loop = self._nodes[start]
        members = [] if kind == LOOP else self._remaining(loop, EMPTY_SUBSET, True)
        work += _stacked([start, *members])


def below(core: DistanceCore, threads: list[Thread]) -> list[int]:
    """All frames under some threads but the bottom, each after those that it rests on."""
    found: set[int] = set()
    work = [thread[2] for thread in threads]
    while work:
        frame = work.pop()
        if frame and frame not in found:
            found.add(frame)
            work += [thread[2] for thread in core.frame(frame)]
    return sorted(found)


def _stacked(nodes: list[int]) -> list[tuple[int, int]]:
    return [(node, 0) for node in reversed(nodes)]


def _nicest(mask: int) -> int:
    for byte in _PREFERRED:
        if mask >> byte & 1:
            return byte
    return (mask & -mask).bit_length() - 1
