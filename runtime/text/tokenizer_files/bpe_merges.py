"""Every pair of pieces that makes a piece: what a byte-pair model merges, of files that list pieces alone. The work is
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from sgl.grammars.tokens.packed_arrays import compiled

MOST_SQUARES = 2**27  # of the pieces' lengths, summed: every piece is cut in every way
MOST_PAIRS = 2**20
Text = TypeVar("Text", str, bytes)


def all_pairs(
    pieces: Iterable[Text], parts: Iterable[Text], order: Callable[[tuple[Text, Text]], Any] | None = None
) -> list[tuple[Text, Text]]:
    """For each of `pieces` in turn all pairs of `parts` that make it: the shortest first, or in the `order` of a key.

    Raises ValueError where there are more than can be wanted, or the pieces are too long to be cut in every way.
    """
    whole, known = list(pieces), {part: part for part in parts}  # pairs share the texts of their parts
    if sum(len(piece) ** 2 for piece in whole) > MOST_SQUARES:
        raise ValueError(f"its pieces are too long to be cut, one has {max(map(len, whole)):,} characters")
    cuts = _cuts if (core := compiled()) is None else core.cuts_of
    cut = (cuts(piece, known) for piece in whole)
    found = list(
        islice(
            chain.from_iterable(cut if order is None else (sorted(pairs, key=order) for pairs in cut)), MOST_PAIRS + 1
        )
    )
    if len(found) > MOST_PAIRS:
        raise ValueError(f"more than {MOST_PAIRS:,} pairs of its pieces make a piece")
    return found


def _cuts(piece: Text, known: dict[Text, Text]) -> Iterator[tuple[Text, Text]]:
    """The shortest left part first."""
    for cut in range(1, len(piece)):
        left, right = known.get(piece[:cut]), known.get(piece[cut:])
        if left is not None and right is not None:
            yield left, right
