"""Mixtures of experts that adapters add to: the reference computes the rows of such adapters."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ..layers.linear_layers import Linear, WrappedLinear
from ..models.reference.reference_experts import ReferenceExperts
from ..models.reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN
from .adapter_extras import LowRankDelta, Mixture
from .files.expert_adapter_targets import Key, names_of
from .lora_linear import ReferenceAdapters

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


class AdaptedExpertProduct(WrappedLinear):
    """A product of a mixture."""

    __slots__ = ("_key", "_mixture")

    def __init__(self, base: Linear, mixture: AdaptedExperts, key: Key) -> None:
        super().__init__(base)
        self._mixture, self._key = mixture, key

    def __call__(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        for delta in self._mixture.more(self._key):
            y = added(y, x, delta)
        return y


def added(y: Tensor, x: Tensor, delta: LowRankDelta) -> Tensor:
    """y [T, outputs] with what a pair makes of x [T, inputs]."""
    more = ((x @ delta.first.T.to(x.dtype)) @ delta.second.T.to(x.dtype)) * delta.scale
    if delta.rows is not None:
        return y.index_add(1, delta.rows, more)
    y[:, delta.start : delta.start + more.shape[1]] += more
    return y
