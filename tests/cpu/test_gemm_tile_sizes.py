"""How products of one row and of few are cut for a GPU: whatever the sizes, all outputs and
inputs have a program, and programs have room.
"""

from __future__ import annotations

import random

import pytest

pytest.importorskip("triton")

from sgl.runtime.kernels.gemv.gemv_launch import (
    BLOCK_BYTES,
    DEEPEST,
    SHARED,
    WORDS_BYTES,
    best_tensor_core_launch,
    divisor,
    tiles_of,
)
from sgl.runtime.kernels.gemv.gemv_launch import steps_of as steps_of_one
from sgl.runtime.kernels.packed.packed_weight import BYTES, NIBBLES
from sgl.runtime.kernels.quantized import split_k_gemm as parts
from sgl.runtime.kernels.quantized.split_k_blocks import block_of, steps_of

PROCESSORS = 132
SIZES = [(6144, 4096), (4096, 14336), (28672, 4096), (57344, 8192), (8192, 28672), (128256, 4096), (16, 64), (72, 192)]


def drawn(count: int) -> list[tuple[int, int]]:
    draw = random.Random(0)
    return [(draw.randrange(8, 40_000), 64 * draw.randrange(1, 900)) for _ in range(count)]


@pytest.mark.parametrize("form", [NIBBLES, BYTES])
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
        tile = parts._best(rows, 12 * dim, 2048, NIBBLES, dim, PROCESSORS)
        assert tile.outputs <= max(dim, parts.SMALLEST.outputs)
        assert tiles_of(12 * dim, dim // 2, tile.outputs) % 12 == 0


@pytest.mark.parametrize("pieces", [0, 1, 2, 4])
@pytest.mark.parametrize("half", [0, 64])
def test_programs_of_one_row_stand_beside_each_other_with_their_rings(half: int, pieces: int) -> None:
    for outputs, inputs in SIZES + drawn(200):
        if (half and outputs % (2 * half)) or inputs > 28_672:
            continue
        launch = best_tensor_core_launch(inputs)
        programs, depth = launch.programs_and_depth(outputs, half, inputs, pieces, PROCESSORS)
        tiles, steps = tiles_of(outputs, half, launch.rows), steps_of_one(inputs, launch.warps)
        ring = max(2, min(depth, steps)) if programs >= tiles else divisor(steps, depth)
        assert 2 <= ring <= DEEPEST and (programs == tiles or (programs < tiles and steps % ring == 0)), (
            outputs,
            inputs,
        )
        beside = min(launch.full, -(-programs // PROCESSORS))
        taken = launch.warps * (steps * BLOCK_BYTES + ring * launch.rows * (WORDS_BYTES + 4 * pieces))
        assert taken * beside < SHARED, (outputs, inputs, programs, depth)
