"""The model of the steps that have adapters: the base's parts around products that add them.

The base itself is not touched: a step without adapters runs as if there were none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ..attention.attention_backend import AttentionBackend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..layers.linear_layers import Linear
from ..models.decoder import Decoder
from ..models.reference.reference_block import ReferenceBlock
from ..models.reference.reference_embedding import TokenEmbedding, known_ids
from ..models.reference.reference_experts import ReferenceExperts
from ..models.reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN
from ..models.reference.tensor_parallel_linear import around
from ..step.step_batch import StepBatch
from .adapter_extras import LowRankDelta, Mixture
from .adapter_sites import AdapterSite
from .files.expert_adapter_targets import Key, names_of
from .lora_linear import AdaptedLinear, ReferenceAdapters

Expert = ReferenceGatedFFN | ReferencePlainFFN


class AdaptedExperts(ReferenceExperts):
    """See `ReferenceExperts`, whose weights it has.

    added: what the adapter of all rows adds that are computed at the moment.
    """

    def __init__(self, base: ReferenceExperts, layer: int, products: ReferenceAdapters) -> None:
        vars(self).update(vars(base))
        self._base, self._layer, self._products = base, layer, products
        self.added: Mixture = {}
        self.experts = [self._around(network, index) for index, network in enumerate(base.experts)]
        self.shared = None if base.shared is None else self._around(base.shared, "shared")
        for name in names_of(base):
            setattr(self, name, AdaptedExpertProduct(getattr(base, name), self, ("", name)))

    def inner(self, x: Tensor) -> Tensor:
        own = [
            (extras.mixtures[self._layer], rows)
            for extras, rows in self._products.rows_with_extras(len(x))
            if self._layer in extras.mixtures
        ]
        if not own:
            return self._base.inner(x)
        y, others = torch.empty_like(x), torch.ones(len(x), dtype=torch.bool)
        for self.added, rows in own:
            y[rows], others[rows] = self.by_torch(x[rows]), False
        if others.any():
            y[others] = self._base.here(x[others])
        return y if self.ranks is None else self.ranks.summed(y)

    def more(self, key: Key) -> Sequence[LowRankDelta]:
        """What is added to a product of the expert in this place, or of what is no expert's."""
        place, name = key
        if self.spread is not None and isinstance(place, int):
            place = self.spread.held[self.spread.rank][place]
        return self.added.get((place, name), ())

    def _around(self, network: Expert, key: int | str) -> Expert:
        found = copy.copy(network)
        for name in names_of(network):
            setattr(found, name, AdaptedExpertProduct(getattr(network, name), self, (key, name)))
        return found


class AdaptedExpertProduct(Linear):
    """A product of a mixture."""

    __slots__ = ("_base", "_key", "_mixture")

    def __init__(self, base: Linear, mixture: AdaptedExperts, key: Key) -> None:
        super().__init__(base.weight, base.bias)
        self._base, self._mixture, self._key = base, mixture, key

    def __call__(self, x: Tensor) -> Tensor:
        y = self._base(x)
        for delta in self._mixture.more(self._key):
            y = added(y, x, delta)
        return y

    def tensors(self) -> Iterator[Tensor]:
        yield from self._base.tensors()


def added(y: Tensor, x: Tensor, delta: LowRankDelta) -> Tensor:
    """y [T, outputs] with what a pair makes of x [T, inputs]."""
    more = ((x @ delta.first.T.to(x.dtype)) @ delta.second.T.to(x.dtype)) * delta.scale
    if delta.rows is not None:
        return y.index_add(1, delta.rows, more)
    y[:, delta.start : delta.start + more.shape[1]] += more
    return y


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
