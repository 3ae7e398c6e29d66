"""Shortest completions: least number of bytes from every node to the end of its rule or loop item."""

from __future__ import annotations

from collections.abc import Callable

from sgl.grammars.network import BYTE, CALL, ENTER, LOOP, RETURN, SPLIT, Network
from sgl.grammars.twin import Thread

FAR = 1 << 40
_PREFERRED = bytes(range(0x30, 0x3A)) + bytes(range(0x61, 0x7B)) + bytes(range(0x20, 0x7F))


class Distances:
    """Builds every rule of the network, so it is made only when a text must be cut short."""

    def __init__(self, network: Network) -> None:
        self.network = network
        rule = 0
        while rule < len(network.rules):
            network.build(rule)
            rule += 1
        self._nodes = [network.node(i) for i in range(len(network))]
        self._cost = [FAR] * len(self._nodes)
        while self._relax():
            pass

    def _relax(self) -> bool:
        """One sweep from the ends to the starts; whether anything became shorter."""
        changed = False
        for index in range(len(self._nodes)):
            cost = self._through(index)
            if cost < self._cost[index]:
                self._cost[index] = cost
                changed = True
        return changed

    def _through(self, index: int) -> int:
        kind, a, b, _, _ = self._nodes[index]
        cost = self._cost
        if kind == BYTE:
            return cost[b] + 1
        if kind == SPLIT:
            return min((cost[t] for t in self.network.targets(a, b)), default=FAR)
        if kind == CALL:
            return cost[self.network.entries[a]] + cost[b]
        if kind == ENTER:
            return self._loop(a, 0) + cost[b]
        return self._loop(index, 0) if kind == LOOP else 0

    def _loop(self, loop: int, count: int) -> int:
        _, body, least, _, _ = self._nodes[loop]
        return max(least - count, 0) and min(self._cost[body] * max(least - count, 0), FAR)

    def _rest(self, thread: Thread) -> int:
        """Bytes from a thread to the end of its own frame."""
        node, count, _ = thread
        kind, _, _, _, loop = self._nodes[node]
        if kind == LOOP:
            return self._loop(node, count)
        return self._cost[node] + (self._loop(loop, count + 1) if loop >= 0 else 0)

    def _total(self, thread: Thread, frame: Callable[[int], Thread]) -> int:
        cost = 0
        while True:
            cost += self._rest(thread)
            if thread[2] == 0:
                return cost
            thread = frame(thread[2])

    def shortest(self, threads: list[Thread], frame: Callable[[int], Thread], final: bool) -> bytes:
        """A shortest completion of any of the threads."""
        if final or not threads:
            return b""
        costs = [self._total(t, frame) for t in threads]
        best = threads[costs.index(min(costs))]
        found = bytearray()
        stack = [best]
        while stack[-1][2]:
            stack.append(frame(stack[-1][2]))
        stack.reverse()
        while stack:
            self._follow(stack, found)
        return bytes(found)

    def _follow(self, stack: list[Thread], found: bytearray) -> None:
        """Move the top of an explicit stack one node along a shortest way."""
        node, count, _ = stack.pop()
        kind, a, b, _, _ = self._nodes[node]
        if kind == RETURN:
            return
        if kind == BYTE:
            found.append(_nicest(self.network.class_mask(a)))
            stack.append((b, count, 0))
        elif kind == SPLIT:
            stack.append((min(self.network.targets(a, b), key=self._cost.__getitem__), count, 0))
        elif kind == CALL:
            stack += [(b, count, 0), (self.network.entries[a], 0, 0)]
        elif kind == ENTER:
            stack += [(b, count, 0), (a, 0, 0)]
        elif kind == LOOP:
            if count < b:
                stack.append((a, count, 0))
        else:
            stack.append((a, count + 1, 0))


def _nicest(mask: int) -> int:
    for byte in _PREFERRED:
        if mask >> byte & 1:
            return byte
    return (mask & -mask).bit_length() - 1
