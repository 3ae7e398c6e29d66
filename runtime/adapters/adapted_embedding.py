"""Embeddings and heads that adapters change, around the base's."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..layers.linear_layers import Linear
from ..models.reference.reference_embedding import TokenEmbedding, known_ids
from ..step.step_batch import StepBatch
from .lora_linear import ReferenceAdapters


class AdaptedEmbedding(TokenEmbedding):
    """See `TokenEmbedding`, whose weights it has."""

    def __init__(self, base: TokenEmbedding, products: ReferenceAdapters) -> None:
        vars(self).update(vars(base))
        self._products = products

    plain = False

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.table.index_select(0, ids)
        return self.placed(self._with_adapters(x if self.scale == 1 else x.mul_(self.scale), ids), positions)

    def changed(self, x: Tensor, batch: StepBatch) -> Tensor:
        return self._with_adapters(x, known_ids(batch))

    def _with_adapters(self, x: Tensor, ids: Tensor) -> Tensor:
        """Rows of adapters that change the embedding anew: looked up, and scaled."""
        for extras, rows in self._products.rows_with_extras(len(ids)):
            if extras.embedding is not None:
                own = ids[rows]
                x[rows] = extras.embedding.looked_up(self.table.index_select(0, own), own) * self.scale
        return x


class AdaptedHead(Linear):
    """The product of a head."""

    __slots__ = ("_base", "_products")

    def __init__(self, base: Linear, products: ReferenceAdapters) -> None:
        super().__init__(base.weight, base.bias)
        self._base, self._products = base, products

    def __call__(self, x: Tensor) -> Tensor:
        y = self._base(x)
        for extras, rows in self._products.rows_with_extras(len(x)):
            if extras.head is not None:
                y[rows] = extras.head.scored(y[rows], x[rows], self.bias)
        return y

    def tensors(self) -> Iterator[Tensor]:
        yield from self._base.tensors()
