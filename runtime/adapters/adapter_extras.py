"""What an adapter may have besides the pairs of its layers: factors and biases of products, and changes of the
embedding and the head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .files.expert_adapter_targets import Key

ALIGNED = 64  # bytes that each tensor of one piece begins at a multiple of
DORA, BIASES = "DoRA", "biases"  # for people; both are laid out with the base's weights
Move = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AdaptedEmbeddingTable:
    """An embedding [vocabulary, hidden], or a head of that shape, as an adapter has it.

    whole: in place of the base's.  first [rank, inputs], second [outputs, rank]: scale * second first more, of the
        head; of the embedding
    its transpose.  rows: int64 [n], tokens whose rows are those of `values` [n, hidden].
    """

    whole: Tensor | None = None
    first: Tensor | None = None
    second: Tensor | None = None
    scale: float = 1.0
    rows: Tensor | None = None
    values: Tensor | None = None

    def looked_up(self, found: Tensor, ids: Tensor) -> Tensor:
        """found [T, hidden]: the base's rows of the tokens ids [T]."""
        if self.whole is not None:
            found = self.whole.index_select(0, ids)
        if self.first is not None and self.second is not None:
            found = found + (self.first.index_select(1, ids).T @ self.second.T) * self.scale
        if self.rows is not None and self.values is not None:
            hit = ids[:, None] == self.rows[None, :]
            found = torch.where(hit.any(1)[:, None], self.values.index_select(0, hit.int().argmax(1)), found)
        return found

    def scored(self, found: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """found [R, vocabulary]: the base's products with x [R, hidden], bias included."""
        if self.whole is not None:
            found = torch.nn.functional.linear(x, self.whole, bias)
        if self.first is not None and self.second is not None:
            found = found + ((x @ self.first.T) @ self.second.T) * self.scale
        return found

    def moved(self, move: Move) -> AdaptedEmbeddingTable:
        whole, first, second, rows, values = (
            None if part is None else move(part)
            for part in (self.whole, self.first, self.second, self.rows, self.values)
        )
        return AdaptedEmbeddingTable(whole, first, second, self.scale, rows, values)

    def tensors(self) -> Iterator[Tensor]:
        yield from (part for part in (self.whole, self.first, self.second, self.rows, self.values) if part is not None)


Pair = tuple[
    Tensor, Tensor, float
]  # of a module: A [rank, inputs], B [outputs, rank], and what B(Ax) is multiplied with


@dataclass(frozen=True)
class AdapterWeightChanges:
    """What an adapter has besides the pairs of its layers, by modules of the whole model.

    gains, offsets: float32 [outputs] by module, see `AdapterExtras`; of DoRA the other factor is in the pairs.
    mixtures: pairs of the modules of mixtures of experts, of which one may have several.
    """

    gains: dict[str, Tensor] = field(default_factory=dict)
    offsets: dict[str, Tensor] = field(default_factory=dict)
    embedding: AdaptedEmbeddingTable | None = None
    head: AdaptedEmbeddingTable | None = None
    mixtures: dict[str, list[Pair]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.gains or self.offsets or self.embedding or self.head or self.mixtures)


class LowRankDelta(NamedTuple):
    """What a pair adds to the outputs of a product that its module has: scale * second (first x). first: [rank,
    inputs].  second: [outputs, rank].

    start: of the module's outputs the first, which follow each other; or `rows`: int64 [outputs], where each of them
        is.
    """

    start: int
    first: Tensor
    second: Tensor
    scale: float
    rows: Tensor | None = None

    def moved(self, move: Move) -> LowRankDelta:
        return LowRankDelta(
            self.start, move(self.first), move(self.second), self.scale, None if self.rows is None else move(self.rows)
        )


Mixture = dict[Key, list[LowRankDelta]]  # by product


@dataclass(frozen=True)
class AdapterExtras:
    """By number of a site, float32 [outputs]: the base's y becomes y + gain * y + offset, before the pair's part is
    added.

    gains: of DoRA, whose other factor is in the pairs.  offsets: of biases.
    mixtures: by layer, what is added to the products of its mixture of experts.
    piece: uint8, which holds all of it, so that it goes to a GPU as one copy; None: it is stored in separate tensors.
    """

    gains: dict[int, Tensor] = field(default_factory=dict)
    offsets: dict[int, Tensor] = field(default_factory=dict)
    embedding: AdaptedEmbeddingTable | None = None
    head: AdaptedEmbeddingTable | None = None
    mixtures: dict[int, Mixture] = field(default_factory=dict)
    piece: Tensor | None = None

    def __bool__(self) -> bool:
        return bool(self.gains or self.offsets or self.embedding or self.head or self.mixtures)

    def tensors(self) -> Iterator[Tensor]:
        yield from (tensor for _, tensor in self._named())

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    @property
    def kinds(self) -> list[str]:
        """For people."""
        found = {
            DORA: self.gains,
            BIASES: self.offsets,
            "the embedding": self.embedding,
            "the head": self.head,
            "a mixture of experts": self.mixtures,
        }
        return [kind for kind, there in found.items() if there]

    def changes(self, site: int) -> bool:
        return site in self.gains or site in self.offsets

    def changed(self, y: Tensor, site: int) -> Tensor:
        """y [T, outputs], which is not written into."""
        found = y.float()
        if site in self.gains:
            found = found + found * self.gains[site]
        if site in self.offsets:
            found = found + self.offsets[site]
        return found.to(y.dtype)

    def on(self, device: torch.device) -> AdapterExtras:
        """The same there, once what was queued before has run."""
        return (
            self if device.type == "cpu" or not self else self.copied(lambda piece: piece.to(device, non_blocking=True))
        )

    def locked(self) -> AdapterExtras:
        """The same in pages that a GPU copies from by itself."""
        return self.together(True)

    def copied(self, copy: Callable[[Tensor], Tensor]) -> AdapterExtras:
        """The same in a copy of its piece."""
        if self.piece is None:
            return self.together(False).copied(copy)
        start, there = self.piece.data_ptr(), copy(self.piece)
        return self._moved(lambda tensor: _within(there, tensor.data_ptr() - start, tensor), there)

    def together(self, locked: bool) -> AdapterExtras:
        """The same in one piece of memory."""
        apart = {id(tensor): tensor for tensor in self.tensors()}  # some belong to several modules
        starts = list(accumulate((-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in apart.values()), initial=0))
        piece = torch.zeros(starts[-1], dtype=torch.uint8, pin_memory=locked)
        laid = {
            key: _within(piece, start, tensor).copy_(tensor)
            for start, (key, tensor) in zip(starts, apart.items(), strict=False)
        }
        return self._moved(lambda tensor: laid[id(tensor)], piece)

    def _moved(self, move: Move, piece: Tensor | None = None) -> AdapterExtras:
        gains, offsets = ({site: move(each) for site, each in found.items()} for found in (self.gains, self.offsets))
        embedding, head = (None if table is None else table.moved(move) for table in (self.embedding, self.head))
        mixtures = {
            layer: {key: [delta.moved(move) for delta in deltas] for key, deltas in mixture.items()}
            for layer, mixture in self.mixtures.items()
        }
        return AdapterExtras(gains, offsets, embedding, head, mixtures, piece)

    def digest_into(self, found: hashlib._Hash) -> None:
        for name, tensor in self._named():
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        found.update(repr([None if table is None else table.scale for table in (self.embedding, self.head)]).encode())
        found.update(repr([(layer, key, delta.start, delta.scale) for layer, key, delta in self._deltas()]).encode())

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for name, by_site in (("gain", self.gains), ("offset", self.offsets)):
            yield from ((f"{name} {site}", tensor) for site, tensor in sorted(by_site.items()))
        for name, table in (("embedding", self.embedding), ("head", self.head)):
            yield from () if table is None else ((name, tensor) for tensor in table.tensors())
        for layer, key, delta in self._deltas():
            yield from (
                (f"{layer} {key}", tensor) for tensor in (delta.first, delta.second, delta.rows) if tensor is not None
            )

    def _deltas(self) -> Iterator[tuple[int, Key, LowRankDelta]]:
        for layer, mixture in sorted(self.mixtures.items()):
            for key, deltas in sorted(mixture.items(), key=repr):
                yield from ((layer, key, delta) for delta in deltas)


def _within(piece: Tensor, start: int, like: Tensor) -> Tensor:
    """Room for a tensor like this one in a piece of bytes."""
    return piece[start : start + like.nbytes].view(like.dtype).view(like.shape)
