"""What follows the sums of a product: scales, norm, bias, residual, activation, and the input of the next norm.

Blocks are [outputs, rows]. The functions are Gluon's: they say which thread has what.
"""

# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..activation_kernels import activated
from ..packed.packed_weight import PackedWeight


class Epilogue(NamedTuple):
    """What a kernel is compiled for, see `quantized_gemm.matmul`.

    biased: with a bias.  parts: of the sums of each row's squares; x is still to be divided by the root of their mean;
        0: it is not.
    added: y += the product.  ready: y times the next norm goes to `after` too, and each tile's sums of y's squares to
        left_squares [output tiles, rows].
    name: of an activation; y = activation(gate) * up.
    """

    biased: bool
    parts: int
    added: bool
    ready: bool
    name: str


class GemmArguments(NamedTuple):
    """A product y [T, out] = x [T, in] W^T and what is fused with it: see `quantized_gemm.matmul`."""

    x: Tensor
    weight: PackedWeight
    y: Tensor
    bias: Tensor | None = None
    squares: Tensor | None = None
    eps: float = 0.0
    added: bool = False
    ready: tuple[Tensor, float] | None = None
    name: str = ""
    overlap: bool = False

    def epilogue(self) -> Epilogue:
        parts = 0 if self.squares is None else len(self.squares)
        return Epilogue(self.bias is not None, parts, self.added, self.ready is not None, self.name)

    def readied(self, tiles: int) -> tuple[Tensor, Tensor]:
        """Uninitialized: y times the next norm, and the squares of each tile of outputs; unused tensors if not
        `ready`.
        """
        left = torch.empty(tiles if self.ready else 0, len(self.x), dtype=torch.float32, device=self.x.device)
        return torch.empty_like(self.y, memory_format=torch.contiguous_format) if self.ready else self.y, left

    def tensors(self, after: Tensor, left: Tensor) -> tuple[Tensor, ...]:
        """Bias, squares, y, norm, after and left_squares, as all kernels take them; those not there are never read."""
        y = self.y
        bias, squares = y if self.bias is None else self.bias, y if self.squares is None else self.squares
        return bias, squares, y, self.ready[0] if self.ready else y, after, left

    def partial(self, numbers: int) -> Tensor:
        """Room for sums of parts of the inputs."""
        return torch.empty(numbers, dtype=torch.float32, device=self.x.device)


@gluon.constexpr_function
def written_layout(outputs, warps):
    """Of [outputs, rows]: outputs are adjacent."""
    lanes = min(32, outputs)
    return gl.BlockedLayout([1, 1], [lanes, 32 // lanes], [1, warps], [0, 1])


@gluon.constexpr_function
def _power(count):
    return 1 << max(0, count - 1).bit_length()


@gluon.jit
def row_factors(squares, rows, eps, INPUTS: gl.constexpr, ROWS: gl.constexpr, PARTS: gl.constexpr, OUT: gl.constexpr):
    """1 / the root of the mean square of each row [1, ROWS], from sums [PARTS, rows] of its squares; 1 if none."""
    if PARTS == 0:
        return 1.0
    else:
        part = gl.arange(0, _power(PARTS), layout=gl.SliceLayout(1, OUT))[:, None]
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))[None, :]
        found = gl.load(squares + part * rows + row, (part < PARTS) & (row < rows), other=0.0)
        return gl.rsqrt(gl.sum(found, 0) / INPUTS + eps)[None, :]


@gluon.jit
def gated(total, OUTPUTS: gl.constexpr, ROWS: gl.constexpr):
    """Both halves of outputs in turns of eight [OUTPUTS, ROWS] -> each [OUTPUTS / 2, ROWS]."""
    turned = gl.permute(gl.reshape(total, [OUTPUTS // 16, 2, 8, ROWS]), [0, 2, 3, 1])
    first, second = gl.split(turned)
    return gl.reshape(first, [OUTPUTS // 2, ROWS]), gl.reshape(second, [OUTPUTS // 2, ROWS])


@gluon.jit
def finished(total, outer, bias, factor, output, OUTER: gl.constexpr, BIASED: gl.constexpr):
    """total times the factors of each output [outputs, 1] and of each row [1, rows], plus the bias."""
    if OUTER:
        total *= gl.load(outer + output)
    total *= factor
    if BIASED:
        total += gl.load(bias + output).to(gl.float32)
    return total


@gluon.jit
def write(
    total,
    tile,
    outer,
    ends,
    factor,
    rows,
    y_stride,
    OUTPUTS: gl.constexpr,
    OUTER: gl.constexpr,
    EPILOGUE: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """total [TILE, ROWS]: of all inputs, in any layout.  ends: see `GemmArguments.tensors`.  OUTPUTS: of all tiles."""
    bias, _, y, norm, after, left_squares = ends
    NAME: gl.constexpr = EPILOGUE.name
    GATED: gl.constexpr = NAME != ""
    HALF: gl.constexpr = OUTPUTS // 2 if GATED else 0
    WIDE: gl.constexpr = TILE // 2 if GATED else TILE
    OUT: gl.constexpr = written_layout(WIDE, WARPS)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))[None, :]
    lane = tile * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(1, OUT))[:, None]
    if GATED:
        gate, up = gated(total, TILE, ROWS)
        output, inside = gl.minimum(lane, HALF - 1), (lane < HALF) & (row < rows)
        gate = finished(gl.convert_layout(gate, OUT), outer, bias, factor, output, OUTER, EPILOGUE.biased)
        up = finished(gl.convert_layout(up, OUT), outer, bias, factor, output + HALF, OUTER, EPILOGUE.biased)
        gl.store(y + row * y_stride + lane, (activated(gate, NAME) * up).to(y.dtype.element_ty), inside)
    else:
        output, inside = gl.minimum(lane, OUTPUTS - 1), (lane < OUTPUTS) & (row < rows)
        total = finished(gl.convert_layout(total, OUT), outer, bias, factor, output, OUTER, EPILOGUE.biased)
        if EPILOGUE.added:
            total += gl.load(y + row * y_stride + lane, inside, other=0.0).to(gl.float32)
        stored = total.to(y.dtype.element_ty)
        gl.store(y + row * y_stride + lane, stored, inside)
        if EPILOGUE.ready:
            rounded = gl.where(inside, stored.to(gl.float32), 0.0)
            weight = gl.load(norm + output).to(gl.float32)
            gl.store(after + row * OUTPUTS + lane, (rounded * weight).to(after.dtype.element_ty), inside)
            row_of = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))
            gl.store(left_squares + tile * rows + row_of, gl.sum(rounded * rounded, 0), row_of < rows)
