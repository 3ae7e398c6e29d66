"""Weights of small floats on the CPU, NF4's tables and float8: the compiled product
in each of its ways against the dense weight.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_int4 import DTYPES, ONCE_ROUNDED, WAYS, best_way, needs_product, normal, threads
from torch import Tensor

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.quantization.cpu_float_linear import FloatBlockedLinear, supports
from sgl.runtime.quantization.quantized_weight import QuantizedWeight

__all__ = ["best_way", "threads"]
FINITE = [byte for byte in range(256) if byte & 127 != 127]  # float8 numbers


def drawn(seed: int) -> QuantizedWeight:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    outputs, inputs, group = (
        rng.choice([1, 5, 32, 70, 100]),
        rng.choice([1, 7, 64, 130, 384]),
        rng.choice([2, 16, 64, 128, 9999]),
    )
    shape, eight = (outputs, -(-inputs // group)), rng.random() < 0.5
    codes = torch.randint(0, 254 if eight else 16, (outputs, inputs), generator=generator)
    return QuantizedWeight(
        torch.tensor(FINITE, dtype=torch.uint8)[codes] if eight else codes.byte(),
        torch.randn(shape, generator=generator).to(rng.choice([torch.float32, torch.float16, torch.bfloat16])),
        group,
        256 if eight else 16,
        factor=torch.rand(outputs, generator=generator) if rng.random() < 0.3 else None,
        table=torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        if eight
        else torch.randn(16, generator=generator),
        order=torch.randperm(inputs, generator=generator) if rng.random() < 0.3 else None,
    )


def in_pairs(weight: QuantizedWeight, dtype: torch.dtype) -> bool:
    """Whether the best way has sums of its own."""
    return dtype == torch.bfloat16 and weight.is_float8 and bool(cpu_kernels.kernels.FLOAT8_PAIRS)


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(30))
def test_every_way_gives_the_same_bits_and_they_are_those_of_the_dense_weight(
    seed: int, dtype: torch.dtype, threads: None, best_way: None
) -> None:
    weight = drawn(seed)
    assert supports(weight) is None
    outputs, inputs = weight.shape
    bias = normal(outputs, seed=seed).to(dtype) if seed % 2 else None
    x, residual = normal(30, inputs, seed=seed + 1).to(dtype), normal(30, outputs, seed=seed + 2).to(dtype)
    layer, dense = FloatBlockedLinear(weight, bias, dtype), weight.dense().double()
    expected = F.linear(x.double(), dense, None if bias is None else bias.double())
    slack = 1e-6 * x.double().abs() @ dense.abs().T + ONCE_ROUNDED[dtype] * expected.abs() + 1e-9
    found = {}
    for way in WAYS:
        cpu_kernels.kernels.set_int4_way(way)
        found[way] = layer(x), layer.added_to(residual.clone(), x)
    assert found[0][0].dtype == dtype and bool(((found[0][0].double() - expected).abs() <= slack).all())
    torch.testing.assert_close(
        found[0][1].double(), expected + residual.double(), rtol=2 * ONCE_ROUNDED[dtype], atol=float(slack.max()) + 1e-5
    )
    if in_pairs(weight, dtype):
        by_pairs = found.pop(2)[0].double()
        assert bool(((by_pairs - expected).abs() <= slack).all())
    assert all(
        torch.equal(one, other) for a, b in itertools.pairwise(found.values()) for one, other in zip(a, b, strict=True)
    )


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_bits_of_a_row_do_not_depend_on_the_batch(seed: int, dtype: torch.dtype, threads: None, best_way: None) -> None:
    weight = drawn(seed)
    layer, x = FloatBlockedLinear(weight, None, dtype), normal(101, weight.shape[1], seed=seed).to(dtype)
    for way in WAYS:
        cpu_kernels.kernels.set_int4_way(way)
        alone = torch.cat([layer(row[None]) for row in x])
        for size in (2, 3, 5, 6, 7, 11, 12, 13, 97, 101):
            rows = torch.from_numpy(np.random.default_rng(size).choice(101, size, replace=False))
            assert torch.equal(layer(x[rows]), alone[rows]), (way, size)
        assert layer(x[:0]).shape == (0, weight.shape[0])


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_float8_stands_for_itself(dtype: torch.dtype, best_way: None) -> None:
    """The smallest have no leading one."""
    codes = torch.tensor(FINITE, dtype=torch.uint8)[:, None].repeat(1, 2)
    codes[:, 0] = codes[:, 0].flip(0)
    layer = FloatBlockedLinear(
        QuantizedWeight.float8(codes.view(torch.float8_e4m3fn), torch.ones(254, 1), 2), None, dtype
    )
    for way in WAYS:
        cpu_kernels.kernels.set_int4_way(way)
        assert torch.equal(layer(torch.eye(2, dtype=dtype)), codes.view(torch.float8_e4m3fn).to(dtype).T)


@needs_product
def test_nan_stays_loud() -> None:
    layer, x = (
        FloatBlockedLinear(
            QuantizedWeight(torch.ones(40, 200, dtype=torch.uint8), torch.ones(40, 1), 200, table=torch.ones(16)),
            None,
            torch.float32,
        ),
        normal(3, 200),
    )
    x[1, 5], x[2, 7] = float("nan"), float("inf")
    found = layer(x)
    assert not bool(found[1:].isfinite().any()) and bool(found[0].isfinite().all())


def of_table(**changes: Tensor | float | int) -> QuantizedWeight:
    parts = {
        "stored": torch.randint(0, 16, (4, 64), dtype=torch.uint8),
        "scale": torch.ones(4, 1),
        "group": 64,
        "table": torch.randn(16),
    } | changes
    return QuantizedWeight(**parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "weight, message",
    [
        (of_table(group=1, scale=torch.ones(4, 64)), "groups of 1 inputs"),
        (of_table(zero=8.0), "floats with zeros or offsets"),
        (of_table(offset=torch.ones(4, 1)), "floats with zeros or offsets"),
        (of_table(levels=256, table=torch.randn(256)), "codes of 256 levels that are no floats"),
        (
            QuantizedWeight.float8(
                torch.full((4, 64), 255, dtype=torch.uint8).view(torch.float8_e4m3fn), torch.ones(4, 1), 64
            ),
            "(NaN)",
        ),
    ],
)
def test_what_the_product_does_not_take_is_said(weight: QuantizedWeight, message: str) -> None:
    assert message in str(supports(weight))
    with pytest.raises(ValueError, match="take GroupedLinear"):
        FloatBlockedLinear(weight, None, torch.float32)
