"""The model of the steps that have adapters: the base's parts around products that add them.

The base itself is not touched: a step without adapters runs as if there were none.
"""

from __future__ import annotations

import copy
from functools import partial

from torch import Tensor

from ..attention.backend_protocols import AttentionBackend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..layers.linear_layers import Linear, WrappedLinear
from ..models.decoder import Decoder
from ..models.reference.reference_block import ReferenceBlock
from ..models.reference.reference_embedding import TokenEmbedding, known_ids
from ..models.reference.reference_experts import ReferenceExperts
from ..models.reference.tensor_parallel_linear import around
from ..step.step_batch import StepBatch
from .adapted_experts import AdaptedExperts
from .adapter_sites import AdapterSite
from .lora_linear import AdaptedLinear, ReferenceAdapters


class AdaptedModel:
    """Runs steps whose batch says which rows have adapters; made anew when the base's layers are others."""

    def __init__(self, model: Decoder, sites: tuple[AdapterSite, ...], products: ReferenceAdapters) -> None:
        self._base, self._sites, self.products = model, sites, products
        self._made: dict[tuple[bool, bool], Decoder] = {}
        self._of: list[ReferenceBlock] = []

    def forward(
        self, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None = None
    ) -> Tensor:
        """See `Decoder.forward`."""
        assert batch.adapters is not None
        self.products.begin(batch.adapters)
        special = self.products.extras
        return self._model(bool(special), any(extras.mixtures for extras in special)).forward_base(
            batch, attention, memory
        )

    def plain(self) -> Decoder:
        """What runs the steps whose adapters have nothing but pairs."""
        return self._model(False, False)

    def forget(self) -> None:
        """The base's weights are going to be others: nothing here may keep those of before."""
        self._made.clear()
        self._of = []

    def close(self) -> None:
        self._base.adapted = None
        del self._base, self._made, self._of, self.products

    def _model(self, special: bool, mixes: bool) -> Decoder:
        if self._of != self._base.layers:  # those that were loaded anew are others
            self._made.clear()
            self._of = list(self._base.layers)
        if (special, mixes) not in self._made:
            self._made[special, mixes] = self._adapted(special, mixes)
        return self._made[special, mixes]

    def _adapted(self, special: bool, mixes: bool) -> Decoder:
        """special: of steps with adapters that have more than pairs.  mixes: pairs of mixtures of experts
        among it, which kernels compute without adding anything.
        """
        base = self._base
        model = copy.copy(base)
        vars(model).pop("execution_plan", None)
        model.adapted = None
        if special or not self.products.in_step:
            model.step = None
        model.layers = [_copy_of(block) for block in base.layers]
        for site in self._sites:
            holder = getattr(model.layers[site.layer], site.holder)
            setattr(
                holder,
                site.name,
                around(
                    getattr(holder, site.name),
                    partial(AdaptedLinear, site=site, products=self.products, special=special),
                ),
            )
        if special:
            model.embedding, model.head = AdaptedEmbedding(base.embedding, self.products), copy.copy(base.head)
            model.head.product = around(base.head.product, partial(AdaptedHead, products=self.products))
        for block in model.layers if mixes else ():
            if isinstance(block.ffn, ReferenceExperts):
                block.ffn = AdaptedExperts(block.ffn, block.index, self.products)
        return model


def _copy_of(block: ReferenceBlock) -> ReferenceBlock:
    """A separate block around the same weights."""
    copied = copy.copy(block)
    copied.mixer, copied.ffn = copy.copy(block.mixer), copy.copy(block.ffn)
    return copied


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


class AdaptedHead(WrappedLinear):
    """The product of a head."""

    __slots__ = ("_products",)

    def __init__(self, base: Linear, products: ReferenceAdapters) -> None:
        super().__init__(base)
        self._products = products

    def __call__(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        for extras, rows in self._products.rows_with_extras(len(x)):
            if extras.head is not None:
                y[rows] = extras.head.scored(y[rows], x[rows], self.bias)
        return y
