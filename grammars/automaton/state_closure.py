"""What a set of threads reaches without reading a byte, in plain Python; `core/automaton/state_closure.c` is the C.

A thread is (node, count, frame). A frame is an interned, sorted tuple of the threads that go on when it is popped:
all callers of a rule (or loop, or list) at one place of the text share one frame, so that ambiguous callers cost no
more than one (a graph-structured stack; Tomita, 1987). Frame 0 is the bottom. Inside a list in any order the count
is the number of an interned `PartSubset`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

from sgl.grammars.algebra.unordered_parts import EMPTY_SUBSET, PartSubset
from sgl.grammars.network.transition_network import (
    BYTE,
    CALL,
    COPY,
    ENTER,
    LOOP,
    NEXT,
    PICK,
    RETURN,
    SEEN,
    SPLIT,
    UNBUILT,
    TransitionNetwork,
)

Thread = tuple[int, int, int]

NEED, FULL, CROWDED, PAUSED = -2, -3, -7, -8
MAX_THREADS = 20_000
MAX_UNITED = 100  # frames within frames; below them threads that are alike stay apart
MAX_VISITS = 1 << 18
MOST_FLAT = 48
MAX_HELD = 1 << 22
BOTTOM: Thread = (-1, 0, 0)
BETWEEN, BELOW = -1, -2  # counts that are far from both bounds, or far below the least


class ClosureStopped(Exception):
    """Carries NEED (and the rule that must be built) or FULL out of a closure."""

    def __init__(self, code: int, rule: int = 0) -> None:
        self.code = code
        self.rule = rule


def _undominated(network: TransitionNetwork, threads: Iterable[Thread]) -> tuple[Thread, ...]:
    """Sorted, without those that another one dominates.

    Where a loop may be left, and all else is equal, the least count can do whatever higher ones can.
    """
    found: list[Thread] = []
    least: set[tuple[int, int]] = set()
    for thread in sorted(set(threads)):
        node, count, frame = thread
        if node >= 0 and _may_leave(network, node, count):
            if (node, frame) in least:
                continue
            least.add((node, frame))
        found.append(thread)
    return tuple(found)


def _may_leave(network: TransitionNetwork, node: int, count: int) -> bool:
    """Whether the node's loop may be left after so many iterations."""
    loop = network.node(node)[4]
    if loop < 0:
        return False
    kind, _, least, _, _ = network.node(loop)
    return kind == LOOP and count >= least


