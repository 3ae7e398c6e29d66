"""Embeddings and heads that adapters change, around the base's."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..layers.linear import Linear
from ..models.embedding import Embedding
from .product import Law


class AdaptedEmbedding(Embedding):
    """See `Embedding`, whose weights it has."""

    def __init__(self, base: Embedding, law: Law) -> None:
        vars(self).update(vars(base))
        self._law = law

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.table.index_select(0, ids)
        for extras, rows in self._law.special_rows(len(ids)):
            if extras.embedding is not None:
                x[rows] = extras.embedding.looked_up(x[rows], ids[rows])
        return self.placed(x if self.scale == 1 else x.mul_(self.scale), positions)


class AdaptedHead(Linear):
    """The product of a head."""

    __slots__ = ("_base", "_law")

    def __init__(self, base: Linear, law: Law) -> None:
        super().__init__(base.weight, base.bias)
        self._base, self._law = base, law

    def __call__(self, x: Tensor) -> Tensor:
        y = self._base(x)
        for extras, rows in self._law.special_rows(len(x)):
            if extras.head is not None:
                y[rows] = extras.head.scored(y[rows], x[rows], self.bias)
        return y

    def tensors(self) -> Iterator[Tensor]:
        yield from self._base.tensors()
