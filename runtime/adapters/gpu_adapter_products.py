"""Adapters by Triton's kernels, on a GPU: eagerly, and within CUDA graphs at fixed addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..kernels.adapters import lora_fused_gemm
from ..kernels.adapters.lora_sgmv import LONG, OUTPUTS, LoraSlots, lora_expand, lora_shrink, product_of, tiles_of
from ..kernels.gemv import gemv_lora
from ..kernels.launch.programmatic_launch import overlaps
from ..layers.linear_layers import Linear
from ..step.adapter_blocks import FEW, MANY, MOST_OF_FEW, AdapterRowBlocks, grouped, rows_by_slot
from ..step.adapter_rows import AdapterRows
from ..step.device_upload import upload, upload_into
from .adapter_sites import AdapterSite, OutputRowRange
from .adapter_slots import AdapterSlot, AdapterSlots
from .lora_linear import ReferenceAdapters

if TYPE_CHECKING:
    from ..kernels.gemv.gemv_lora import GemvLora
    from ..kernels.residual_norm import NormWeights


class GpuAdapterProducts(ReferenceAdapters):
    """See `kernels.adapters`. The tables of the slots are on the device, as the slots are."""

    name = "fused"
    fast, capturable = "CUDA graphs", True

    def __init__(self, slots: AdapterSlots, sites: tuple[AdapterSite, ...], by_row: bool = False) -> None:
        super().__init__(slots)
        device, count, most = (
            slots.device,
            max(1, len(slots.slots)),
            max((len(site.modules) for site in sites), default=1),
        )
        self._device, self._slots, self.places = device, slots, count
        tiles: dict[tuple[OutputRowRange, ...], tuple[Tensor, Tensor, Tensor | None]] = {}
        for runs in {site.runs for site in sites}:
            short, long = (torch.from_numpy(tiles_of(list(runs), size)).to(device) for size in (OUTPUTS, LONG))
            pieces = lora_fused_gemm.pieces_of(list(runs))
            tiles[runs] = short, long, None if pieces is None else torch.from_numpy(pieces).to(device)
        self._products = [
            product_of(site.number, len(site.modules), site.inputs, site.outputs, *tiles[site.runs]) for site in sites
        ]
        shapes = np.array([[len(site.modules), site.inputs, site.outputs] for site in sites], np.int32).reshape(-1, 3)
        self._shapes = torch.from_numpy(shapes).to(device)
        self._side_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        memory = slots.slots[0].memory if slots.slots else torch.zeros(1, device=device)
        self.pairs = LoraSlots(
            memory,
            torch.full((count, len(sites)), -1, dtype=torch.int64, device=device),
            torch.zeros(count, dtype=torch.int32, device=device),
            torch.zeros(count, len(sites), most, dtype=torch.float32, device=device),
            max((slot.rank for slot in slots.slots), default=0),
        )
        self._counters = torch.zeros(
            max(1, len(sites)), dtype=torch.int32, device=device
        )  # see `lora_fused_gemm`; steps follow each other on one stream
        self._folds = not by_row and lora_fused_gemm.can_fuse(
            memory
        )  # how it rounds depends on how many blocks there are
        self._borders = [gemv_lora.piece_starts_of(list(site.runs), site.outputs) for site in sites]
        self.has_gemv = not by_row and gemv_lora.can_add(self.pairs.most_rank)
        self._places: dict[int, Tensor] = {}  # of the step at hand, by how many rows
        self._of_row: Tensor | None = None  # of a step of one row
        self._tell, slots.placed = slots.placed, self._placed  # type: ignore[method-assign]

    def begin(self, rows: AdapterRows) -> None:
        super().begin(rows)
        if rows.device is None:
            rows.device = self.blocks_of(rows)
        self._places.clear()
        alone = self.has_gemv and len(rows.tokens) == 1
        self._of_row = gemv_lora.placed(self.pairs, rows.device[1], self._shapes) if alone else None

    def supports_gemv(self, site: AdapterSite) -> bool:
        return self.has_gemv and self._borders[site.number] is not None

    def pair_of_row(self, x: Tensor, norm: NormWeights | None, site: AdapterSite) -> GemvLora:
        borders = self._borders[site.number]
        assert borders is not None and self._of_row is not None
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return gemv_lora.lora_shrink(x, weight, eps, self._products[site.number], borders, self.pairs, self._of_row)

    def blocks_of(self, rows: AdapterRows) -> dict[int, AdapterRowBlocks]:
        """Of all rows of a step and of those whose logits are wanted, by how many they are."""
        return {len(slots): self._blocks(slots) for slots in (rows.wanted, rows.tokens)}

    def _may_fold(self, count: int, blocks: AdapterRowBlocks) -> bool:
        """Whether products of so many rows go on through the adapters."""
        return self._folds and lora_fused_gemm.supports(count, self.pairs, blocks)

    def product(self, base: Linear, x: Tensor, site: AdapterSite) -> Tensor:
        product, rows = self._products[site.number], self.rows.device[len(x)]
        if (
            self._may_fold(len(x), rows)
            and type(base) is Linear
            and lora_fused_gemm.fits_product(product)
            and not self._changes(site.number)
        ):
            if len(x) not in self._places:
                self._places[len(x)] = lora_fused_gemm.segments_of(self.pairs, rows, self._shapes)
            return lora_fused_gemm.fused_lora_linear(
                x,
                base.weight,
                base.bias,
                product,
                self.pairs,
                rows,
                self._places[len(x)],
                self._counters,
                overlaps(self._device),
            )
        return super().product(base, x, site)

    def _changes(self, site: int) -> bool:
        return any(extras.changes(site) for extras in self.extras)

    def begin_product(self, x: Tensor, site: AdapterSite) -> Tensor:
        """A x. Within a graph it is computed in parallel with the base's product."""
        product, rows = self._products[site.number], self.rows.device[len(x)]
        if self._side_stream is None or not torch.cuda.is_current_stream_capturing():
            return lora_shrink(x, product, self.pairs, rows)
        self._side_stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side_stream):
            return lora_shrink(x, product, self.pairs, rows)

    def add(self, y: Tensor, x: Tensor, site: AdapterSite, begun: Tensor | None = None) -> Tensor:
        if begun is None:
            begun = self.begin_product(x, site)
        if self._side_stream is not None and torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._device).wait_stream(self._side_stream)
        return lora_expand(y, begun, self._products[site.number], self.pairs, self.rows.device[len(x)])

    def _blocks(self, slots: np.ndarray) -> AdapterRowBlocks:
        rows = FEW if len(slots) <= MOST_OF_FEW else MANY
        parts = [np.ravel(part) for part in (*rows_by_slot(slots, rows), *grouped(slots))]
        packed = upload(np.concatenate(parts), self._device)
        order, table, groups, group_of = packed.split([len(part) for part in parts])
        return AdapterRowBlocks(order, table.view(-1, 3), rows, groups, group_of)

    def _placed(self, slot: AdapterSlot) -> None:
        """On the stream that copies, which has waited for the steps before."""
        assert slot.there is not None
        shift = (slot.memory.data_ptr() - self.pairs.memory.data_ptr()) // slot.memory.itemsize
        places = slot.there.places
        upload_into(self.pairs.starts[slot.number], np.where(places >= 0, places + shift, -1))
        upload_into(self.pairs.ranks[slot.number : slot.number + 1], np.array([slot.there.rank], np.int32))
        upload_into(self.pairs.scales[slot.number], slot.there.scales)
        self._tell(slot)
