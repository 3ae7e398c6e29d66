"""Which nodes of the radix tree have a state: that after all tokens from the root to the node's end."""

from __future__ import annotations

from typing import Protocol

from .recurrent_state_slots import EMPTY_SLOT, RecurrentStateSlots


class HoldsState(Protocol):
    """A `radix_tree.RadixNode`. state: the slot of its state, or EMPTY_SLOT."""

    state: int


class RadixNodeStates:
    """Snapshots have a separate LRU order: one may go while its node's keys and values stay."""

    def __init__(self, slots: RecurrentStateSlots) -> None:
        self.slots = slots
        self._nodes: dict[int, HoldsState] = {}  # by slot, least recently used first

    def __len__(self) -> int:
        return len(self._nodes)

    def keep(self, node: HoldsState, slot: int) -> None:
        """Have a node hold a slot, unless it has a state."""
        if node.state == EMPTY_SLOT:
            node.state = slot
            self.slots.retain(slot)
            self._nodes[slot] = node
        self.touch(node)

    def touch(self, node: HoldsState) -> None:
        self._nodes[node.state] = self._nodes.pop(node.state)

    def forget(self, node: HoldsState) -> None:
        """Let go of a node's state, if it has one."""
        if node.state != EMPTY_SLOT:
            del self._nodes[node.state]
            self.slots.release(node.state)
            node.state = EMPTY_SLOT

    def holder(self, slot: int) -> HoldsState | None:
        return self._nodes.get(slot)

    def evict(self) -> bool:
        """Free the slot of the least recently used node that holds one alone; False: there is none."""
        for slot, node in self._nodes.items():
            if self.slots.refs[slot] == 1:
                self.forget(node)
                return True
        return False

    def check(self) -> list[int]:
        """The slots that nodes hold. Raises where node and list disagree."""
        if any(node.state != slot for slot, node in self._nodes.items()):
            raise RuntimeError("a node of the tree has another state than it is listed with")
        return list(self._nodes)
