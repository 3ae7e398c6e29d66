"""The lazily determinised automaton of one grammar: a core, the network it reads, and what is remembered of both.

A state is a small integer, valid in one automaton. The memos are read without a lock; the core works under one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import numpy as np

from sgl.grammars import native
from sgl.grammars.distance import Distances
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.mask import MaskMemo
from sgl.grammars.native import NativeCore
from sgl.grammars.network import Network
from sgl.grammars.twin import DEAD, FULL, NEED, PythonCore
from sgl.grammars.vocabulary import Vocabulary

MOST_STATES = 200_000
MOST_FORCED = 1024
MOST_MOVES = 1_000_000

T = TypeVar("T")


@cache
def core_name() -> str:
    """Which core this process uses: "C", or "python" when it is not built or SGL_PURE_PYTHON=1."""
    if os.environ.get("SGL_PURE_PYTHON", "0") not in ("", "0"):
        return "python"
    if native.library() is not None:
        return "C"
    logging.getLogger("sgl.grammars").warning(
        "the C core of sgl.grammars is not built: masks come from the slower Python twin; "
        "install a C compiler and reinstall sgl to get it"
    )
    return "python"


class Automaton:
    def __init__(
        self, network: Network, vocabulary: Vocabulary, core: str | None = None, limit: int = MOST_STATES
    ) -> None:
        make = NativeCore if (core or core_name()) == "C" else PythonCore
        self.vocabulary = vocabulary
        self.network = network
        self.core: PythonCore | NativeCore = make(network, vocabulary, limit)
        self.limit = limit
        self.masks = MaskMemo(vocabulary)
        self.lock = threading.RLock()
        self.moves: dict[tuple[int, int], int] = {}
        self._forced: dict[int, bytes] = {}
        self._finals: dict[int, bool] = {}
        self._distances: Distances | None = None
        self.start = self._run(self.core.start)

    def move(self, state: int, token: int) -> int:
        """The state after a token's bytes, or DEAD; tokens without bytes are dead."""
        key = (state, token)
        found = self.moves.get(key)
        return self._move(key) if found is None else found

    def _move(self, key: tuple[int, int]) -> int:
        state, token = key
        vocabulary = self.vocabulary
        if not 0 <= token < vocabulary.size or token in vocabulary.special_ids:
            return DEAD
        data = vocabulary.tokens[token]
        found = self.advance(state, data) if data else DEAD
        if len(self.moves) >= MOST_MOVES:
            self.moves.clear()
        self.moves[key] = found
        return found

    def advance(self, state: int, data: bytes) -> int:
        return self._run(lambda: self.core.advance(state, data))

    def final(self, state: int) -> bool:
        """Whether the text may end here."""
        found = self._finals.get(state)
        if found is None:
            with self.lock:
                found = self._finals[state] = self.core.accepting(state)
        return found

    def live(self, state: int) -> int:
        """The bytes that may come next, as a set of bits."""
        with self.lock:
            return self.core.live(state)

    def forced(self, state: int) -> bytes:
        found = self._forced.get(state)
        if found is None:
            found = self._run_pair(lambda: self.core.forced(state, MOST_FORCED))[0]
            self._forced[state] = found
        return found

    def mask(self, state: int) -> np.ndarray:
        """The mask row of a state, from the memo or worked out; of the end where the state is DEAD."""
        if state == DEAD:
            return self.masks.end
        with self.lock:
            row = self.masks.get(state)
            if row is None:
                alike = self._run(lambda: self.core.canonical(state))
                row = self.masks.get(alike)
                if row is None:
                    blank = self.masks.blank()
                    self._run(lambda: self.core.mask(alike, blank))
                    row = self.masks.add(alike, blank, self.final(alike))
                self.masks.keep(state, row)
            return row

    def crowded(self) -> bool:
        """Whether so many states were made that new texts should begin with a fresh automaton."""
        return self.core.size() > self.limit // 8

    def shortest_end(self, state: int) -> bytes:
        """A shortest text that leads from a state to an end."""
        with self.lock:
            if self._distances is None:
                self._distances = Distances(self.network)
            self.core.extend()
            return self._distances.shortest(self.core.threads(state), self.core.frame, self.core.accepting(state))

    def _run(self, work: Callable[[], int]) -> int:
        return self._run_pair(lambda: (None, work()))[1]

    def _build(self, rule: int) -> None:
        try:
            self.network.build(rule)
        except RecursionError as error:
            name = self.network.rules[rule].name
            raise GrammarLimitError(f"the grammar is nested too deeply in the rule {name!r}") from error
        self.core.extend()

    def _run_pair(self, work: Callable[[], tuple[T, int]]) -> tuple[T, int]:
        """Do a piece of the core's work, building the rules that it asks for."""
        with self.lock:
            while True:
                found = work()
                if found[1] == NEED:
                    self._build(self.core.wanted)
                elif found[1] == FULL:
                    raise GrammarLimitError(
                        f"the grammar needs more than {self.core.size()} states or too many threads at once; "
                        "simplify it, or bound its repeats"
                    )
                elif found[1] < DEAD:
                    raise MemoryError("no memory for a grammar's automaton")
                else:
                    return found
