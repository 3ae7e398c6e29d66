"""The gated product against torch, on sizes that fill no tile."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

gated = pytest.importorskip("sgl.runtime.kernels.gate_up_gemm")


@pytest.mark.parametrize(("rows", "inner", "inputs"), [(1, 8, 16), (130, 136, 72), (128, 128, 64), (3, 264, 200)])
def test_gated_product(monkeypatch, rows, inner, inputs):
    monkeypatch.setattr(gated, "processors", lambda device: 3)
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, inputs, dtype=torch.float16), torch.randn(2 * inner, inputs, dtype=torch.float16) / 8
    gate, up = F.linear(x.float(), weight.float()).chunk(2, -1)
    torch.testing.assert_close(gated.gate_up(x, weight).float(), F.silu(gate) * up, atol=2e-2, rtol=5e-3)


def test_no_rows():
    assert gated.gate_up(torch.zeros(0, 16), torch.zeros(32, 16)).shape == (0, 16)
