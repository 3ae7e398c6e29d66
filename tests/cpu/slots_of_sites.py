"""Products that take adapters, and slots with some random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from sgl.runtime.adapters.adapter import AdapterPacker
from sgl.runtime.adapters.adapter_sites import AdapterSite, OutputRowRange
from sgl.runtime.adapters.adapter_slots import AdapterSlots

if TYPE_CHECKING:
    from sgl.runtime.adapters.gpu_adapter_products import GpuAdapterProducts

CPU = torch.device("cpu")


def site(number: int, inputs: int, sizes: tuple[int, ...]) -> AdapterSite:
    piece_of = np.repeat(np.arange(len(sizes)), sizes)
    row_of = np.concatenate([np.arange(size) for size in sizes])
    borders = np.cumsum([0, *sizes]).tolist()
    runs = tuple(OutputRowRange(i, borders[i], borders[i + 1]) for i in range(len(sizes)))
    return AdapterSite(
        number,
        0,
        "mixer",
        str(number),
        inputs,
        sum(sizes),
        tuple(f"{number}.{i}" for i in range(len(sizes))),
        sizes,
        piece_of,
        row_of,
        runs,
    )


def slots_with(
    dtype: torch.dtype,
    ranks: tuple[int, ...],
    sites: tuple[AdapterSite, ...],
    device: torch.device = CPU,
    most: int = 32,
) -> tuple[AdapterSlots, GpuAdapterProducts]:
    """An adapter of each rank in slots of two classes; the second leaves a piece and a site as they are."""
    from sgl.runtime.adapters.gpu_adapter_products import GpuAdapterProducts  # needs Triton

    slots = AdapterSlots(sites, dtype, device, {8: 2, most: len(ranks)}, False)
    law = GpuAdapterProducts(slots, sites)
    for number, rank in enumerate(ranks):
        torch.manual_seed(number)
        pairs = {
            module: (torch.randn(rank, each.inputs) / 8, torch.randn(size, rank) / 4, 0.5 + number)
            for each in sites
            for module, size in zip(each.modules, each.sizes, strict=True)
            if number != 1 or module in ("0.0", "0.2")
        }
        adapter = AdapterPacker(sites, dtype).pack(pairs)
        assert slots.take(adapter.digest, adapter, False)
    return slots, law
