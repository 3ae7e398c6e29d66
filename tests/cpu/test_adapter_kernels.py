"""The compiled kernels that add adapters to a product, against what they are by definition, on random inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgl.runtime.adapters.cpu_adapter_products import pack
from sgl.runtime.layers import cpu_kernels

pytestmark = pytest.mark.skipif(cpu_kernels.kernels is None, reason="no compiled kernels")
SHAPES = {  # outputs of the pieces, inputs
    "pieces": ((64, 32, 96), 96),
    "one": ((160,), 32),
    "odd": ((35, 12), 50),
    "wide": ((1056,), 64),
}


class Site:
    """Pairs of several adapters for one product, and what they add by definition."""

    def __init__(self, sizes: tuple[int, ...], inputs: int, ranks: list[int], dtype: torch.dtype, packed: bool) -> None:
        self.inputs, self.outputs, self.dtype = inputs, sum(sizes), dtype
        ends = np.cumsum([0, *sizes])
        self._runs = np.array([(piece, ends[piece], ends[piece + 1]) for piece in range(len(sizes))], np.int64)
        self._words, self._kept, self.plain = np.zeros((len(ranks), 10), np.int64), [], []
        for slot, rank in enumerate(ranks):
            a, b = torch.randn(len(sizes), rank, inputs).to(dtype), (torch.randn(rank, self.outputs) / rank).to(dtype)
            scales = np.linspace(0.5, 2.0, len(sizes)).astype(np.float32)
            if slot == 1:
                scales[0] = 0  # a piece that it leaves
            self.plain.append((a.clone(), b.clone(), scales))
            if packed:
                pack(a, b)
            self._kept.append((a, b, scales))
            self._words[slot] = (
                a.data_ptr(),
                b.data_ptr(),
                scales.ctypes.data,
                self._runs.ctypes.data,
                len(sizes),
                rank,
                inputs,
                self.outputs,
                len(sizes),
                packed,
            )
        self._table = np.array([self._words[slot].ctypes.data for slot in range(len(ranks))], np.int64)

    def added(self, x: torch.Tensor, y: torch.Tensor, slots: list[int]) -> torch.Tensor:
        y, rows = y.clone(), np.array(slots, np.int64)
        cpu_kernels.kernels.adapt(
            cpu_kernels.KINDS[self.dtype],
            self._table.ctypes.data,
            rows.ctypes.data,
            0,
            len(x),
            self.inputs,
            self.outputs,
            x.data_ptr(),
            y.data_ptr(),
        )
        return y

    def by_definition(self, x: torch.Tensor, y: torch.Tensor, slots: list[int], rounds: bool) -> torch.Tensor:
        found = y.double()
        for row, slot in enumerate(slots):
            if slot >= 0:
                a, b, scales = self.plain[slot]
                for piece, start, stop in self._runs.tolist():
                    h = a[piece].double() @ x[row].double()
                    h = h.to(self.dtype).double() if rounds else h
                    found[row, start:stop] += float(scales[piece]) * (h @ b[:, start:stop].double())
        return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_get_what_their_adapters_add_and_the_same_bits_in_any_batch(shape, dtype):
    torch.manual_seed(3)
    sizes, inputs = SHAPES[shape]
    whole = inputs % 32 == 0 and all(size % 32 == 0 for size in sizes)
    for packed in (
        (False, True) if whole and dtype == torch.bfloat16 and cpu_kernels.kernels.NATIVE_BFLOAT16 else (False,)
    ):
        site = Site(sizes, inputs, [8, 16, 40], dtype, packed)
        for slots in (
            [0],
            [-1, -1],
            [2, 0, 2, -1, 1, 0, 2],
            [int(slot) for slot in torch.randint(-1, 3, (600,))],
            [1] * 70,
        ):
            x, y = torch.randn(len(slots), inputs).to(dtype), torch.randn(len(slots), site.outputs).to(dtype)
            found = site.added(x, y, slots)
            wanted = site.by_definition(x, y, slots, packed)
            assert (found.double() - wanted).abs().max() <= (
                2e-2 if dtype == torch.bfloat16 else 1e-5
            ) * wanted.abs().max()
            for row in range(0, len(slots), 1 + len(slots) // 9):
                assert torch.equal(
                    site.added(x[row : row + 1].contiguous(), y[row : row + 1].contiguous(), slots[row : row + 1])[0],
                    found[row],
                )
