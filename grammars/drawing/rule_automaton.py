"""One rule of a network as a separate automaton: counts are left out, and a called rule is one step."""

from __future__ import annotations

from collections import defaultdict

from sgl.grammars.network.transition_network import (
    BYTE,
    CALL,
    ENTER,
    LOOP,
    NEXT,
    PICK,
    RETURN,
    SEEN,
    SPLIT,
    TransitionNetwork,
)

DEAD = -1


class RuleAutomaton:
    """States are sets of nodes; the interface is what `moves` needs of an automaton."""

    def __init__(self, network: TransitionNetwork, rule: int) -> None:
        network.build(rule)
        self._network = network
        self._leave: dict[int, set[int]] = defaultdict(set)
        self._states: list[frozenset[int]] = []
        self._numbers: dict[frozenset[int], int] = {}
        self.start = self._closure([network.entries[rule]])

    def live(self, state: int) -> int:
        found = 0
        for node in self._states[state]:
            kind, a, _, _, _ = self._network.node(node)
            if kind == BYTE:
                found |= self._network.class_mask(a)
        return found

    def advance(self, state: int, data: bytes) -> int:
        for byte in data:
            rows = [self._network.node(node) for node in self._states[state]]
            seeds = [b for kind, a, b, _, _ in rows if kind == BYTE and self._network.class_mask(a) >> byte & 1]
            if not seeds:
                return DEAD
            state = self._closure(seeds)
        return state

    def final(self, state: int) -> bool:
        """Whether the rule may end here."""
        return any(self._network.node(node)[0] == RETURN for node in self._states[state])

    def calls(self, state: int) -> dict[int, int]:
        """Rules that may be called, and where one goes on afterwards."""
        after: dict[int, list[int]] = defaultdict(list)
        for node in self._states[state]:
            kind, a, b, _, _ = self._network.node(node)
            if kind == CALL:
                after[a].append(b)
        return {rule: self._closure(seeds) for rule, seeds in after.items()}

    def _closure(self, seeds: list[int]) -> int:
        seen, work = set(seeds), list(seeds)
        while work:
            fresh = [node for node in self._silent(work.pop()) if node not in seen]
            seen.update(fresh)
            work += fresh
        kept = frozenset(node for node in seen if self._network.node(node)[0] in (BYTE, CALL, RETURN))
        if kept not in self._numbers:
            self._numbers[kept] = len(self._states)
            self._states.append(kept)
        return self._numbers[kept]

    def _silent(self, node: int) -> list[int]:
        """Where a node leads without reading anything."""
        network = self._network
        kind, a, b, _, _ = network.node(node)
        if kind == SPLIT:
            return list(network.targets(a, b))
        if kind == ENTER:
            self._leave[network.node(a)[4] if network.node(a)[4] >= 0 else a].add(b)
            return [a]
        if kind == LOOP:
            return [a, *self._leave[node]]
        if kind == NEXT:
            return [a]
        if kind == PICK:
            table = network.part_table(node)
            return [*table.parts, *([table.extra] if table.extra >= 0 else [])]
        if kind == SEEN:
            return [network.node(a)[3], *self._leave[a]]
        return []
