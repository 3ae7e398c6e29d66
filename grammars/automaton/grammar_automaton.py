"""The lazily determinised automaton of one grammar: a core, the network it reads, and what is remembered of both.

A state is a small integer, valid in one automaton. The memos are read without a lock; the core works under one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from sgl.grammars.algebra.byte_marks import BEGIN, ENDS, TOKEN, token_mark
from sgl.grammars.automaton.automaton_core_selection import Core, make_core, stopped
from sgl.grammars.automaton.automaton_work_budget import STEPS_A_SECOND, WorkUnfinished, current, metered
from sgl.grammars.automaton.distinct_items_core import DistinctItemsCore
from sgl.grammars.automaton.distinct_items_states import DistinctItemsHalt
from sgl.grammars.automaton.native_automaton_core import NativeCore
from sgl.grammars.automaton.python_automaton_core import DEAD, NEED, PAUSED, PythonCore
from sgl.grammars.automaton.shortest_completion import ShortestCompletions, below
from sgl.grammars.automaton.state_closure import MAX_HELD
from sgl.grammars.automaton.token_mask_cache import MaskCache
from sgl.grammars.compile_client.remote_transition_network import RemoteNetwork
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.tokens.vocabulary import Vocabulary

MOST_STATES = 200_000
GUESSED = 16  # one in so many states may be made for texts that are only guessed; they come on top of the limit
MOST_FORCED = 1024
CROWD = 8  # one in so many of what may be held is enough for new texts to begin elsewhere
MOST_MOVES = 1_000_000
MOVE_BYTES = 200
LONGEST_WAIT = 0.01  # seconds, for another thread that works on the same automaton, of threads that have other work


class AutomatonLock:
    """An automaton's lock, held while its core works, within what the thread's meter allows."""

    __slots__ = ("_core", "_lock")

    def __init__(self, lock: threading.RLock, core: Core) -> None:
        self._lock, self._core = lock, core

    def __enter__(self) -> None:
        meter = current()
        if meter is None:
            self._lock.acquire()
            return
        if meter.left < 0:
            raise WorkUnfinished
        if not self._lock.acquire(timeout=0 if meter.hasty else LONGEST_WAIT):
            meter.spend(0 if meter.hasty else int(LONGEST_WAIT * STEPS_A_SECOND))
            raise WorkUnfinished
        self._core.allow(meter)

    def __exit__(self, *_: object) -> None:
        meter = current()
        if meter is not None:
            self._core.charge(meter)
        self._lock.release()


class Automaton:
    """`fresh` gives the network of an automaton that follows this one when it is crowded; None: none follows."""

    def __init__(
        self,
        network: TransitionNetwork,
        vocabulary: Vocabulary,
        core: str | None = None,
        limit: int = MOST_STATES,
        fresh: Callable[[], TransitionNetwork] | None = None,
    ) -> None:
        self._fresh = fresh
        self._kind = core
        self._successor: Automaton | None = None
        self.vocabulary = vocabulary
        self.network = network
        self.core: Core = make_core(network, vocabulary, limit + limit // GUESSED, core)
        self.limit = limit
        self.masks = MaskCache(vocabulary, self.core.digest)
        self.lock = threading.RLock()
        self.moves: dict[tuple[int, int], int] = {}
        self.known_forced: dict[int, bytes] = {}
        self._finals: dict[int, bool] = {}
        self.known_ended: dict[int, bool] = {}
        self._distances: ShortestCompletions | None = None
        self.start = self._started()
        begins = self.core.live(self.start) if self.start >= 0 else 0
        if begins == 1 << BEGIN:
            self.core = DistinctItemsCore(self.core, network, vocabulary)
            self.start = self._started()
        self.work = AutomatonLock(self.lock, self.core)
        self.names = bool(begins >> TOKEN & 1)  # whether it speaks of tokens as such
        self.named_ends: frozenset[int] = frozenset()
        if self.names:
            self._begin_naming()

    def _started(self) -> int:
        while (start := self.core.start()) < DEAD:
            self._mend(start)
        return start

    def _begin_naming(self) -> None:
        """Find which of the tokens that end texts are terminals, and pass the mark before the text."""
        ends = {i: bytes((ENDS,)) + token_mark(i)[1:] for i in self.vocabulary.eos_ids}
        with metered(None):
            self.named_ends = frozenset(i for i, data in ends.items() if self.advance(self.start, data) >= 0)
            self.start = self.advance(self.start, bytes((TOKEN,)))

    def move(self, state: int, token: int) -> int:
        """The state after a token's bytes, or after the token as one that the grammar speaks of, or DEAD."""
        found = self.moves.get((state, token))
        return self.new_move(state, token) if found is None else found

    def new_move(self, state: int, token: int) -> int:
        """The same for a move that is not known yet."""
        data = self.vocabulary.text(token)
        found = self.advance(state, data) if data else DEAD
        if self.names:
            found = self._either(found, self.named(state, token))
        if len(self.moves) >= MOST_MOVES:
            self.moves.clear()
        self.moves[state, token] = found
        return found

    def named(self, state: int, token: int) -> int:
        """The state after a token as a terminal of the grammar, or DEAD."""
        known = self.names and 0 <= token < self.vocabulary.size
        return self.advance(state, token_mark(token)) if known else DEAD

    def _either(self, left: int, right: int) -> int:
        """The state of a text that may be in either of two."""
        if DEAD in (left, right):
            return max(left, right)
        with self.work:
            while (found := self.core.either(left, right)) < DEAD:
                self._mend(found)
            return found

    def advance(self, state: int, data: bytes) -> int:
        with self.work:
            while (found := self.core.advance(state, data)) < DEAD:
                self._mend(found)
            return found

    def final(self, state: int) -> bool:
        """Whether the text may end here."""
        found = self._finals.get(state)
        if found is None:
            with self.work:
                found = self._finals[state] = self.core.accepting(state)
        return found

    def ended(self, state: int) -> bool:
        """Whether the text ends here, as no byte may come."""
        found = self.known_ended.get(state)
        if found is None:
            found = self.known_ended[state] = self.final(state) and not self.live(state)
        return found

    def live(self, state: int) -> int:
        """The bytes that may come next, as a set of bits."""
        with self.work:
            while True:
                try:
                    return self.core.live(state)
                except DistinctItemsHalt as halt:
                    self._mend(halt.code)

    def forced(self, state: int) -> bytes:
        """The bytes that must come next, at most `MOST_FORCED`, and none of tokens that the grammar speaks of."""
        found = self.known_forced.get(state)
        if found is None:
            with self.work:
                found, code = self.core.forced(state, MOST_FORCED)
                while code < DEAD:
                    self._mend(code)
                    found, code = self.core.forced(state, MOST_FORCED)
            if self.names:
                found = found.partition(bytes((TOKEN,)))[0]
            self.known_forced[state] = found
        return found

    def mask(self, state: int) -> np.ndarray:
        """The mask row of a state, from the memo or worked out; of the end where the state is DEAD."""
        if state == DEAD:
            return self.masks.end
        with self.work:
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
        """Whether so much is held that new texts should begin with a fresh automaton."""
        return self.network.lost or self.core.size() > self.limit // CROWD or self.core.held() > MAX_HELD // CROWD

    def successor(self) -> Automaton | None:
        """The automaton in which texts go on that find this one crowded; the same for all, as long as it has room.

        None where there is no way to make one.
        """
        if self._fresh is None:
            return None
        meter, found = current(), self._successor
        if found is not None and not found.crowded():
            return found
        return self._next() if meter is None else meter.timed(self._next)

    def _next(self) -> Automaton:
        assert self._fresh is not None
        with self.lock:
            if self._successor is None or self._successor.crowded():
                self._successor = Automaton(self._fresh(), self.vocabulary, self._kind, self.limit, self._fresh)
            return self._successor

    def shortest_end(self, state: int) -> bytes:
        """A shortest text that leads from a state to an end. Raises GrammarLimitError where it is far too long."""
        meter = current()
        return self._shortest_end(state) if meter is None else meter.timed(lambda: self._shortest_end(state))

    def _shortest_end(self, state: int) -> bytes:
        with self.lock:
            if isinstance(self.core, DistinctItemsCore):
                return self._way_out(self.core, state)
            found = b"" if self.core.accepting(state) else self._nearest_end(self.core, state)
        if TOKEN in found:
            raise GrammarLimitError("a shortest end of this text has tokens in it that are no text")
        return found

    def _nearest_end(self, core: PythonCore | NativeCore, state: int) -> bytes:
        if isinstance(self.network, RemoteNetwork):
            return _end_apart(core, self.network, state)
        if self._distances is None or len(self._distances) < len(self.network):
            self._distances = ShortestCompletions(self.network)
        core.extend()
        return self._distances.shortest(core, state)

    def _way_out(self, core: DistinctItemsCore, state: int) -> bytes:
        while True:
            try:
                return core.shortest_end(state)
            except DistinctItemsHalt as halt:
                self._mend(halt.code)

    def _build(self, rule: int) -> None:
        meter = current()
        if meter is None:
            self._lowered(rule)
            return
        self.core.charge(meter)
        try:
            meter.timed(lambda: self._lowered(rule))
        finally:
            self.core.allow(meter)

    def _lowered(self, rule: int) -> None:
        try:
            self.network.build(rule)
        except RecursionError as error:
            name = self.network.rules[rule].name
            raise GrammarLimitError(f"the grammar is nested too deeply in the rule {name!r}") from error
        self.core.extend()

    def _mend(self, code: int) -> None:
        """Build the rule that the core asks for, or say why the core cannot go on."""
        if code == PAUSED:
            raise WorkUnfinished
        if code == NEED:
            self._build(self.core.wanted)
        else:
            raise stopped(code, self.core)


def _end_apart(core: PythonCore | NativeCore, network: RemoteNetwork, state: int) -> bytes:
    """A shortest text to an end, found where the network's rules are."""
    threads = core.threads(state)
    frames = {frame: core.frame(frame) for frame in below(core, threads)}
    picks = [pick for some in (threads, *frames.values()) for pick in network.picks(some)]
    places = [place for some in (threads, *frames.values()) for place in network.places(some)]
    return network.shortest_end(
        threads, frames, {pick: core.subset(pick) for pick in picks}, {at: core.piece_end(*at) for at in places}
    )
