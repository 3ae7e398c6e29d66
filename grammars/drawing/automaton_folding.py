"""From states to pictures: all states where they are few, else one picture a rule, with calls as single arrows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.automaton.distinct_items_core import DistinctItemsCore
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.drawing.automaton_exploration import moves
from sgl.grammars.drawing.charset_labels import describe, spell
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


@dataclass
class AutomatonPicture:
    """Boxes (whether the text may end there), the first one where it begins, and labelled arrows between them.

    `cut` tells that some are left out; arrows in `called` stand for whole rules.
    """

    title: str = ""
    boxes: list[bool] = field(default_factory=list)
    arrows: dict[tuple[int, int], str] = field(default_factory=dict)
    called: set[tuple[int, int]] = field(default_factory=set)
    cut: bool = False


@dataclass
class _Found:
    """What was explored: states in the order of their finding."""

    finals: list[bool]
    edges: dict[tuple[int, int], CharSet]
    calls: dict[tuple[int, int], list[int]]
    cut: bool


def pictures(automaton: Automaton, most: int) -> list[AutomatonPicture]:
    """One picture of the whole automaton if it has at most so many boxes; else one of each rule, the root first."""
    if isinstance(automaton.core, DistinctItemsCore):  # it has a state for everything that may be written
        return list(_by_rules(automaton, most))
    whole = _explore(automaton, most * 4)
    if not whole.cut:
        picture = _picture(automaton, whole, "")
        if len(picture.boxes) <= most:
            return [picture]
    return list(_by_rules(automaton, most))


def _by_rules(automaton: Automaton, most: int) -> Iterator[AutomatonPicture]:
    rules, room = [0], most * 3
    for rule in rules:
        found = _explore(RuleAutomaton(automaton.network, rule), most * 12)
        picture = _first(_picture(automaton, found, automaton.network.rules[rule].name), most)
        room -= len(picture.boxes)
        if room < 0:
            return
        yield picture
        rules += dict.fromkeys(r for called in found.calls.values() for r in called if r not in rules)


def _explore(automaton: Automaton | RuleAutomaton, most: int) -> _Found:
    numbers, order = {automaton.start: 0}, [automaton.start]
    found = _Found([], {}, defaultdict(list), False)
    for state in order:
        found.finals.append(automaton.final(state))
        if len(order) > most:
            found.cut = True
            continue
        called = automaton.calls(state) if isinstance(automaton, RuleAutomaton) else {}
        reached = moves(automaton, state)
        for target in [*reached, *called.values()]:
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
        found.edges.update(((numbers[state], numbers[t]), chars) for t, chars in reached.items())
        for rule, target in called.items():
            found.calls[numbers[state], numbers[target]].append(rule)
    return found


def _picture(automaton: Automaton, found: _Found, title: str) -> AutomatonPicture:
    """Boxes with one way in and one out by single characters vanish into a longer arrow."""
    runs = _Runs(found)
    kept = [box for box in range(len(found.finals)) if box not in runs.through]
    numbers = {box: i for i, box in enumerate(kept)}
    picture = AutomatonPicture(title, [found.finals[box] for box in kept], cut=found.cut)
    for (source, target), chars in found.edges.items():
        if source in numbers:
            label, end = runs.follow(source, target, chars)
            _add(picture, (numbers[source], numbers[end]), label)
    for (source, target), rules in found.calls.items():
        arrow = numbers[source], numbers[target]
        picture.called.add(arrow)
        for rule in rules:
            _add(picture, arrow, f"‹{automaton.network.rules[rule].name}›")
    return picture


def _add(picture: AutomatonPicture, arrow: tuple[int, int], label: str) -> None:
    picture.arrows[arrow] = f"{picture.arrows[arrow]}  {label}" if arrow in picture.arrows else label


class _Runs:
    """Chains of boxes that one text leads through."""

    def __init__(self, found: _Found) -> None:
        inward, self._outward = defaultdict(set), defaultdict(set)
        for source, target in [*found.edges, *found.calls]:
            inward[target].add(source)
            self._outward[source].add(target)
        self._single = {
            edge: chars[0][0]
            for edge, chars in found.edges.items()
            if charset.size(chars) == 1 and edge not in found.calls
        }
        boxes = range(1, len(found.finals))
        self.through = {b for b in boxes if not found.finals[b] and self._inner(b, inward[b], self._outward[b])}

    def _inner(self, box: int, before: set[int], after: set[int]) -> bool:
        if len(before) != 1 or len(after) != 1 or box in after:
            return False
        return (next(iter(before)), box) in self._single and (box, next(iter(after))) in self._single

    def follow(self, source: int, target: int, chars: CharSet) -> tuple[str, int]:
        """The text along a run, and where it ends."""
        if target not in self.through:
            return describe(chars), target
        text = [self._single[source, target]]
        while target in self.through:
            after = next(iter(self._outward[target]))
            text.append(self._single[target, after])
            target = after
        return "".join(map(spell, text)), target


def _first(picture: AutomatonPicture, most: int) -> AutomatonPicture:
    """The boxes nearest to the start, which have the lowest numbers."""
    if len(picture.boxes) <= most:
        return picture
    kept = {arrow: label for arrow, label in picture.arrows.items() if max(arrow) < most}
    return AutomatonPicture(picture.title, picture.boxes[:most], kept, picture.called, cut=True)
