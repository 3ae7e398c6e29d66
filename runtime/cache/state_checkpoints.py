"""The states that a sequence holds: that after its last computed token, and a few earlier ones to go back to.

    tokens   t0 t1 t2 t3 ... t40 t41 t42
    trail           (4, a)  (41, b)  (42, c)      lengths and slots; the last one is that of all computed tokens

A state that only one sequence holds may be written over by its next one. What a node of the tree or another sequence
holds too is read, and the next state goes to another slot: so a snapshot, and a fork, copy nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from ..errors import OutOfPages
from .radix_node_states import RadixNodeStates
from .radix_tree import RadixNode
from .recurrent_state_slots import EMPTY_SLOT, SCRAP_SLOT

SPACING = 32  # tokens between the earlier states that a sequence keeps
MOST = 3  # states that it keeps: an earlier one, the one before the last step, the last


class StateCheckpoint(NamedTuple):
    """The state after the first `length` tokens, and its slot."""

    length: int
    slot: int


START = StateCheckpoint(0, EMPTY_SLOT)


class StateHolder(Protocol):
    """A sequence, as far as its states go. into: the slot that its next state is to be left in; 0: none was given yet.

    computed: tokens, of which the last state is, unless the last step left none.
    node: the deepest node of the tree that it stands on.  branch: up to there others have computed its tokens, and left
        no state.
    """

    trail: list[StateCheckpoint]
    into: int
    computed: int
    node: RadixNode | None
    branch: int


def read_slot(seq: StateHolder) -> int:
    return seq.trail[-1].slot if seq.trail else EMPTY_SLOT


def write_slot(seq: StateHolder) -> int:
    """Its own slot again where it was given no other."""
    return seq.into or (seq.trail[-1].slot if seq.trail else SCRAP_SLOT)


class StateCheckpoints:
    """Gives, keeps and takes back the states of sequences."""

    def __init__(self, nodes: RadixNodeStates) -> None:
        self.nodes, self.slots = nodes, nodes.slots

    def reserve(self, seq: StateHolder, leaves: bool) -> bool:
        """Reserve a slot for the state after the next step.

        False: there is none. leaves: False where it will not be wanted.
        """
        if not leaves:
            self._give_back(seq)
            seq.into = SCRAP_SLOT
            return True
        if seq.into <= SCRAP_SLOT:
            seq.into = self._own(seq) or self._fresh(seq)
        return bool(seq.into) or self._in_place(seq)

    def advance(self, seq: StateHolder, length: int) -> None:
        """A step was launched that computes the first `length` tokens."""
        into, seq.into = seq.into, 0
        if into == SCRAP_SLOT:
            return
        if into:
            seq.trail.append(StateCheckpoint(length, into))
        else:
            seq.trail[-1] = StateCheckpoint(length, seq.trail[-1].slot)

    def spoil(self, seq: StateHolder) -> None:
        """The step for which a place was reserved broke off: what it was to write over is not whole."""
        if not seq.into and seq.trail:
            self.slots.release(seq.trail.pop().slot)

    def last(self, seq: StateHolder, most: int, fits: Callable[[int], bool]) -> StateCheckpoint:
        """The last state that it, or a node on its path, has after at most `most` tokens, of a length that fits."""
        marks = [mark for mark in (*seq.trail, *_marks(seq.node)) if mark.length <= most and fits(mark.length)]
        return max(marks, default=START)

    def go_back(self, seq: StateHolder, mark: StateCheckpoint) -> None:
        """Stand on a state that `last` gave; later ones go."""
        while seq.trail and seq.trail[-1].length > mark.length:
            self.slots.release(seq.trail.pop().slot)
        if mark.length and not (seq.trail and seq.trail[-1].length == mark.length):
            self._append(seq, mark)
        if not mark.length:
            self._give_back(seq)

    def begin(self, seq: StateHolder, mark: StateCheckpoint) -> None:
        """Stand on a state of the tree, and on nothing else."""
        self._append(seq, mark)
        self.leave(seq, len(seq.trail) - 1)

    def share(self, parent: StateHolder, child: StateHolder, mark: StateCheckpoint) -> None:
        """Have a new-born child stand on a state that `last` gave of the parent, with those before it."""
        for earlier in parent.trail:
            if earlier.length < mark.length:
                self._append(child, earlier)
        if mark.length:
            self._append(child, mark)

    def shed(self, seq: StateHolder) -> bool:
        """Let go of the earliest state that it can do without; False: it has the last one only."""
        if len(seq.trail) < 2:
            return False
        self.leave(seq, 1)
        return True

    def leave(self, seq: StateHolder, count: int) -> None:
        """Let go of the first `count` states."""
        for mark in seq.trail[:count]:
            self.slots.release(mark.slot)
        del seq.trail[:count]

    def release(self, seq: StateHolder) -> None:
        self.leave(seq, len(seq.trail))
        self._give_back(seq)
        seq.branch = 0

    def check_pinned(self, count: int) -> None:
        """Raise OutOfPages if so many pinned sequences took more than half of the states."""
        if 2 * count > self.slots.total:
            raise OutOfPages(
                f"with this prefix {count} of the {self.slots.total} states would be pinned, more than half; release "
                "other pins, or open the engine with more states"
            )

    def check(self, seqs: Iterable[StateHolder]) -> None:
        """Raise unless slots, tree and sequences agree on every state."""
        holds = self.nodes.check()
        for seq in seqs:
            lengths = [mark.length for mark in seq.trail]
            if lengths != sorted(set(lengths)) or 0 in lengths or (lengths and lengths[-1] > seq.computed):
                raise RuntimeError(f"states after {lengths} tokens of a sequence of which {seq.computed} are computed")
            if sum(len(node.tokens) for node in _path(seq.node)) > seq.computed:
                raise RuntimeError(f"a sequence of {seq.computed} computed tokens stands on a longer path of the tree")
            holds += [mark.slot for mark in seq.trail] + [seq.into] * (seq.into > SCRAP_SLOT)
        self.slots.check(holds)

    def _append(self, seq: StateHolder, mark: StateCheckpoint) -> None:
        self.slots.retain(mark.slot)
        seq.trail.append(mark)

    def _give_back(self, seq: StateHolder) -> None:
        if seq.into > SCRAP_SLOT:
            self.slots.release(seq.into)
        seq.into = 0

    def _own(self, seq: StateHolder) -> int:
        """The slot of a state that it needs no longer, or 0."""
        if len(seq.trail) < MOST:
            return 0
        far = seq.trail[1].length - seq.trail[0].length >= SPACING
        mark = seq.trail.pop(0 if far else 1)
        if self.slots.refs[mark.slot] == 1:
            return mark.slot
        self.slots.release(mark.slot)
        return 0

    def _fresh(self, seq: StateHolder) -> int:
        """A free slot, or 0.

        Sequences' earlier states take the place of snapshots only while these have most of the slots.
        """
        while not self.slots.free:
            many = 2 * len(self.nodes) > self.slots.total
            if not ((many and self.nodes.evict()) or self.shed(seq) or self.nodes.evict()):
                return 0
        return self.slots.take()

    def _in_place(self, seq: StateHolder) -> bool:
        """Whether its last state may be written over; a snapshot that only it shares with the tree may."""
        if not seq.trail:
            return False
        slot = seq.trail[-1].slot
        node = self.nodes.holder(slot)
        if node is not None and self.slots.refs[slot] == 2:
            self.nodes.forget(node)
        return self.slots.refs[slot] == 1


def _marks(node: RadixNode | None) -> list[StateCheckpoint]:
    """The states on the path to a node."""
    marks, length = [], 0
    for step in reversed(list(_path(node))):
        length += len(step.tokens)
        if step.state != EMPTY_SLOT:
            marks.append(StateCheckpoint(length, step.state))
    return marks


def _path(node: RadixNode | None) -> Iterator[RadixNode]:
    """From a node to its root."""
    while node is not None:
        yield node
        node = node.parent
