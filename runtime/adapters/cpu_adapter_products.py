"""Adapters by the compiled kernels (csrc/adapters), on a CPU: alone, and within the compiled step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..layers import cpu_kernels
from ..step.adapter_rows import AdapterRows
from .adapter import ABSENT, Adapter
from .adapter_sites import AdapterSite
from .lora_linear import AdapterResidency, ReferenceAdapters

WORDS = 10  # of the struct Pair
PLACES = {
    ("mixer", "qkv"): 0,
    ("mixer", "output"): 1,
    ("ffn", "gate_up"): 2,
    ("ffn", "up"): 2,
    ("ffn", "down"): 3,
}  # in a layer
SITES = 4
BLOCK = 32


class CpuAdapterProducts(ReferenceAdapters):
    """A row's bits are the same in any batch, in the compiled step and out of it.

    Pairs are packed in their slots, where nothing else reads them.
    """

    name = "compiled"
    fast, in_step = "the compiled step", True

    def __init__(
        self, resident: AdapterResidency, sites: tuple[AdapterSite, ...], layers: int, by_row: bool = False
    ) -> None:
        """layers: of the model, also those that have no site: the step looks at the next product's pair."""
        super().__init__(resident, by_row)
        self._layers = layers
        self._sites = [site for site in sites if not site.by_reference]
        self._apart = [site.number for site in sites if site.by_reference]
        self._runs = [np.array(site.runs, np.int64).ravel() for site in self._sites]
        self._pairs: dict[
            int, tuple[Adapter, np.ndarray]
        ] = {}  # of each slot its last contents, and the structs for them
        self._table = np.zeros(0, np.int64)
        self._begun: AdapterRows | None = None
        self._version = -1
        self._slots: dict[int, np.ndarray] = {}  # of the step at hand, by how many rows

    def begin(self, rows: AdapterRows) -> None:
        if rows is self._begun and self._version == self._resident.version:
            return
        super().begin(rows)
        self._begun, self._version = rows, self._resident.version
        self._slots.clear()
        used = [int(slot) for slot in np.unique(rows.tokens) if slot >= 0]
        table = np.zeros(max(used, default=0) + 1, np.int64)
        for slot in used:
            table[slot] = self._structs(slot).ctypes.data
        self._table = table
        rows.compiled = self._pointer(len(rows.tokens)), table.ctypes.data

    def has_extras(self, adapter: Adapter) -> bool:
        return super().has_extras(adapter) or bool((adapter.places[self._apart] != ABSENT).any())

    def add(self, y: Tensor, x: Tensor, site: AdapterSite, begun: Tensor | None = None) -> Tensor:
        if site.by_reference:
            return super().add(y, x, site)
        x, number = x.contiguous(), site.layer * SITES + PLACES[site.holder, site.name]
        into = y if y.is_contiguous() else y.contiguous()
        cpu_kernels.kernels.adapt(
            cpu_kernels.KINDS[x.dtype],
            self._table.ctypes.data,
            self._pointer(len(x)),
            number,
            len(x),
            site.inputs,
            site.outputs,
            x.data_ptr(),
            into.data_ptr(),
        )
        return into

    def _pointer(self, rows: int) -> int:
        if rows not in self._slots:
            self._slots[rows] = self.rows.of(rows).astype(np.int64)
        return self._slots[rows].ctypes.data

    def _structs(self, slot: int) -> np.ndarray:
        adapter = self._resident.adapter(slot)
        if slot not in self._pairs or self._pairs[slot][0] is not adapter:
            self._pairs[slot] = adapter, self._laid_out(adapter)
        return self._pairs[slot][1]

    def _laid_out(self, adapter: Adapter) -> np.ndarray:
        words = np.zeros((self._layers, SITES, WORDS), np.int64)
        for site, runs in zip(self._sites, self._runs, strict=True):
            if adapter.places[site.number] != ABSENT:
                a, b = adapter.pair(site)
                packed = can_pack(site, a.dtype)
                if packed:
                    pack(a, b)
                scales = adapter.scales[site.number].ctypes.data
                words[site.layer, PLACES[site.holder, site.name]] = (
                    a.data_ptr(),
                    b.data_ptr(),
                    scales,
                    runs.ctypes.data,
                    len(site.runs),
                    adapter.rank,
                    site.inputs,
                    site.outputs,
                    len(site.modules),
                    packed,
                )
        return words


def can_pack(site: AdapterSite, dtype: torch.dtype) -> bool:
    """Whether the kernels take a site's pairs packed, which is faster (csrc/adapters/lora_packed_bf16.c)."""
    whole = site.inputs % BLOCK == 0 and all(run.start % BLOCK == run.stop % BLOCK == 0 for run in site.runs)
    return whole and dtype == torch.bfloat16 and bool(cpu_kernels.kernels.NATIVE_BFLOAT16)


def pack(a: Tensor, b: Tensor) -> None:
    """In place: A [pieces, rank, inputs] becomes [pieces * rank / 8, inputs / 32, 8, 32], B [rank,
    outputs] becomes [outputs / 32, rank / 2, 32, 2].
    """
    (pieces, rank, inputs), outputs = a.shape, b.shape[1]
    a.view(-1).copy_(a.view(pieces * rank // 8, 8, inputs // BLOCK, BLOCK).transpose(1, 2).reshape(-1))
    b.view(-1).copy_(b.view(rank // 2, 2, outputs // BLOCK, BLOCK).permute(2, 0, 3, 1).reshape(-1))
