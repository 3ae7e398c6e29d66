"""Who holds which slot of the states, and which are free."""

from __future__ import annotations

from collections.abc import Callable, Iterable

EMPTY_SLOT = 0  # the state of an empty sequence: all zeros, never written
SCRAP_SLOT = 1  # written by sequences that leave no state, never read
FIRST_SLOT = 2  # of those that are handed out


class RecurrentStateSlots:
    """Reference-counted slots. A slot is held by every sequence and every node of the tree that names it.

    total: of those that are handed out; `EMPTY_SLOT`, the state of no tokens, is held by anybody and never counted.
    on_free: sees each slot as it is freed (the tests fill it with NaN).
    """

    def __init__(self, total: int, on_free: Callable[[int], None] | None = None) -> None:
        self.total = total
        self.refs = [0] * (FIRST_SLOT + total)
        self._free = list(range(FIRST_SLOT + total - 1, FIRST_SLOT - 1, -1))
        self._on_free = on_free

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A slot held once; one must be free."""
        slot = self._free.pop()
        self.refs[slot] = 1
        return slot

    def retain(self, slot: int) -> None:
        if slot != EMPTY_SLOT:
            self.refs[slot] += 1

    def release(self, slot: int) -> None:
        if slot == EMPTY_SLOT:
            return
        self.refs[slot] -= 1
        if not self.refs[slot]:
            self._free.append(slot)
            if self._on_free is not None:
                self._on_free(slot)

    def check(self, holds: Iterable[int]) -> None:
        """Raise unless each slot is held as often as it is counted. holds: the slots, once for each who holds them."""
        found = [0] * len(self.refs)
        for slot in holds:
            found[slot] += 1
        if wrong := [slot for slot in range(len(found)) if found[slot] != self.refs[slot]]:
            raise RuntimeError(
                f"states {wrong[:8]} are held {[found[s] for s in wrong[:8]]} times but counted "
                f"{[self.refs[s] for s in wrong[:8]]}"
            )
        if sorted(self._free) != [slot for slot in range(FIRST_SLOT, len(found)) if not found[slot]]:
            raise RuntimeError("a slot of a state is lost, or stands twice among the free ones")
