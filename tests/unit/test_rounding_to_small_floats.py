"""Small floats against their rules written out for each number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl.runtime.layers.float8_reference import FP8
from sgl.runtime.quantization.cpu_int4_linear import Int4BlockedLinear, supports
from sgl.runtime.quantization.fp4_fp8_rounding import float8_blocks, mxfp4, nvfp4
from sgl.runtime.quantization.quantized_weight import E2M1, QuantizedWeight

SIZES = {code: abs(value) for code, value in enumerate(E2M1[:8])}


def drawn(seed: int, out: int, inputs: int) -> Tensor:
    """Of several magnitudes, with groups of zeros and numbers halfway between two of e2m1."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, inputs, generator=generator) * torch.logspace(-6, 3, out)[:, None]
    weight[0], weight[1, :32] = 0, 0
    weight[2, :8] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    return weight


def nearest_code(value: float) -> int:
    """Of two that are equally near the even one."""
    size = min(SIZES, key=lambda code: (abs(SIZES[code] - abs(value)), code % 2))
    return size + 8 if value < 0 else size


def scales(weight: QuantizedWeight) -> Tensor:
    """float32 [out, groups], all that multiplies a group."""
    return weight.scale.float() if weight.factor is None else weight.scale.float() * weight.factor[:, None]


@pytest.mark.parametrize("rounding, group", [(mxfp4, 32), (nvfp4, 16)])
@pytest.mark.parametrize("inputs", [32, 96, 100])
def test_each_code_is_the_nearest_under_its_scale(rounding, group: int, inputs: int) -> None:
    weight = drawn(inputs, 6, inputs)
    found = rounding(weight)
    under = weight / scales(found).repeat_interleave(group, 1)[:, :inputs]
    expected = [[nearest_code(value) for value in row] for row in under.tolist()]
    assert found.group == group and found.codes.tolist() == expected
    assert torch.equal(rounding(weight.t().contiguous().t()).codes, found.codes)  # as [in, out] lies in memory
    assert bool(found.dense().isfinite().all()) and not found.dense()[0].any()


def test_a_power_of_two_brings_the_largest_of_a_group_below_seven() -> None:
    weight = drawn(0, 40, 320)
    found = mxfp4(weight)
    peaks = weight.unflatten(1, (-1, 32)).abs().amax(2)
    under = (peaks / found.scale.float())[peaks > 0]
    assert bool((found.scale.float().log2() % 1 == 0).all()) and found.scale.dtype == torch.bfloat16
    assert float(under.min()) >= 3.5 and float(under.max()) < 7
    assert bool((found.scale[peaks == 0] == 1).all())


def test_scales_of_sixteen_are_in_e4m3_under_a_power_of_two() -> None:
    weight = drawn(1, 40, 320)
    found = nvfp4(weight)
    assert found.factor is not None and len(found.factor.unique()) == 1
    whole = float(found.factor[0])
    assert torch.tensor(whole).log2() % 1 == 0 and whole / 2 < float(weight.abs().max()) / (6 * 448) <= whole
    peaks = weight.unflatten(1, (-1, 16)).abs().amax(2)
    assert torch.equal(found.scale.float(), (peaks / (6 * whole)).clamp_min(2.0**-9).to(FP8).float())


def test_weights_that_are_tiny_or_nothing() -> None:
    for rounding in (mxfp4, nvfp4):
        assert not rounding(torch.zeros(3, 40)).dense().any()
        assert bool(rounding(torch.full((2, 32), 1e-38)).dense().isfinite().all())


@pytest.mark.parametrize("out, inputs", [(128, 256), (130, 300), (5, 7)])
def test_blocks_have_a_scale_each(out: int, inputs: int) -> None:
    weight = torch.randn(out, inputs, generator=torch.Generator().manual_seed(out)) * torch.logspace(-3, 3, inputs)
    found = float8_blocks(weight.t().contiguous().t())  # as [in, out] lies in memory
    expected = torch.empty_like(weight)
    for row in range(0, out, 128):
        for column in range(0, inputs, 128):
            part = weight[row : row + 128, column : column + 128]
            scale = part.abs().max() / 448
            expected[row : row + 128, column : column + 128] = (part / scale).to(FP8).float() * scale
    assert torch.equal(found.dense(), expected) and found.is_float8


@pytest.mark.parametrize("rounding, bits", [(mxfp4, 4.5), (nvfp4, 5.0)])
def test_the_compiled_product_keeps_scales_as_halves(rounding, bits: float) -> None:
    weight = rounding(torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) * 0.05)
    assert supports(weight) is None
    kept = Int4BlockedLinear(weight, None, torch.float32)
    assert 8 * kept.weight.nbytes / (64 * 512) == bits
