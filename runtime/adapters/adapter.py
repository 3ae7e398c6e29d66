"""An adapter as it is kept and computed with: its pairs laid end to end in one piece of memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..memory.huge_pages import huge_page_tensor
from ..models.spec.model_spec import ModelSpec
from .adapter_extras import BIASES, DORA, AdapterExtras, AdapterWeightChanges, LowRankDelta, Mixture, Pair
from .adapter_sites import AdapterSite
from .files.expert_adapter_targets import expert_modules_of

ALIGNED = 16  # numbers that each matrix begins at a multiple of
ABSENT = -1
Memory = Callable[[int], Tensor]  # uint8 [bytes], of any contents


@dataclass(frozen=True)
class Adapter:
    """The pairs of a model's sites.

    digest: of the contents; equal digests compute the same. Of one that is laid out with the base's weights it is of
        its files.
    rank: of the widest pair, up to a multiple of 8; what is narrower is filled up with zeros.  widest: its own rank.
    memory: of the model's dtype. For a site that the adapter changes, at `places[site]`: A [pieces, rank, inputs], then
    B [rank, outputs], in the order of the product's outputs.  ABSENT: it does not change the site.
    scales: float32 [sites, most pieces], what B(Ax) of each piece is multiplied with; 0: the piece is not changed.
    extras: what it has besides pairs, on the device of its memory.
    extra_kinds: for people, what of the whole adapter is more than pairs; the reference runs its steps then, on all
        ranks alike.
    most_extras: bytes of that, on the rank that has most of it.
    elsewhere: under tensor parallelism, the other ranks' parts, in their order, on the CPU; this is rank 0's part then.
    """

    digest: str
    rank: int
    memory: Tensor
    places: np.ndarray
    scales: np.ndarray
    widest: int = 0
    extras: AdapterExtras = field(default_factory=AdapterExtras)
    extra_kinds: tuple[str, ...] = ()
    most_extras: int = 0
    elsewhere: tuple[Adapter, ...] = ()

    @property
    def bytes(self) -> int:
        held = {
            id(tensor): tensor.nbytes
            for part in (self, *self.elsewhere)
            for tensor in (part.memory, *part.extras.tensors())
        }  # parts share what is whole on all ranks
        return sum(held.values())

    @property
    def on_base(self) -> bool:
        """Whether it was laid out with the base's weights, and is another one where these are."""
        return DORA in self.extra_kinds or BIASES in self.extra_kinds

    def called(self, digest: str) -> Adapter:
        return replace(self, digest=digest, elsewhere=tuple(part.called(digest) for part in self.elsewhere))

    def pair(self, site: AdapterSite) -> tuple[Tensor, Tensor]:
        """A [pieces, rank, inputs] and B [rank, outputs], views."""
        return pair_of(self.memory, int(self.places[site.number]), site, self.rank)


def pair_of(memory: Tensor, start: int, site: AdapterSite, rank: int) -> tuple[Tensor, Tensor]:
    middle = start + aligned(len(site.modules) * rank * site.inputs)
    a = memory[start : start + len(site.modules) * rank * site.inputs].view(len(site.modules), rank, site.inputs)
    return a, memory[middle : middle + site.outputs * rank].view(rank, site.outputs)


def aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def size_of(site: AdapterSite, rank: int) -> int:
    """Numbers that a site takes."""
    return aligned(len(site.modules) * rank * site.inputs) + aligned(site.outputs * rank)


def pair_span_of(sites: tuple[AdapterSite, ...], rank: int) -> int:
    """Numbers that an adapter of this rank takes that changes every site."""
    return sum(size_of(site, rank) for site in sites)