class InternTables:
    """The interned frames and subsets that the numbers in threads stand for; `held` is their size, to be bounded."""

    def __init__(self, network: TransitionNetwork) -> None:
        self._network = network
        self.frames: list[tuple[Thread, ...]] = [(BOTTOM,)]
        self.subsets: list[PartSubset] = [EMPTY_SUBSET]
        self.held = 1
        self._frame_ids = {self.frames[0]: 0}
        self._subset_ids = {EMPTY_SUBSET: 0}
        self._unions: dict[tuple[int, int], int] = {}
        self._uniting = 0
        self._flats: dict[int, tuple[int, ...]] = {}

    def thread_set(self, threads: Iterable[Thread]) -> tuple[Thread, ...]:
        """Sorted, without those that another one dominates, and those that differ in their frames alone as one.

        A thread over a frame with all that either went on with does what both did, so an ambiguous text has no more
        threads than the grammar has places, whatever the number of its readings. The bottom stays apart.
        """
        found = _undominated(self._network, threads)
        if self._uniting >= MAX_UNITED:
            return found
        frames: dict[tuple[int, int, bool], list[int]] = {}
        for node, count, frame in found:
            frames.setdefault((node, count, frame > 0), []).append(frame)
        if len(frames) == len(found):
            return found
        merged = [(node, count, reduce(self._united, alike)) for (node, count, _), alike in frames.items()]
        return _undominated(self._network, merged)

    def _united(self, left: int, right: int) -> int:
        """The frame of the threads of two."""
        pair = min(left, right), max(left, right)
        if left == right:
            return left
        if pair not in self._unions:
            self._uniting += 1
            made = self.frame_id(self.frames[left] + self.frames[right])
            self._uniting -= 1
            self._unions[pair] = made
            self.held += 1
        return self._unions[pair]

    def frame_id(self, threads: Iterable[Thread]) -> int:
        key = self.thread_set(threads)
        found = self._frame_ids.setdefault(key, len(self.frames))
        if found == len(self.frames):
            self.frames.append(key)
            self.held += len(key)
        return found

    def flat(self, split: int) -> tuple[int, ...]:
        """What a split leads to through other splits, BYTE nodes first in their order; nothing where it is much."""
        if split not in self._flats:
            self._flats[split] = self._flattened(split)
        return self._flats[split]

    def _flattened(self, split: int) -> tuple[int, ...]:
        network, splits, nodes = self._network, [split], list[int]()
        for found in splits:
            _, offset, count, _, _ = network.node(found)
            for target in network.targets(offset, count):
                kind = splits if network.node(target)[0] == SPLIT else nodes
                if target not in kind:
                    kind.append(target)
            if max(len(splits), len(nodes)) > MOST_FLAT:
                return ()
        first = sorted(node for node in nodes if network.node(node)[0] == BYTE)
        return (*first, *(node for node in nodes if network.node(node)[0] != BYTE))

    def subset_id(self, subset: PartSubset, parts: int) -> int:
        found = self._subset_ids.setdefault(subset, len(self.subsets))
        if found == len(self.subsets):
            self.subsets.append(subset)
            self.held += (parts + 31) // 32
        return found


