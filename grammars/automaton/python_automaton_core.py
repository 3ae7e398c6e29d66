"""The automaton's core in plain Python: the oracle of the C core and its fallback.

Both determinise the network lazily. A state is an interned, sorted tuple of threads (`closure.py`), all of them at
BYTE nodes, and whether the text may end. Results below zero are DEAD, NEED (a rule must be built first: `wanted`),
FULL (too much work in one closure), CROWDED (too many states and frames are held; a fresh core has room) and PAUSED (as
much work was done as is allowed now).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from sgl.grammars.algebra.unordered_parts import PartSubset
from sgl.grammars.automaton.automaton_work_budget import UNLIMITED, WorkBudget
from sgl.grammars.automaton.python_mask_maker import DEAD, PythonMaskMaker
from sgl.grammars.automaton.state_closure import (
    BELOW,
    BETWEEN,
    CROWDED,
    MAX_HELD,
    NEED,
    PAUSED,
    ClosureStopped,
    InternTables,
    StateClosure,
    Thread,
)
from sgl.grammars.network.transition_network import COPY, PICK, UNBUILT, TransitionNetwork
from sgl.grammars.tokens.vocabulary import Vocabulary

_DIGEST = (1 << 62) - 1
VISIT_WORK = 8
_THREAD_BYTES, _MOVE_BYTES, _ENTRY_BYTES = 100, 100, 500


class PythonCore:
    def __init__(self, network: TransitionNetwork, vocabulary: Vocabulary, limit: int) -> None:
        self.network = network
        self.vocabulary = vocabulary
        self.limit = limit
        self.wanted = 0
        self.registers = InternTables(network)
        self._held = 0
        self._canonical_frames: list[int] = [0]
        self.states: list[tuple[tuple[Thread, ...], bool]] = []
        self._state_ids: dict[tuple[tuple[Thread, ...], bool], int] = {}
        self._rows: list[dict[int, int]] = []
        self._masks = PythonMaskMaker(self)
        self._spare = UNLIMITED

    def allow(self, meter: WorkBudget) -> None:
        """Work as long as the meter says, and then stop with PAUSED; until `charge`."""
        self._spare = meter.left

    def charge(self, meter: WorkBudget) -> None:
        """Charge the work done to the meter, and work without it."""
        meter.spend(meter.left - self._spare)
        self._spare = UNLIMITED

    def extend(self) -> None:
        """Take over what the network has gained; this core reads it in place."""

    def size(self) -> int:
        return len(self.states)

    def memory(self) -> int:
        """Bytes held, estimated, the vocabulary not counted."""
        moves = sum(map(len, self._rows))
        kept = len(self.states) + len(self.registers.frames) + len(self.registers.subsets)
        return _THREAD_BYTES * (self._held + self.registers.held) + _MOVE_BYTES * moves + _ENTRY_BYTES * kept

    def held(self) -> int:
        """Threads in states and frames, which MAX_HELD bounds."""
        return self._held + self.registers.held

    def start(self) -> int:
        entry = self.network.entries[0]
        if entry == UNBUILT:
            self.wanted = 0
            return NEED
        return self.closure([(entry, 0, 0)])

    def step(self, state: int, byte: int) -> int:
        row = self._rows[state]
        found = row.get(byte)
        if found is None:
            found = self.closure(self._moved(state, byte))
            if found >= DEAD:
                row[byte] = found
        return found

    def advance(self, state: int, data: bytes) -> int:
        for byte in data:
            if state < 0:
                break
            state = self.step(state, byte)
        return state

    def accepting(self, state: int) -> bool:
        return self.states[state][1]

    def live(self, state: int) -> int:
        """The bytes that may come next, as a set of bits."""
        found = 0
        for node, count, _ in self.states[state][0]:
            kind, a, _, _, _ = self.network.node(node)
            found |= self.network.texts[a].python.live(count) if kind == COPY else self.network.class_mask(a)
        return found

    def takes_plain(self, state: int) -> bool:
        """Whether any amount of plain text may come here, as the network promises."""
        return any(self.network.node(node)[3] == 1 for node, _, _ in self.states[state][0])

    def threads(self, state: int) -> list[Thread]:
        return list(self.states[state][0])

    def frame(self, index: int) -> list[Thread]:
        """The threads that go on when a frame is popped; of frame 0 the one at node -1, the end of the text."""
        return list(self.registers.frames[index])

    def subset(self, index: int) -> PartSubset:
        return self.registers.subsets[index]

    def piece_end(self, text: int, place: int) -> bytes:
        """The bytes of a shortest way from a place in a piece of a text of the network to the end of a piece."""
        return self.network.texts[text].python.end(place)

    def mask(self, state: int, out: np.ndarray) -> int:
        """Fill a uint32 row: the tokens that keep the text viable, the end where it may end.

        Its digest, from 0, or NEED, FULL or CROWDED.
        """
        out[:] = 0
        alike = self.canonical(state)
        if alike < 0:
            return alike
        try:
            self._masks.fill(alike, out)
            self._masks.name(alike, out)
        except ClosureStopped as stop:
            self.wanted = stop.rule
            return stop.code
        if self.accepting(alike):
            out |= self.vocabulary.eos_row
        return self.digest(out)

    def digest(self, row: np.ndarray) -> int:
        """A number from 0 that equal rows share."""
        return hash(row.tobytes()) & _DIGEST

    def rows(self, states: np.ndarray, out: np.ndarray) -> int:
        """The 256 targets of each of some states (int32 [n]) in int32 [n, 256]; 0, or the code that stopped it."""
        for i, state in enumerate(states.tolist()):
            for byte in range(256):
                target = self.step(state, byte)
                if target < DEAD:
                    return target
                out[i, byte] = target
        return 0

    def forced(self, state: int, most: int) -> tuple[bytes, int]:
        """The bytes that must come next, at most `most`, and the code of the last step."""
        found = bytearray()
        while len(found) < most and not self.accepting(state):
            live = self.live(state)
            if live.bit_count() != 1:
                break
            state = self.step(state, live.bit_length() - 1)
            if state < 0:
                return bytes(found), state
            found.append(live.bit_length() - 1)
        return bytes(found), state

    def canonical(self, state: int) -> int:
        """The state in which counts that no token can bring to their bounds have lost their value."""
        threads, final = self.states[state]
        moved = {
            (node, self._canonical_count(self.network.node(node)[4], count), self._canonical_frame(frame))
            for node, count, frame in threads
        }
        return self.intern(moved, final)

    def _moved(self, state: int, byte: int) -> list[Thread]:
        found: list[Thread] = []
        for node, count, frame in self.states[state][0]:
            kind, a, after, _, _ = self.network.node(node)
            if kind == COPY:
                place = self.network.texts[a].python.step(count, byte)
                found += [(node, place, frame)] if place >= 0 else []
            elif self.network.class_mask(a) >> byte & 1:
                found.append((after, count, frame))
        return found

    def closure(self, seeds: list[Thread]) -> int:
        """The state that the seeds reach without reading a byte."""
        if self._spare < 0:
            return PAUSED
        closure = StateClosure(self.network, self.registers)
        try:
            threads, final = closure.run(seeds)
        except ClosureStopped as stop:
            self.wanted = stop.rule
            return stop.code
        finally:
            self._spare -= VISIT_WORK * (closure.visits + 1)
        return self.intern(threads, final)

    def intern(self, threads: Iterable[Thread], final: bool) -> int:
        key = self.registers.thread_set(threads), final
        if key == ((), False):
            return DEAD
        found = self._state_ids.get(key)
        if found is None:
            if len(self.states) >= self.limit or self.held() >= MAX_HELD:
                return CROWDED
            found = self._state_ids[key] = len(self.states)
            self.states.append(key)
            self._held += len(key[0])
            self._rows.append({})
        return found

    def either(self, left: int, right: int) -> int:
        """The state of what two of them allow."""
        (threads, final), (others, ends) = self.states[left], self.states[right]
        return self.intern((*threads, *others), final or ends)

    def _canonical_count(self, loop: int, count: int) -> int:
        if loop < 0 or count < 0 or self.network.node(loop)[0] == PICK:
            return count
        least, most = self.network.node(loop)[2:4]
        if most < 0 and count >= least:
            return count
        reach = self.vocabulary.reach
        if count < least:
            return BELOW if least - count > reach else count
        return BETWEEN if most - count > reach else count

    def _canonical_frame(self, frame: int) -> int:
        """Frames rest on frames of lower numbers, so they are worked out in order."""
        known = self._canonical_frames
        while len(known) <= frame:
            threads = self.registers.frames[len(known)]
            known.append(self.registers.frame_id(self._canonical_threads(threads, known)))
        return known[frame]

    def _canonical_threads(self, threads: Iterable[Thread], frames: list[int]) -> Iterator[Thread]:
        for node, count, frame in threads:
            yield node, self._canonical_count(self.network.node(node)[4], count), frames[frame]
