"""What is kept of the inputs of a projection, against all of them."""

from __future__ import annotations

import pytest
import torch

from sgl.runtime.quantization.calibration_statistics import InputHessian, InputMagnitudes

CPU = torch.device("cpu")


def rows(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(count, 24, generator=generator) * 10).to(dtype) for count in (1, 300, 7)]


def test_products_are_added_up() -> None:
    seen = InputHessian(24, CPU)
    for x in rows():
        seen.add(x)
    whole = torch.cat(rows()).double()
    torch.testing.assert_close(seen.sums.double(), whole.t() @ whole, rtol=1e-4, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("percent", [0.01, 50, 99, 99.99, 100])
def test_a_percentile_is_that_of_all_magnitudes(percent: float, dtype: torch.dtype) -> None:
    seen = InputMagnitudes(24, CPU)
    for x in rows(dtype):
        seen.add(x)
    exact = torch.cat(rows(dtype)).float().abs().flatten().sort().values
    place = max(1, -(-len(exact) * percent // 100))
    expected = float(exact[int(place) - 1])
    assert expected <= seen.percentile(percent) <= expected * (1 + 2**-7)
    if dtype == torch.bfloat16:
        assert seen.percentile(percent) == expected


def test_nothing_seen_is_nothing() -> None:
    assert InputMagnitudes(4, CPU).percentile(100) == 0.0