class AdapterPacker:
    """Packs the pairs of an adapter, by module, and its extras into its memory, which `memory` allocates.

    model: whose mixtures of experts may be among these; None: none are.
    """

    def __init__(
        self,
        sites: tuple[AdapterSite, ...],
        dtype: torch.dtype,
        model: ModelSpec | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._sites, self._dtype, self._model, self._memory = sites, dtype, model, memory or huge_page_tensor
        self._rows: dict[
            tuple[int, int], tuple[Tensor | slice, Tensor | slice]
        ] = {}  # by site and piece: outputs, and the module's rows there
        self._most = max((len(site.modules) for site in sites), default=1)

    def pack(
        self, pairs: dict[str, Pair], changes: AdapterWeightChanges | None = None, widest: int | None = None
    ) -> Adapter:
        """widest: rank of the widest pair, where others are packed elsewhere."""
        extras = AdapterExtras() if changes is None else self._extras(changes)
        widest = widest_rank_of(pairs) if widest is None else widest
        rank = max(8, -(-widest // 8) * 8)
        taken = [site for site in self._sites if any(module in pairs for module in site.modules)]
        places, end = np.full(len(self._sites), ABSENT, np.int64), 0
        for site in taken:
            places[site.number], end = end, end + size_of(site, rank)
        memory = (
            self._memory(end * self._dtype.itemsize).view(self._dtype) if end else torch.zeros(0, dtype=self._dtype)
        )
        scales = np.zeros((len(self._sites), self._most), np.float32)
        for site in taken:
            if not _fills(pairs, site, rank):
                memory[places[site.number] :][: size_of(site, rank)] = 0
            self._fill(pair_of(memory, int(places[site.number]), site, rank), site, pairs, scales[site.number])
        return Adapter(
            _digest(memory, places, scales, rank, extras),
            rank,
            memory,
            places,
            scales,
            widest,
            extras,
            tuple(extras.kinds),
            extras.bytes,
        )

    def _extras(self, changes: AdapterWeightChanges) -> AdapterExtras:
        return AdapterExtras(
            self._by_site(changes.gains),
            self._by_site(changes.offsets),
            changes.embedding,
            changes.head,
            self._mixtures(changes.mixtures),
        )

    def _by_site(self, values: dict[str, Tensor]) -> dict[int, Tensor]:
        """values: of the modules' outputs; zeros for modules that lack."""
        found = {}
        for site in self._sites:
            if any(module in values for module in site.modules):
                found[site.number] = whole = torch.zeros(site.outputs)
                for piece, module in enumerate(site.modules):
                    ours = outputs_of(site, piece)
                    whole[ours] = values[module][torch.from_numpy(site.row_of)[ours]] if module in values else 0.0
        return found

    def _mixtures(self, pairs: dict[str, list[Pair]]) -> dict[int, Mixture]:
        found: dict[int, Mixture] = {}
        for module, several in pairs.items():
            assert self._model is not None
            if (target := expert_modules_of(self._model).modules.get(module)) is not None:  # otherwise another rank's
                deltas = [
                    LowRankDelta(target.start, first, second, scale, target.rows) for first, second, scale in several
                ]
                found.setdefault(target.layer, {}).setdefault(target.key, []).extend(deltas)
        return found

    def _fill(self, into: tuple[Tensor, Tensor], site: AdapterSite, pairs: dict[str, Pair], scales: np.ndarray) -> None:
        a, b = into
        for piece, module in enumerate(site.modules):
            if module not in pairs:
                continue
            first, second, scales[piece] = pairs[module]
            a[piece, : len(first)] = first
            ours, rows = self._rows_of(site, piece)
            b[: len(first), ours] = second.to(b.dtype)[rows].T

    def _rows_of(self, site: AdapterSite, piece: int) -> tuple[Tensor | slice, Tensor | slice]:
        key = site.number, piece
        if key not in self._rows:
            ours = outputs_of(site, piece)
            self._rows[key] = _run(ours), _run(torch.from_numpy(site.row_of)[ours])
        return self._rows[key]


def _fills(pairs: dict[str, Pair], site: AdapterSite, rank: int) -> bool:
    """Whether the pairs leave nothing of the site's memory as it was."""
    whole = all(module in pairs and len(pairs[module][0]) == rank for module in site.modules)
    return whole and size_of(site, rank) == rank * (len(site.modules) * site.inputs + site.outputs)


def widest_rank_of(pairs: dict[str, Pair]) -> int:
    return max((len(a) for a, *_ in pairs.values()), default=0)


def outputs_of(site: AdapterSite, piece: int) -> Tensor:
    """int64, which of a product's outputs are the module's."""
    return torch.from_numpy(np.flatnonzero(site.piece_of == piece))


def _run(places: Tensor) -> Tensor | slice:
    """The same as a slice where they follow each other: nothing is gathered then."""
    first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
    follow = last - first == len(places) - 1 and bool((places.diff() == 1).all())
    return slice(first, last + 1) if follow else places


def _digest(memory: Tensor, places: np.ndarray, scales: np.ndarray, rank: int, extras: AdapterExtras) -> str:
    found = hashlib.sha256(f"{rank} {memory.dtype} ".encode())
    for part in (places, scales, memory.view(torch.uint8).numpy()):
        found.update(part.tobytes() if part.ndim != 1 or part.dtype != np.uint8 else part.data)
    if extras:
        extras.digest_into(found)
    return found.hexdigest()[:32]
