"""The choice of who adds the adapters' part to the products."""

from __future__ import annotations

from ..layers import cpu
from ..models.decoder import Decoder
from .compiled import CompiledLaw
from .product import Law
from .sites import Site
from .slots import Slots


def law_for(model: Decoder, slots: Slots, sites: tuple[Site, ...], deterministic: bool) -> Law:
    """deterministic: a row's bits must not depend on the others."""
    if model.fused:
        from .fused import FusedLaw  # needs Triton

        return FusedLaw(slots, sites, by_row=deterministic)
    if cpu.can_compute(model.dtype, model.device):
        return CompiledLaw(slots, sites, len(model.layers), by_row=deterministic)
    return Law(slots, by_row=deterministic)
