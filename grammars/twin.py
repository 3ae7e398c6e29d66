"""The automaton's core in plain Python: the oracle of the C core and its fallback.

Both determinise the network lazily. A state is an interned, sorted tuple of threads (node, count, frame), all of
them at BYTE nodes, and whether the text may end. A frame is (return node, saved count, parent); frame 0 is the
bottom. Results below zero are DEAD, NEED (a rule must be built first: `wanted`) and FULL (too many states).
"""

from __future__ import annotations

import numpy as np

from sgl.grammars.network import BYTE, CALL, ENTER, LOOP, NEXT, RETURN, SPLIT, UNBUILT, Network
from sgl.grammars.vocabulary import Trie, Vocabulary

DEAD, NEED, FULL = -1, -2, -3
MAX_THREADS = 20_000
PLAIN_BYTES = ((1 << 256) - (1 << 32)) & ~(1 << 0x22 | 1 << 0x5C)
Thread = tuple[int, int, int]


class _Stop(Exception):
    """Carries NEED or FULL out of a closure."""

    def __init__(self, code: int) -> None:
        self.code = code


class PythonCore:
    def __init__(self, network: Network, vocabulary: Vocabulary, limit: int) -> None:
        self.network = network
        self.vocabulary = vocabulary
        self.limit = limit
        self.wanted = 0
        self.frames: list[Thread] = [(-1, 0, 0)]
        self._frame_ids: dict[Thread, int] = {}
        self.states: list[tuple[tuple[Thread, ...], bool]] = []
        self._state_ids: dict[tuple[tuple[Thread, ...], bool], int] = {}
        self._rows: list[dict[int, int]] = []

    def extend(self) -> None:
        """Take over what the network has gained; this core reads it in place."""

    def size(self) -> int:
        return len(self.states)

    def start(self) -> int:
        try:
            return self._closure([self._enter_rule(0, 0)])
        except _Stop as stop:
            return stop.code

    def step(self, state: int, byte: int) -> int:
        row = self._rows[state]
        found = row.get(byte)
        if found is None:
            try:
                found = row[byte] = self._closure(self._moved(state, byte))
            except _Stop as stop:
                return stop.code
        return found

    def advance(self, state: int, data: bytes) -> int:
        for byte in data:
            state = self.step(state, byte)
            if state < 0:
                break
        return state

    def accepting(self, state: int) -> bool:
        return self.states[state][1]

    def live(self, state: int) -> int:
        """The bytes that may come next, as a set of bits."""
        found = 0
        for node, _, _ in self.states[state][0]:
            found |= self.network.class_mask(self.network.node(node)[1])
        return found

    def threads(self, state: int) -> list[Thread]:
        return list(self.states[state][0])

    def frame(self, index: int) -> Thread:
        return self.frames[index]

    def mask(self, state: int, out: np.ndarray) -> int:
        """Set the bits of the tokens that keep the text viable, in a zeroed uint32 row; 0, NEED or FULL."""
        state = self.canonical(state)
        if state < 0:
            return state
        room = self.plain_room(state)
        vocabulary = self.vocabulary
        if room > 0:
            out |= vocabulary.slices[room]
        return self._walk(state, vocabulary.rest if room > 0 else vocabulary.trie, out)

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
        """The state with all counts moved to the least that no token can tell apart."""
        threads, final = self.states[state]
        moved = {
            (node, self._canonical_count(self.network.node(node)[4], count), self._canonical_frame(frame))
            for node, count, frame in threads
        }
        try:
            return self._intern(tuple(sorted(moved)), final)
        except _Stop as stop:
            return stop.code

    def plain_room(self, state: int) -> int:
        """How many characters of plain string text may come: 0 where slices do not apply exactly."""
        threads = self.states[state][0]
        longest = len(self.vocabulary.slices) - 1
        best, text = 0, (0, 0, 0)
        for node, count, frame in threads:
            _, _, _, plain, loop = self.network.node(node)
            most = self.network.node(loop)[3] if plain == 2 else -1
            room = 0 if not plain else longest if most < 0 else min(longest, most - count)
            if room > best:
                best, text = room, (loop, count, frame)
        if best < longest and any(self._strays(thread, text) for thread in threads):
            return 0
        return best

    def _strays(self, thread: Thread, text: Thread) -> bool:
        """Whether a thread other than the text's own could take plain text."""
        node, count, frame = thread
        _, kind, _, _, loop = self.network.node(node)
        return (loop, count, frame) != text and bool(self.network.class_mask(kind) & PLAIN_BYTES)

    def _walk(self, state: int, trie: Trie, out: np.ndarray) -> int:
        states = [state] + [DEAD] * (self.vocabulary.reach + 1)
        i, size = 0, len(trie)
        allowed: list[int] = []
        while i < size:
            depth = int(trie.depth[i])
            target = self.step(states[depth - 1], int(trie.byte[i]))
            if target == DEAD:
                i = int(trie.skip[i])
                continue
            if target < 0:
                return target
            states[depth] = target
            allowed.extend(trie.ids[trie.first[i] : trie.first[i + 1]].tolist())
            i += 1
        for token in allowed:
            out[token >> 5] |= np.uint32(1 << (token & 31))
        return 0

    def _moved(self, state: int, byte: int) -> list[Thread]:
        found: list[Thread] = []
        for node, count, frame in self.states[state][0]:
            _, kind, after, _, _ = self.network.node(node)
            if self.network.class_mask(kind) >> byte & 1:
                found.append((after, count, frame))
        return found

    def _closure(self, seeds: list[Thread]) -> int:
        """The state that the seeds reach without reading a byte."""
        seen = set(seeds)
        work = list(seen)
        kept: list[Thread] = []
        final = False
        while work:
            thread = work.pop()
            kind = self.network.node(thread[0])[0]
            if kind == BYTE:
                kept.append(thread)
                continue
            if kind == RETURN and thread[2] == 0:
                final = True
                continue
            for reached in self._silent(thread):
                if reached not in seen:
                    seen.add(reached)
                    work.append(reached)
            if len(seen) > MAX_THREADS:
                raise _Stop(FULL)
        return self._intern(tuple(sorted(kept)), final)

    def _silent(self, thread: Thread) -> list[Thread]:
        """One move that reads nothing."""
        node, count, frame = thread
        kind, a, b, c, _ = self.network.node(node)
        if kind == SPLIT:
            return [(target, count, frame) for target in self.network.targets(a, b)]
        if kind == CALL:
            return [self._enter_rule(a, self._push(b, count, frame))]
        if kind == ENTER:
            return [(a, 0, self._push(b, count, frame))]
        if kind == NEXT:
            least, most = self.network.node(a)[2:4]
            return [(a, count + 1 if most >= 0 else min(count + 1, least), frame)]
        if kind == LOOP:
            found = [(a, count, frame)] if c < 0 or count < c else []
            return found + [self.frames[frame]] * (count >= b)
        return [self.frames[frame]]

    def _enter_rule(self, rule: int, frame: int) -> Thread:
        entry = self.network.entries[rule]
        if entry == UNBUILT:
            self.wanted = rule
            raise _Stop(NEED)
        return entry, 0, frame

    def _push(self, after: int, count: int, parent: int) -> int:
        key = (after, count, parent)
        found = self._frame_ids.get(key)
        if found is None:
            found = self._frame_ids[key] = len(self.frames)
            self.frames.append(key)
        return found

    def _intern(self, threads: tuple[Thread, ...], final: bool) -> int:
        if not threads and not final:
            return DEAD
        key = (threads, final)
        found = self._state_ids.get(key)
        if found is None:
            if len(self.states) >= self.limit:
                raise _Stop(FULL)
            found = self._state_ids[key] = len(self.states)
            self.states.append(key)
            self._rows.append({})
        return found

    def _canonical_count(self, loop: int, count: int) -> int:
        if loop < 0:
            return count
        least, most = self.network.node(loop)[2:4]
        reach = self.vocabulary.reach
        if most >= 0 and most - count <= reach:
            return count
        if count >= least:
            return least if most < 0 or most - least > reach else count
        return 0 if least - count > reach and (most < 0 or most > reach) else count

    def _canonical_frame(self, frame: int) -> int:
        if frame == 0:
            return 0
        after, count, parent = self.frames[frame]
        loop = self.network.node(after)[4]
        return self._push(after, self._canonical_count(loop, count), self._canonical_frame(parent))
