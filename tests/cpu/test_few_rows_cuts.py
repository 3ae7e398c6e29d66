"""How products of few rows are cut for a GPU: whatever the sizes, all outputs and inputs have a program, and programs have room."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("triton")

from sgl.runtime.kernels import few_rows_parts as parts
from sgl.runtime.kernels.few_rows_parts_kernels import block_of, steps_of
from sgl.runtime.kernels.one_row_launch import SHARED, tiles_of

PROCESSORS = 132
SIZES = [(6144, 4096), (4096, 14336), (28672, 4096), (57344, 8192), (8192, 28672), (128256, 4096), (16, 64), (72, 192)]


def drawn(count: int) -> list[tuple[int, int]]:
    draw = random.Random(0)
    return [(draw.randrange(8, 40_000), 64 * draw.randrange(1, 900)) for _ in range(count)]


@pytest.mark.parametrize("form", ["nibbles", "int8", "e4m3"])
@pytest.mark.parametrize("rows", [2, 8, 9, 16, 32])
def test_every_output_and_input_has_a_program_with_room(rows: int, form: str) -> None:
    for outputs, inputs in SIZES + drawn(60):
        tile = parts._best(parts.columns(rows), outputs, inputs, form, 0, PROCESSORS)
        assert tile.room(parts.columns(rows), inputs, form) <= SHARED // tile.full, (outputs, inputs)
        tiles, blocks = tiles_of(outputs, 0, tile.outputs), -(-inputs // block_of(form))
        stride = tile.stride(tiles, PROCESSORS)
        assert stride * tile.slices <= max(tile.slices, tile.full * PROCESSORS), "all programs are there at once"
        assert 0 < stride <= tiles and -(-tiles // stride) * stride < tiles + stride
        assert steps_of(inputs, form, tile.slices, tile.split) * tile.slices * tile.split >= blocks
        assert tile.outputs // tile.side >= 16 and tile.split * tile.side in (8, 16)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 256])
def test_a_tile_of_heads_lies_within_one(dim: int) -> None:
    for rows in (8, 16, 32):
        tile = parts._best(rows, 12 * dim, 2048, "nibbles", dim, PROCESSORS)
        assert tile.outputs <= max(dim, parts.SMALLEST.outputs)
        assert tiles_of(12 * dim, dim // 2, tile.outputs) % 12 == 0