class StateClosure:
    """One closure. Its own frames are open, numbered -1, -2 and so on, until all their callers are known."""

    def __init__(self, network: TransitionNetwork, registers: InternTables) -> None:
        self._network = network
        self._registers = registers
        self._seen: set[Thread] = set()
        self._work: list[Thread] = []
        self._waiting: list[Thread] = []
        self._kept: list[Thread] = []
        self.visits = 0
        self._final = False
        self._open: list[list[Thread]] = []
        self._open_at: dict[int, int] = {}
        self._popped: set[int] = set()

    def run(self, seeds: Iterable[Thread]) -> tuple[list[Thread], bool]:
        """The threads at BYTE and COPY nodes, and whether the text may end."""
        for seed in seeds:
            self._visit(*seed)
        while self._work or self._waiting:
            if not self._work:
                self._queue_waiting()
            if self._work:
                self._move(self._work.pop())
        closed = self._close_frames()
        return [(node, count, closed.get(frame, frame)) for node, count, frame in self._kept], self._final

    def _visit(self, node: int, count: int, frame: int) -> None:
        """Keep a thread at a BYTE node, queue any other unless it was there.

        Splits over frames wait until all else has been done, so that those that differ in their frames alone are one.
        """
        self.visits += 1
        if self.visits > MAX_VISITS or len(self._seen) + len(self._kept) >= MAX_THREADS:
            raise ClosureStopped(FULL)
        thread = (node, count, frame)
        kind = self._network.node(node)[0]
        if kind == BYTE:
            self._kept.append(thread)
        elif kind == COPY:
            self._visit_copied(thread)
        elif kind == SPLIT and frame > 0:
            self._waiting.append(thread)
        elif thread not in self._seen:
            self._seen.add(thread)
            self._work.append(thread)

    def _visit_copied(self, thread: Thread) -> None:
        """Keep a thread within a piece where the piece may go on, and go on after it where it may end."""
        node, place, frame = thread
        automaton = self._network.texts[self._network.node(node)[1]].python
        if automaton.live(place):
            self._kept.append(thread)
        if automaton.ends(place):
            self._pop(frame)

    def _queue_waiting(self) -> None:
        found = [thread for thread in self._registers.thread_set(self._waiting) if thread not in self._seen]
        self._waiting = []
        self._seen.update(found)
        self._work += found

    def _move(self, thread: Thread) -> None:
        """All moves of a thread that read nothing."""
        node, count, frame = thread
        kind, a, b, c, _ = self._network.node(node)
        if kind == SPLIT:
            for target in self._registers.flat(node) or self._network.targets(a, b):
                self._visit(target, count, frame)
        elif kind == CALL:
            self._call(a, b, count, frame)
        elif kind == ENTER:
            self._push(a, (b, count, frame))
        elif kind == NEXT:
            least, most = self._network.node(a)[2:4]
            self._visit(a, _next_count(count, least, most), frame)
        elif kind == LOOP:
            self._loop(thread, a, b, c)
        elif kind == PICK:
            table = self._network.part_table(node)
            for part in table.choices(self._registers.subsets[count]):
                self._visit(table.entry(part), count, frame)
        elif kind == SEEN:
            self._member_done(thread, a, b)
        else:
            self._pop(frame)

    def _call(self, rule: int, after: int, count: int, frame: int) -> None:
        """Enter a rule; a last call needs no new frame, unless the rule has one here already."""
        entry = self._network.entries[rule]
        if entry == UNBUILT:
            raise ClosureStopped(NEED, rule)
        if self._network.node(after)[0] == RETURN and entry not in self._open_at:
            self._visit(entry, 0, frame)
        else:
            self._push(entry, (after, count, frame))

    def _loop(self, thread: Thread, body: int, least: int, most: int) -> None:
        _, count, frame = thread
        if most < 0 or count < most:
            self._visit(body, count, frame)
        if count >= least or count == BETWEEN:
            self._pop(frame)

    def _member_done(self, thread: Thread, pick: int, part: int) -> None:
        """After a member of a list in any order: its end if it may close, a separator if another may come."""
        table = self._network.part_table(pick)
        subset = table.added(pick, self._registers.subsets[thread[1]], part)
        if table.closable(subset):
            self._pop(thread[2])
        if table.choices(subset):
            separator = self._network.node(pick)[3]
            self._visit(separator, self._registers.subset_id(subset, len(table.parts)), thread[2])

    def _push(self, target: int, caller: Thread) -> None:
        """Enter what starts at a node, with the one open frame of all its callers."""
        index = self._open_at.setdefault(target, len(self._open))
        if index == len(self._open):
            self._open.append([])
            self._visit(target, 0, -1 - index)
        self._open[index].append(caller)
        if index in self._popped:
            self._visit(*caller)

    def _pop(self, frame: int) -> None:
        """Continue with what is under a frame; under the bottom is the end."""
        if frame == 0:
            self._final = True
            return
        if frame < 0:
            self._popped.add(-1 - frame)
        for thread in self._open[-1 - frame] if frame < 0 else self._registers.frames[frame]:
            self._visit(*thread)

    def _close_frames(self) -> dict[int, int]:
        """Intern the open frames, each after those that it rests on; a circle of them is left recursion: FULL."""
        closed: dict[int, int] = {}
        while len(closed) < len(self._open):
            before = len(closed)
            for index, callers in enumerate(self._open):
                rests = all(frame >= 0 or frame in closed for _, _, frame in callers)
                if rests and -1 - index not in closed:
                    threads = [(node, count, closed.get(frame, frame)) for node, count, frame in callers]
                    closed[-1 - index] = self._registers.frame_id(self._returned(threads))
            if len(closed) == before:
                raise ClosureStopped(FULL)
        return closed

    def _returned(self, threads: Iterable[Thread]) -> Iterator[Thread]:
        """Threads, and in the place of those that only return what they return to; but none stands for the bottom."""
        for thread in threads:
            if thread[2] and self._network.node(thread[0])[0] == RETURN:
                yield from self._registers.frames[thread[2]]
            else:
                yield thread


def _next_count(count: int, least: int, most: int) -> int:
    """After one more iteration: counts without a bound stay at the least, those far from their bounds as they are."""
    if count < 0:
        return count
    return count + 1 if most >= 0 else min(count + 1, least)
