"""Gate and up projections with the activation in their epilogue, for large batches.

The largest product of a layer writes a third of what it otherwise would, and no kernel reads it back in between. On a
GPU with a power cap this also wins where a library's product alone is as fast: less data movement costs less energy,
and the clock stays higher.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .activation_kernels import activated
from .batch_invariant_matmul import aligned, can_multiply, capability, processors, tile_at
from .launch.compile_ahead import entry

LEAST_ROWS = 256  # below, products are bound by reading the weight and a library splits them better
ROWS, OUTPUTS, DEPTH, GROUP = 128, 128, 64, 16  # of a tile, and row tiles that go through the weight together


@entry
@triton.jit(do_not_specialize=["rows"])
def _gated(
    x,
    weight,
    y,
    rows,
    inner,
    inputs,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    NAME: tl.constexpr,
):
    """y [rows, inner] = activation(x @ gate^T) * (x @ up^T); weight [2 inner, inputs] holds gate above up. Any grid."""
    row_tiles, output_tiles = tl.cdiv(rows, ROWS), tl.cdiv(inner, OUTPUTS)
    for tile in range(tl.program_id(0), row_tiles * output_tiles, tl.num_programs(0)):
        row_tile, output_tile = tile_at(tile, row_tiles, output_tiles, GROUP)
        row, output = row_tile * ROWS, output_tile * OUTPUTS
        gate = tl.zeros((ROWS, OUTPUTS), tl.float32)
        up = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for step in range(tl.cdiv(inputs, DEPTH)):
            left = x.load([row, step * DEPTH])
            gate = tl.dot(left, weight.load([output, step * DEPTH]).T, gate)
            up = tl.dot(left, weight.load([inner + output, step * DEPTH]).T, up)
        y.store([row, output], (activated(gate, NAME) * up).to(y.dtype))


def supports(x: Tensor, weight: Tensor) -> bool:
    """Whether `gate_up` is the fastest for these: large batches of half precision on Hopper or later."""
    return (
        x.shape[0] >= LEAST_ROWS
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.dtype == weight.dtype
        and capability(x.device)[0] >= 9
        and can_multiply(x.shape[1], x.dtype)
        and can_multiply(weight.shape[0] // 2, x.dtype)
    )


def gate_up(x: Tensor, weight: Tensor, name: str = "silu") -> Tensor:
    """x [T, hidden], weight [2 inner, hidden] with gate above up -> activation(gate) * up, [T, inner], rounded once."""
    rows, inputs = x.shape
    inner = weight.shape[0] // 2
    y = x.new_empty(rows, inner)
    if rows:
        tiles = triton.cdiv(rows, ROWS) * triton.cdiv(inner, OUTPUTS)
        _gated[(min(tiles, processors(x.device)),)](
            TensorDescriptor.from_tensor(aligned(x), [ROWS, DEPTH]),
            TensorDescriptor.from_tensor(weight, [OUTPUTS, DEPTH]),
            TensorDescriptor.from_tensor(y, [ROWS, OUTPUTS]),
            rows,
            inner,
            inputs,
            ROWS=ROWS,
            OUTPUTS=OUTPUTS,
            DEPTH=DEPTH,
            GROUP=GROUP,
            NAME=name,
            num_warps=8,
            num_stages=3,
        )
    return y
