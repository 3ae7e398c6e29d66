"""The coarsest partition of the characters that tells some sets apart; sets become bits, one a class."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet


class CharacterPartition:
    """`masks[i]` are the classes of `sets[i]`; `everything` are all classes, also those of no set."""

    def __init__(self, sets: Sequence[CharSet]) -> None:
        cuts = sorted({0, *(cut for chars in sets for low, high in chars for cut in (low, high + 1))} - {0x110000})
        members = [0] * len(cuts)
        for index, chars in enumerate(sets):
            for low, high in chars:
                for i in range(bisect_left(cuts, low), bisect_left(cuts, high + 1)):
                    members[i] |= 1 << index
        classes = {member: i for i, member in enumerate(dict.fromkeys(members))}
        self.masks = [0] * len(sets)
        for member, i in classes.items():
            for index in _bits(member):
                self.masks[index] |= 1 << i
        self.everything = (1 << len(classes)) - 1
        self._ranges: list[list[tuple[int, int]]] = [[] for _ in classes]
        for low, high, member in zip(cuts, [*cuts[1:], 0x110000], members, strict=True):
            self._ranges[classes[member]].append((low, high - 1))
        self._chars: dict[int, CharSet] = {}

    def chars(self, mask: int) -> CharSet:
        """The characters of some classes."""
        found = self._chars.get(mask)
        if found is None:
            found = charset.normalise([r for i in _bits(mask) for r in self._ranges[i]])
            self._chars[mask] = found
        return found


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
