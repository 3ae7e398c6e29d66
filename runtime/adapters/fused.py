"""Adapters by Triton's kernels, on a GPU: eagerly, and within CUDA graphs at fixed addresses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..kernels.adapters import LONG, OUTPUTS, Pairs, expanded, product_of, shrunk, tiles_of
from ..step.adapter_blocks import FEW, MANY, MOST_OF_FEW, Blocks, laid_out
from ..step.adapter_rows import AdapterRows
from ..step.staging import upload, upload_into
from .product import Law
from .sites import Run, Site
from .slots import Slot, Slots


class FusedLaw(Law):
    """See `kernels.adapters`. The slots' tables lie on the device beside the slots."""

    name = "fused"
    capturable = True

    def __init__(self, slots: Slots, sites: tuple[Site, ...]) -> None:
        super().__init__(slots)
        device, count, most = slots.device, max(1, len(slots.slots)), max(len(site.modules) for site in sites)
        self._device, self._slots = device, slots
        tiles: dict[tuple[Run, ...], tuple[Tensor, Tensor]] = {}
        for runs in {site.runs for site in sites}:
            short, long = (torch.from_numpy(tiles_of(list(runs), size)).to(device) for size in (OUTPUTS, LONG))
            tiles[runs] = short, long
        self._products = [product_of(site.number, len(site.modules), site.inputs, site.outputs, *tiles[site.runs]) for site in sites]
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None
        memory = slots.slots[0].memory if slots.slots else torch.zeros(1, device=device)
        self.pairs = Pairs(
            memory,
            torch.full((count, len(sites)), -1, dtype=torch.int64, device=device),
            torch.zeros(count, dtype=torch.int32, device=device),
            torch.zeros(count, len(sites), most, dtype=torch.float32, device=device),
            max((slot.rank for slot in slots.slots), default=0),
        )
        slots.placed = self._placed  # type: ignore[method-assign]

    def begin(self, rows: AdapterRows) -> None:
        super().begin(rows)
        if rows.device is None:
            rows.device = {len(slots): self._blocks(slots) for slots in (rows.wanted, rows.tokens)}

    def begin_product(self, x: Tensor, site: Site) -> Tensor:
        """A x. Within a graph it is computed beside the base's product."""
        product, rows = self._products[site.number], self.rows.device[len(x)]
        if self._beside is None or not torch.cuda.is_current_stream_capturing():
            return shrunk(x, product, self.pairs, rows)
        self._beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._beside):
            return shrunk(x, product, self.pairs, rows)

    def add(self, y: Tensor, x: Tensor, site: Site, begun: Tensor | None = None) -> Tensor:
        if begun is None:
            begun = self.begin_product(x, site)
        if self._beside is not None and torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._device).wait_stream(self._beside)
        return expanded(y, begun, self._products[site.number], self.pairs, self.rows.device[len(x)])

    def _blocks(self, slots: np.ndarray) -> Blocks:
        rows = FEW if len(slots) <= MOST_OF_FEW else MANY
        order, table = laid_out(slots, rows)
        packed = upload(np.concatenate([table.ravel(), order]), self._device)
        return Blocks(packed[table.size :], packed[: table.size].view(-1, 3), rows)

    def _placed(self, slot: Slot) -> None:
        """On the stream that copies, which has waited for the steps before."""
        assert slot.there is not None
        shift = (slot.memory.data_ptr() - self.pairs.memory.data_ptr()) // slot.memory.itemsize
        places = slot.there.places
        upload_into(self.pairs.starts[slot.number], np.where(places >= 0, places + shift, -1))
        upload_into(self.pairs.ranks[slot.number : slot.number + 1], np.array([slot.there.rank], np.int32))
        upload_into(self.pairs.scales[slot.number], slot.there.scales)
