"""The bookkeeping of lists in any order: which parts are used, how many members there are, what may come next."""

from __future__ import annotations

from typing import NamedTuple


class PartSubset(NamedTuple):
    """What a list holds so far: the PICK node it is for, a set of bits of its parts, the members as far as counted."""

    list: int
    used: int
    members: int


EMPTY_SUBSET = PartSubset(-1, 0, 0)


class PartTable(NamedTuple):
    """The table of a PICK node; the required parts come first, `most` and `extra` are -1 where there is none."""

    required: int
    least: int
    most: int
    extra: int
    parts: tuple[int, ...]

    def missing(self, subset: PartSubset) -> int:
        """The required parts that are still to come, as a set of bits."""
        return (1 << self.required) - 1 & ~subset.used

    def spare(self, subset: PartSubset) -> bool:
        """Whether there is room for a member that is not required."""
        return self.most < 0 or subset.members + self.missing(subset).bit_count() < self.most

    def choices(self, subset: PartSubset) -> list[int]:
        """The parts that may come next; the extra is the one after the last."""
        able = len(self.parts) if self.spare(subset) else self.required
        found = [part for part in range(able) if not subset.used >> part & 1]
        return found + [len(self.parts)] * (self.extra >= 0 and self.spare(subset))

    def entry(self, part: int) -> int:
        return self.parts[part] if part < len(self.parts) else self.extra

    def closable(self, subset: PartSubset) -> bool:
        return subset.members >= self.least and not self.missing(subset)

    def added(self, pick: int, subset: PartSubset, part: int) -> PartSubset:
        """One more member; the count stops where it no longer matters."""
        counted = self.most if self.most >= 0 else self.least
        used = subset.used | 1 << part if part < len(self.parts) else subset.used
        return PartSubset(pick, used, min(subset.members + 1, counted))
