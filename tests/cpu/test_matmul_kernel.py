"""The product of `kernels.matmul` and the rows of `kernels.quantize`, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

from sgl.runtime.kernels import batch_invariant_matmul as product
from sgl.runtime.kernels.batch_invariant_matmul import MatmulTile, can_multiply, matmul, tile_for
from sgl.runtime.kernels.quantized.quantize_activations import quantize_rows
from sgl.runtime.layers import float8_reference as values

TILES = [
    None,
    MatmulTile(16, 32, 32, 3, 4),
    MatmulTile(16, 16, 64, 3, 4, resident=True),
    MatmulTile(32, 16, 32, 3, 8, True, True),
]
MANTISSA = 0b111  # of a float8 as a byte
HOPPER, SHARED = (9, 0), 227 * 1024  # bytes of shared memory that one program may have there


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float16, 4e-3)])
@pytest.mark.parametrize("rows, outputs, inputs", [(1, 40, 64), (3, 17, 40), (37, 80, 96)])
def test_is_the_product(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, tolerance: float, tile: MatmulTile | None
) -> None:
    x, weight, bias = random(rows, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype, seed=1), random(outputs)
    expected = F.linear(x.double(), weight.double(), bias.to(dtype).double())
    found = matmul(x, weight, bias.to(dtype), tile=tile)
    assert found.dtype == dtype and found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, atol=tolerance * inputs**0.5, rtol=tolerance)


def test_more_row_tiles_than_a_group_and_a_group_that_is_not_full() -> None:
    x, weight = random(16 * (2 * product.GROUP + 3) - 5, 16), random(50, 16, seed=1)
    found = matmul(x, weight, tile=MatmulTile(16, 16, 16, 3, 4, resident=True))
    torch.testing.assert_close(found, x @ weight.t())


def test_no_rows_and_rows_that_lie_apart() -> None:
    weight = random(24, 32, seed=1)
    assert matmul(random(0, 32), weight).shape == (0, 24)
    apart = random(5, 64)[:, 32:]
    torch.testing.assert_close(matmul(apart, weight), apart @ weight.t())
    odd = random(5, 33)[:, 1:]  # begins between two multiples of 16 bytes
    torch.testing.assert_close(matmul(odd, weight), odd @ weight.t())


def test_a_float8_weight_under_scales() -> None:
    x, bias = random(5, 64, dtype=torch.float16), random(48, seed=2)
    weight, scale = values.quantize_weight(random(48, 64, seed=1))
    expected = F.linear(x.float(), weight.float() * scale[:, None], bias)
    torch.testing.assert_close(matmul(x, weight, bias, weight_scale=scale).float(), expected, atol=1e-2, rtol=1e-2)


def test_both_sides_in_float8() -> None:
    weight, scale = values.quantize_weight(random(48, 64, seed=1))
    x, x_scale = values.quantize_rows(random(5, 64) * torch.tensor([1.0, 1e-3, 50.0, 3.0, 7.0])[:, None])
    found = matmul(x, weight, x_scale=x_scale, weight_scale=scale)
    expected = (x.float() * x_scale[:, None]) @ (weight.float() * scale[:, None]).t()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=1e-5, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows, inputs", [(0, 8), (1, 3), (6, 100), (2, 1500)])
def test_quantized_rows_are_those_of_the_definition(rows: int, inputs: int, dtype: torch.dtype) -> None:
    x = random(rows, inputs, dtype=dtype) * 3
    x[1:2] = 0
    found, scale = quantize_rows(x)
    expected, expected_scale = values.quantize_rows(x) if rows else (found, scale)
    assert torch.equal(scale, expected_scale)
    assert near(found, expected)


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal but for what Triton's interpreter rounds otherwise: ties, and carries into the exponent, which it loses.

    The test on a GPU asks for equal bits.
    """
    codes = [numbers.view(torch.uint8).int() for numbers in (found, expected)]
    equal = codes[0] == codes[1]
    fine = equal | ((codes[0] - codes[1]).abs() == 1) | (codes[1] & MANTISSA == 0)
    return bool(fine.all()) and (equal.float().mean() > 0.8 or not found.numel())


def test_quantized_rows_lying_apart() -> None:
    wide = random(4, 64)
    found, scale = quantize_rows(wide[:, :20])
    expected, expected_scale = values.quantize_rows(wide[:, :20].contiguous())
    assert near(found, expected) and torch.equal(scale, expected_scale)


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 128, 129, 256, 1000, 8192])
@pytest.mark.parametrize("outputs", [1024, 4096, 6144, 28672])
def test_tiles_fit_into_shared_memory(rows: int, outputs: int) -> None:
    tile = tile_for(rows, outputs, torch.bfloat16, HOPPER, 132)
    loads = tile.depth * (2 * tile.rows + 2 * tile.outputs) * tile.stages
    written = 2 * tile.rows * tile.outputs
    assert (loads + written if tile.flatten else max(loads, written)) <= SHARED
    assert product._tiles(tile, rows, outputs) <= 132 or tile.rows >= min(rows, 128)


def test_tiles_by_size() -> None:
    def found(rows: int, outputs: int) -> tuple[int, int]:
        tile = tile_for(rows, outputs, torch.bfloat16, HOPPER, 132)
        return tile.rows, tile.outputs

    assert [found(rows, 4096) for rows in (1, 60, 128, 256, 512, 4096)] == [
        (16, 64),
        (64, 64),
        (64, 64),
        (128, 64),
        (128, 128),
        (128, 256),
    ]
    assert [found(rows, 28672) for rows in (1, 60, 128, 256, 4096)] == [
        (16, 64),
        (64, 64),
        (128, 128),
        (256, 128),
        (128, 128),
    ]


def test_one_tile_where_equal_bits_were_not_shown() -> None:
    others = {tile_for(rows, 4096, torch.bfloat16, (8, 9), 132) for rows in (1, 100, 10_000)}
    floats = {tile_for(rows, 4096, torch.float32, HOPPER, 132) for rows in (1, 100, 10_000)}
    assert len(others) == len(floats) == 1


def test_rows_must_be_a_multiple_of_16_bytes() -> None:
    assert can_multiply(24, torch.bfloat16) and not can_multiply(20, torch.bfloat16)
    assert not can_multiply(24, torch.bfloat16, values.FP8)
