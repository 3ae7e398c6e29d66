"""The lazily determinised automaton of one grammar: a core, the network it reads, and what is remembered of both.

A state is a small integer, valid in one automaton. The memos are read without a lock; the core works under one.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import cache

import numpy as np

from sgl.grammars.automaton import native
from sgl.grammars.automaton.distance import Distances
from sgl.grammars.automaton.mask import MaskMemo
from sgl.grammars.automaton.native import NativeCore
from sgl.grammars.automaton.twin import DEAD, FULL, NEED, PythonCore
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.network.network import Network
from sgl.grammars.tokens.vocabulary import Vocabulary

MOST_STATES = 200_000
GUESSED = 16  # one in so many states may be made for texts that are only guessed; they come on top of the limit
MOST_FORCED = 1024
MOST_MOVES = 1_000_000
MOVE_BYTES = 200


@cache
def core_name() -> str:
    """Return the core that this process uses: "C", or "python" if that is not built or SGL_PURE_PYTHON=1."""
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
        self.core: PythonCore | NativeCore = make(network, vocabulary, limit + limit // GUESSED)
        self.limit = limit
        self.masks = MaskMemo(vocabulary, self.core.digest)
        self.lock = threading.RLock()
        self.moves: dict[tuple[int, int], int] = {}
        self._forced: dict[int, bytes] = {}
        self._finals: dict[int, bool] = {}
        self._distances: Distances | None = None
        while (start := self.core.start()) < DEAD:
            self._mend(start)
        self.start = start

    def move(self, state: int, token: int) -> int:
        """The state after a token's bytes, or DEAD; tokens without bytes are dead."""
        found = self.moves.get((state, token))
        return self.new_move(state, token) if found is None else found

    def new_move(self, state: int, token: int) -> int:
        """The same for a move that is not known yet."""
        vocabulary = self.vocabulary
        if not 0 <= token < vocabulary.size or token in vocabulary.special_ids:
            return DEAD
        data = vocabulary.tokens[token]
        found = self.advance(state, data) if data else DEAD
        if len(self.moves) >= MOST_MOVES:
            self.moves.clear()
        self.moves[state, token] = found
        return found

    def advance(self, state: int, data: bytes) -> int:
        with self.lock:
            while (found := self.core.advance(state, data)) < DEAD:
                self._mend(found)
            return found

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
            with self.lock:
                found, code = self.core.forced(state, MOST_FORCED)
                while code < DEAD:
                    self._mend(code)
                    found, code = self.core.forced(state, MOST_FORCED)
            self._forced[state] = found
        return found

    def mask(self, state: int) -> np.ndarray:
        """The mask row of a state, from the memo or worked out; of the end where the state is DEAD."""
        if state == DEAD:
            return self.masks.end
        with self.lock:
            row = self.masks.get(state)
            return self._made(state) if row is None else row

    def alike(self, state: int) -> int:
        """The state that stands for all that no token can tell from this one; the caller holds the lock."""
        while (found := self.core.canonical(state)) < DEAD:
            self._mend(found)
        return found

    def _made(self, state: int) -> np.ndarray:
        alike, masks = self.alike(state), self.masks
        row = masks.get(alike)
        if row is None:
            while (digest := self.core.mask(alike, masks.scratch)) < 0:
                self._mend(digest)
            row = masks.add(alike, masks.scratch, digest)
        masks.keep(state, row)
        return row

    def memory(self) -> int:
        """Bytes held by the core, the masks and the moves (these estimated)."""
        return self.core.memory() + self.network.memory() + self.masks.memory + len(self.moves) * MOVE_BYTES

    def crowded(self) -> bool:
        """Whether so many states were made that new texts should begin with a fresh automaton."""
        return self.core.size() > self.limit // 8

    def shortest_end(self, state: int) -> bytes:
        """A shortest text that leads from a state to an end. Raises GrammarLimitError where it is far too long."""
        with self.lock:
            if self._distances is None:
                self._distances = Distances(self.network)
            self.core.extend()
            return b"" if self.core.accepting(state) else self._distances.shortest(self.core, state)

    def _build(self, rule: int) -> None:
        try:
            self.network.build(rule)
        except RecursionError as error:
            name = self.network.rules[rule].name
            raise GrammarLimitError(f"the grammar is nested too deeply in the rule {name!r}") from error
        self.core.extend()

    def _mend(self, code: int) -> None:
        """Build the rule that the core asks for, or say why the core cannot go on."""
        if code == NEED:
            self._build(self.core.wanted)
        elif code == FULL:
            raise GrammarLimitError(
                f"the grammar needs more than {self.core.size()} states or too many threads at once; "
                "simplify it, bound its repeats, and let no rule call itself before it reads a byte"
            )
        else:
            raise MemoryError("out of memory for a grammar's automaton")
