"""A network whose rules are lowered in another process, when they are first needed."""

from __future__ import annotations

import itertools
import weakref
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, overload

from sgl.grammars.algebra.expr import NEVER, GrammarRule
from sgl.grammars.algebra.unordered_parts import PartSubset
from sgl.grammars.compile_client import grammar_compile_messages
from sgl.grammars.compile_client.grammar_compile_client import CompileProcessDied, RunningCompileProcess
from sgl.grammars.copied.text_pieces import text_pieces
from sgl.grammars.errors import AutomatonFullError
from sgl.grammars.network.transition_network import COPY, FIELDS, LOOP, UNBUILT, TransitionNetwork

_numbers = itertools.count(1)  # of all networks, whatever process holds them


class RemoteNetwork(TransitionNetwork):
    """Its tables grow by what the other process tells. Where that process does not hold it any more, it is `lost`.

    What was built stays; who needs more goes on in a fresh network (`AutomatonFullError`).
    """

    def __init__(
        self,
        process: RunningCompileProcess,
        kind: str,
        source: Any,
        shown: frozenset[int],
        vocabulary: int,
        folder: str | None,
    ) -> None:
        """Raises what compiling raises, Unsent for a source that cannot be sent, and Died."""
        super().__init__(NEVER, native=False)
        self.entries, self.number = array("i"), next(_numbers)
        self.lost = False
        self._process = process
        grown = process.ask(grammar_compile_messages.MakeNetwork(self.number, kind, source, shown, vocabulary, folder))
        weakref.finalize(self, process.dropped.append, self.number)
        self.rules = _Rules(self)  # type: ignore[assignment]
        self._grow(grown)

    def build(self, rule: int) -> None:
        if self.entries[rule] == UNBUILT:
            self._grow(self._ask("build", rule))

    def finish(self, most: int) -> dict[int, bytes]:
        grown, ends = self._ask("finish", most)
        self._grow(grown)
        return dict(ends)

    def shortest_end(
        self,
        threads: list[grammar_compile_messages.Thread],
        frames: dict[int, list[grammar_compile_messages.Thread]],
        subsets: dict[int, PartSubset],
        pieces: dict[tuple[int, int], bytes],
    ) -> bytes:
        """A shortest text from a state to an end. Raises GrammarLimitError where it takes too much.

        pieces: the ends of pieces, by the number of their text and the place in it.
        """
        return bytes(self._ask("shortest_end", threads, frames, subsets, pieces))

    def picks(self, threads: Iterable[grammar_compile_messages.Thread]) -> list[int]:
        """The subsets in which some threads are, of lists in any order."""
        return [count for node, count, _ in threads if self._picking(node)]

    def places(self, threads: Iterable[grammar_compile_messages.Thread]) -> list[tuple[int, int]]:
        """The texts of which some threads are in pieces, with the places in them."""
        rows = [(self.node(node), count) for node, count, _ in threads]
        return [(row[1], count) for row, count in rows if row[0] == COPY]

    def _picking(self, node: int) -> bool:
        kind, _, _, _, loop = self.node(node)
        return kind != LOOP and loop >= 0 and self.nodes[loop * FIELDS] != LOOP

    def name(self, rule: int) -> str:
        return str(self._ask("name", rule))

    def _ask(self, method: str, *arguments: Any) -> Any:
        why = "the grammar was put away to make room for others; ask again"
        try:
            if not self._process.lost:
                return self._process.ask(grammar_compile_messages.AskNetwork(self.number, method, arguments))
        except grammar_compile_messages.NetworkLost:
            pass
        except CompileProcessDied as error:
            why = str(error)
        self.lost = True
        raise AutomatonFullError(why)

    def _grow(self, grown: grammar_compile_messages.NetworkGrown) -> None:
        self.nodes.frombytes(grown.nodes)
        self.edges.frombytes(grown.edges)
        self.classes += grown.classes
        self.entries = array("i", grown.entries)
        self.texts += [text_pieces(*key) for key in grown.texts]


class _Rules(Sequence[GrammarRule]):
    """Of these the other process knows all; here there are only their names, if they are asked for."""

    def __init__(self, network: RemoteNetwork) -> None:
        self._network = weakref.proxy(network)

    def __len__(self) -> int:
        return len(self._network.entries)

    @overload
    def __getitem__(self, index: int) -> GrammarRule: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GrammarRule]: ...
    def __getitem__(self, index: int | slice) -> GrammarRule | Sequence[GrammarRule]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return GrammarRule(self._network.name(range(len(self))[index]), lambda: NEVER)
