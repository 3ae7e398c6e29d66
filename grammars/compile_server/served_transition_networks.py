"""Networks that are held for another process, and how much of each was sent to it."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from sgl.grammars.algebra.unordered_parts import PartSubset
from sgl.grammars.automaton.shortest_completion import ShortestCompletions
from sgl.grammars.compile import GrammarRecipe
from sgl.grammars.compile_client import grammar_compile_messages
from sgl.grammars.errors import GrammarError
from sgl.grammars.network.grammar_disk_cache import set_cache_dir
from sgl.grammars.network.transition_network import UNBUILT, TransitionNetwork
from sgl.grammars.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from array import array

MOST_HELD = 512
AHEAD, MOST_AHEAD, MOST_NODES_AHEAD = (
    2,
    256,
    20_000,
)  # of rules not asked for: one for so many that were; most at a time
MOST_AT_FIRST = 500


class ServedNetwork:
    """Its methods are what the other process asks for, by name. `lock` is held by who works on it."""

    def __init__(self, network: TransitionNetwork) -> None:
        self.network = network
        self.lock = threading.Lock()
        self._distances: ShortestCompletions | None = None
        self._sent = {"nodes": 0, "edges": 0, "classes": 0}  # items of each table
        self._texts = 0
        self._asked = 0

    def grown(self) -> grammar_compile_messages.NetworkGrown:
        """What was not sent yet."""
        nodes, edges, classes = (self._tail(table) for table in self._sent)
        texts = [pieces.key for pieces in self.network.texts[self._texts :]]
        self._texts += len(texts)
        return grammar_compile_messages.NetworkGrown(nodes, edges, classes, self.network.entries.tobytes(), texts)

    def _tail(self, table: str) -> bytes:
        items: array[int] | bytearray = getattr(self.network, table)
        known, self._sent[table] = self._sent[table], len(items)
        return memoryview(items)[known:].tobytes()

    def made(self) -> grammar_compile_messages.NetworkGrown:
        """The first of it: all of an ordinary grammar, whose texts then never wait."""
        self._ahead(0, MOST_AT_FIRST, False)
        return self.grown()

    def build(self, rule: int) -> grammar_compile_messages.NetworkGrown:
        """A rule, and some of those that it leads to: the more, the more were asked for."""
        first = len(self.network.rules)
        self.network.build(rule)
        self._asked += 1
        self._ahead(first, min(self._asked // AHEAD, MOST_AHEAD), True)
        return self.grown()

    def _ahead(self, first: int, count: int, those_with_ends: bool) -> None:
        """Build so many rules from a number on.

        Rules that know their ends are far too many to be built unasked.
        """
        network, most = self.network, len(self.network) + MOST_NODES_AHEAD
        for rule in itertools.takewhile(lambda rule: rule < len(network.rules), itertools.count(first)):
            if not count or len(network) > most:
                return
            if network.entries[rule] == UNBUILT and (those_with_ends or network.rules[rule].end is None):
                try:
                    network.build(rule)
                except (GrammarError, RecursionError):
                    return  # the request for it gets the error
                count -= 1

    def finish(self, most: int) -> tuple[grammar_compile_messages.NetworkGrown, dict[int, bytes]]:
        """Build every rule but those that know their end, as far as there are not too many nodes."""
        ends = self.network.finish(most)
        return self.grown(), ends

    def shortest_end(self, *state: Any) -> bytes:
        """A shortest text to an end from a state, which is given by its threads. state: see `RemoteCoreState`."""
        if self._distances is None or len(self._distances) < len(self.network):
            self._distances = ShortestCompletions(self.network)
        return self._distances.shortest(RemoteCoreState(*state), 0)

    def name(self, rule: int) -> str:
        return self.network.rules[rule].name


class RemoteCoreState(NamedTuple):
    """A state of the other process's core, as far as it was sent; whatever number it is asked by."""

    sent: list[grammar_compile_messages.Thread]
    frames: dict[int, list[grammar_compile_messages.Thread]]
    subsets: dict[int, PartSubset]
    pieces: dict[tuple[int, int], bytes]

    def threads(self, state: int) -> list[grammar_compile_messages.Thread]:
        del state
        return self.sent

    def frame(self, index: int) -> list[grammar_compile_messages.Thread]:
        return self.frames[index]

    def subset(self, index: int) -> PartSubset:
        return self.subsets[index]

    def piece_end(self, text: int, place: int) -> bytes:
        return self.pieces[text, place]


class ServedNetworks:
    """All of them; those that were used least recently make room."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[int, ServedNetwork] = OrderedDict()
        self._vocabularies = {grammar_compile_messages.NO_VOCABULARY: Vocabulary((), ()).bare}
        self._folder: str | None = None

    def learn(self, words: grammar_compile_messages.VocabularyMessage) -> None:
        self._vocabularies[words.vocabulary] = Vocabulary(words.tokens, words.eos_ids, words.special_ids).bare

    def make(self, request: grammar_compile_messages.MakeNetwork) -> ServedNetwork:
        self._look_in(request.folder)
        grammar = GrammarRecipe(request.kind, request.source, request.shown).compile(
            self._vocabularies[request.vocabulary]
        )
        held = ServedNetwork(grammar.network())
        with self._lock:
            self._held[request.network] = held
            if len(self._held) > MOST_HELD:
                self._held.popitem(last=False)
        return held

    def _look_in(self, folder: str | None) -> None:
        with self._lock:
            if folder != self._folder:
                set_cache_dir(folder)
                self._folder = folder

    def get(self, network: int) -> ServedNetwork:
        """Raises NetworkLost where it is not held any more."""
        with self._lock:
            if network not in self._held:
                raise grammar_compile_messages.NetworkLost
            self._held.move_to_end(network)
            return self._held[network]

    def forget(self, networks: list[int]) -> None:
        with self._lock:
            for network in networks:
                self._held.pop(network, None)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            for vocabulary in self._vocabularies.values():
                vocabulary.compiled.clear()
