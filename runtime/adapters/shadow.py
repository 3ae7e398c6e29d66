"""The model of the steps that have adapters: the base's parts around products that add them.

The base itself is not touched: a step without adapters runs as if there were none.
"""

from __future__ import annotations

import copy

from torch import Tensor

from ..attention.base import AttentionBackend
from ..cache.states import StateMemory
from ..models.block import Block
from ..models.decoder import Decoder
from ..step.batch import Batch
from .product import Adapted, Law
from .sites import Site


class Shadow:
    """Runs steps whose batch says which rows have adapters; made anew when the base's layers are others."""

    def __init__(self, model: Decoder, sites: tuple[Site, ...], law: Law) -> None:
        self._base, self._sites, self.law = model, sites, law
        self._made: Decoder | None = None
        self._of: list[Block] = []

    def forward(self, batch: Batch, attention: AttentionBackend, memory: StateMemory | None = None) -> Tensor:
        """See `Decoder.forward`."""
        assert batch.adapters is not None
        self.law.begin(batch.adapters)
        return self._model().forward_base(batch, attention, memory)

    def close(self) -> None:
        self._base.adapted = None
        del self._base, self._made, self._of, self.law

    def _model(self) -> Decoder:
        if self._made is None or self._of != self._base.layers:  # those that were loaded anew are others
            self._made, self._of = self._shadow(), list(self._base.layers)
        return self._made

    def _shadow(self) -> Decoder:
        base = self._base
        model = copy.copy(base)
        vars(model).pop("course", None)
        model.adapted = None
        if not self.law.in_step:
            model.step = None
        model.layers = [_beside(block) for block in base.layers]
        for site in self._sites:
            holder = getattr(model.layers[site.layer], site.holder)
            setattr(holder, site.name, Adapted(getattr(holder, site.name), site, self.law))
        return model


def _beside(block: Block) -> Block:
    """A block of its own around the same weights."""
    beside = copy.copy(block)
    beside.mixer, beside.ffn = copy.copy(block.mixer), copy.copy(block.ffn)
    return beside
