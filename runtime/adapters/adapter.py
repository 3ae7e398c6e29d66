"""An adapter as it is kept and computed with: its pairs laid end to end in one piece of memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .extras import Extras
from .sites import Site

ALIGNED = 16  # numbers that each matrix begins at a multiple of
ABSENT = -1


@dataclass(frozen=True)
class Adapter:
    """The pairs of a model's sites.

    digest: of the contents; who has the same computes the same.
    rank: of the widest pair, up to a multiple of 8; what is narrower is filled up with zeros.  widest: its own rank.
    memory: of the model's dtype. For a site that the adapter changes, at `places[site]`: A [pieces, rank, inputs], then
    B [rank, outputs], in the order of the product's outputs.  ABSENT: it does not change the site.
    scales: float32 [sites, most pieces], what B(Ax) of each piece is multiplied with; 0: the piece is not changed.
    extras: what it has beside pairs, where its memory is.
    elsewhere: where ranks share the model out, what the others have of it, in their order, on the CPU; this is rank 0's part then.
    """

    digest: str
    rank: int
    memory: Tensor
    places: np.ndarray
    scales: np.ndarray
    widest: int = 0
    extras: Extras = field(default_factory=Extras)
    elsewhere: tuple[Adapter, ...] = ()

    @property
    def bytes(self) -> int:
        return self.memory.nbytes + self.extras.bytes + sum(part.bytes for part in self.elsewhere)

    def pair(self, site: Site) -> tuple[Tensor, Tensor]:
        """A [pieces, rank, inputs] and B [rank, outputs], views."""
        return pair_of(self.memory, int(self.places[site.number]), site, self.rank)


def pair_of(memory: Tensor, start: int, site: Site, rank: int) -> tuple[Tensor, Tensor]:
    middle = start + aligned(len(site.modules) * rank * site.inputs)
    a = memory[start : start + len(site.modules) * rank * site.inputs].view(len(site.modules), rank, site.inputs)
    return a, memory[middle : middle + site.outputs * rank].view(rank, site.outputs)


def aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def size_of(site: Site, rank: int) -> int:
    """Numbers that a site takes."""
    return aligned(len(site.modules) * rank * site.inputs) + aligned(site.outputs * rank)


def span_of(sites: tuple[Site, ...], rank: int) -> int:
    """Numbers that an adapter of this rank takes that changes every site."""
    return sum(size_of(site, rank) for site in sites)


class Packing:
    """Lays the pairs of an adapter into its memory. pairs: (A [rank, inputs], B [outputs of the piece, rank], scale) by module."""

    def __init__(self, sites: tuple[Site, ...], dtype: torch.dtype) -> None:
        self._sites, self._dtype = sites, dtype
        self._most = max((len(site.modules) for site in sites), default=1)

    def pack(self, pairs: dict[str, tuple[Tensor, Tensor, float]], extras: Extras | None = None) -> Adapter:
        extras = extras or Extras()
        widest = max((len(a) for a, *_ in pairs.values()), default=0)
        rank = max(8, -(-widest // 8) * 8)
        taken = [site for site in self._sites if any(module in pairs for module in site.modules)]
        places, end = np.full(len(self._sites), ABSENT, np.int64), 0
        for site in taken:
            places[site.number], end = end, end + size_of(site, rank)
        memory, scales = torch.zeros(end, dtype=self._dtype), np.zeros((len(self._sites), self._most), np.float32)
        for site in taken:
            self._fill(pair_of(memory, int(places[site.number]), site, rank), site, pairs, scales[site.number])
        return Adapter(_digest(memory, places, scales, rank, extras), rank, memory, places, scales, widest, extras)

    def _fill(self, into: tuple[Tensor, Tensor], site: Site, pairs: dict[str, tuple[Tensor, Tensor, float]], scales: np.ndarray) -> None:
        a, b = into
        for piece, module in enumerate(site.modules):
            if module not in pairs:
                continue
            first, second, scales[piece] = pairs[module]
            a[piece, : len(first)] = first
            ours = torch.from_numpy(np.flatnonzero(site.piece_of == piece))
            b[: len(first), ours] = second.to(b.dtype)[torch.from_numpy(site.row_of)[ours]].T


def _digest(memory: Tensor, places: np.ndarray, scales: np.ndarray, rank: int, extras: Extras) -> str:
    found = hashlib.sha256(f"{rank} {memory.dtype} ".encode())
    for part in (places, scales, memory.view(torch.uint8).numpy()):
        found.update(part.tobytes() if part.ndim != 1 or part.dtype != np.uint8 else part.data)
    if extras:
        extras.digest_into(found)
    return found.hexdigest()[:32]
