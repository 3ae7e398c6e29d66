"""Networks that are held for another process, and how much of each it was told."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from sgl.grammars.algebra.parts import Subset
from sgl.grammars.apart import wire
from sgl.grammars.automaton.distance import Distances
from sgl.grammars.compile import Recipe
from sgl.grammars.errors import GrammarError
from sgl.grammars.network.disk_cache import set_cache_dir
from sgl.grammars.network.network import UNBUILT, Network
from sgl.grammars.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from array import array

MOST_HELD = 512
AHEAD, MOST_AHEAD, MOST_NODES_AHEAD = 2, 256, 20_000  # of rules not asked for: one for so many that were; most at a time
MOST_AT_FIRST = 500


class Held:
    """`lock` is held by who works on it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.lock = threading.Lock()
        self._distances: Distances | None = None
        self._told = {"nodes": 0, "edges": 0, "classes": 0}  # items of each table
        self._asked = 0

    def grown(self) -> wire.Grown:
        """What it was not told yet."""
        nodes, edges, classes = (self._tail(table) for table in self._told)
        return wire.Grown(nodes, edges, classes, self.network.entries.tobytes())

    def _tail(self, table: str) -> bytes:
        items: array[int] | bytearray = getattr(self.network, table)
        known, self._told[table] = self._told[table], len(items)
        return memoryview(items)[known:].tobytes()

    def made(self) -> wire.Grown:
        """The first of it: all of an ordinary grammar, whose texts then wait for nobody."""
        self._ahead(0, MOST_AT_FIRST, False)
        return self.grown()

    def build(self, rule: int) -> wire.Grown:
        """A rule, and some of those that it leads to: the more, the more were asked for."""
        first = len(self.network.rules)
        self.network.build(rule)
        self._asked += 1
        self._ahead(first, min(self._asked // AHEAD, MOST_AHEAD), True)
        return self.grown()

    def _ahead(self, first: int, count: int, those_with_ends: bool) -> None:
        """Build so many rules from a number on. Those that know their ends are far too many where nobody asks for them."""
        network, most = self.network, len(self.network) + MOST_NODES_AHEAD
        for rule in itertools.takewhile(lambda rule: rule < len(network.rules), itertools.count(first)):
            if not count or len(network) > most:
                return
            if network.entries[rule] == UNBUILT and (those_with_ends or network.rules[rule].end is None):
                try:
                    network.build(rule)
                except (GrammarError, RecursionError):
                    return  # whoever asks for it is told
                count -= 1

    def finish(self, most: int) -> wire.Finished:
        ends = self.network.finish(most)
        return wire.Finished(self.grown(), ends)

    def shortest_end(self, seen: wire.End) -> bytes:
        if self._distances is None or len(self._distances) < len(self.network):
            self._distances = Distances(self.network)
        return self._distances.shortest(Seen(seen), 0)

    def name(self, rule: int) -> str:
        return self.network.rules[rule].name


class Seen:
    """A state of the other process's core, as far as it was sent; whatever number it is asked by."""

    def __init__(self, seen: wire.End) -> None:
        self._seen = seen

    def threads(self, state: int) -> list[wire.Thread]:
        del state
        return self._seen.threads

    def frame(self, index: int) -> list[wire.Thread]:
        return self._seen.frames[index]

    def subset(self, index: int) -> Subset:
        return self._seen.subsets[index]


class Shelf:
    """All of them; those that were used least recently make room."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._vocabularies = {wire.NOBODY: Vocabulary((), ()).bare}
        self._folder: str | None = None

    def learn(self, words: wire.Words) -> None:
        self._vocabularies[words.vocabulary] = Vocabulary(words.tokens, words.eos_ids, words.special_ids).bare

    def make(self, asked: wire.Make) -> Held:
        self._look_in(asked.folder)
        grammar = Recipe(asked.kind, asked.source, asked.shown).compile(self._vocabularies[asked.vocabulary])
        held = Held(grammar.network())
        with self._lock:
            self._held[asked.network] = held
            if len(self._held) > MOST_HELD:
                self._held.popitem(last=False)
        return held

    def _look_in(self, folder: str | None) -> None:
        with self._lock:
            if folder != self._folder:
                set_cache_dir(folder)
                self._folder = folder

    def get(self, network: int) -> Held | None:
        with self._lock:
            if network in self._held:
                self._held.move_to_end(network)
            return self._held.get(network)

    def forget(self, networks: list[int]) -> None:
        with self._lock:
            for network in networks:
                self._held.pop(network, None)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            for vocabulary in self._vocabularies.values():
                vocabulary.compiled.clear()
