"""Float8 weights against bfloat16: where each way of multiplying is the fastest, and the kernels for a batch of one.

float8: what the engine does; rounded rows: rows to float8, then `torch._scaled_mm`; dequantized in registers: rows stay
    as they are, with several tiles where --tune is given; blocks: the same with a scale for each 128 x 128;
deterministic: one order of sums. Half the FLOP are counted, because float8 multiplies at twice the rate of the
    roofline's bfloat16.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from gpu_kernel_few_bits import TILES, tune
from gpu_kernel_lab import Lab, Row
from gpu_kernel_matmul import cost, sizes
from gpu_kernel_one_row import KINDS, Layer, OneRow, overlap
from torch import Tensor

from sgl.runtime.kernels.packed.packed_weight import PackedWeight
from sgl.runtime.kernels.quantized import quantized_gemm
from sgl.runtime.kernels.quantized.quantize_activations import quantize_rows
from sgl.runtime.layers import float8_reference as values
from sgl.runtime.quantization.fp8_linear import Fp8Linear, RowwiseFp8Linear
from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu
from sgl.runtime.quantization.quantized_weight import QuantizedWeight

DEQUANTIZED_ROWS = 256  # up to which that is worth a look
BLOCK = 128
Stored = tuple[Tensor, Tensor]  # float8 [outputs, inputs] and float32 scales [outputs]


@torch.inference_mode()
def measure(lab: Lab) -> None:
    with overlap(True):
        _one_row(lab)
    rows = [row for name, size in sizes(lab).items() for row in _products(lab, name, size)]
    sums = [_sum([row for row in rows if row.case == f"{count} rows"]) for count in lab.sizes.fp8_rows]
    lab.show("float8 products: from 256 rows on under a lasting load", rows + sums)


def _stored(lab: Lab, size: tuple[int, int]) -> list[Stored]:
    """Twice as many as in bfloat16, so that they are as many bytes."""
    return [values.quantize_weight(weight) for weight in lab.weights(size, lab.dtype.itemsize)]


def _one_row(lab: Lab) -> None:
    one, rows = OneRow(lab), []
    for kind in KINDS:
        stored = _stored(lab, one.sizes[kind])
        ours = lab.attempt(f"one row {kind}", lambda w, kind=kind: one.run(kind, *w), stored)
        peer = lab.attempt(
            f"one row {kind} bfloat16", lambda w, kind=kind: one.run(kind, w), lab.weights(one.sizes[kind])
        )
        rows.append(Row(kind, "1 row", {"float8": ours}, {"ours in bfloat16": peer}, moved=stored[0][0].nbytes))
    rows.append(_chain(lab, one))
    lab.show("float8, one row", rows)


def _chain(lab: Lab, one: OneRow) -> Row:
    count = lab.sizes.chain
    plain: list[Layer] = [
        {kind: (lab.random(*one.sizes[kind], scale=0.02), None) for kind in KINDS} for _ in range(count)
    ]
    stored: list[Layer] = [
        {kind: values.quantize_weight(weight) for kind, (weight, _) in layer.items()} for layer in plain
    ]
    ours = lab.attempt("chain float8", lambda layers: one.chain(layers, one.x), [stored]) / count
    peer = lab.attempt("chain bfloat16", lambda layers: one.chain(layers, one.x), [plain]) / count
    moved = sum(math.prod(one.sizes[kind]) for kind in KINDS)
    return Row("a layer", f"of {count} in a chain", {"float8": ours}, {"ours in bfloat16": peer}, moved=moved)


def _products(lab: Lab, name: str, size: tuple[int, int]) -> list[Row]:
    plain, stored = lab.weights(size), _stored(lab, size)
    layers = [(Fp8Linear(*pair), RowwiseFp8Linear(*pair), _in_blocks(*pair)) for pair in stored]
    if lab.tune:
        for rows in TILES:
            tune(lab, f"{name} float8", [layer[0].packed for layer in layers], size, rows, TILES[rows])
            tune(lab, f"{name} float8 blocks", [layer[2] for layer in layers], size, rows, TILES[rows])
    return [_product(lab, name, size, rows, plain, layers) for rows in lab.sizes.fp8_rows]


def _in_blocks(weight: Tensor, scale: Tensor) -> PackedWeight:
    each = scale[:, None].expand(-1, math.ceil(weight.shape[1] / BLOCK)).bfloat16()
    return pack_for_gpu(QuantizedWeight.float8(weight, each, BLOCK), torch.bfloat16)


def _product(
    lab: Lab,
    name: str,
    size: tuple[int, int],
    rows: int,
    plain: list[Tensor],
    layers: list[tuple[Fp8Linear, RowwiseFp8Linear, PackedWeight]],
) -> Row:
    x, load, label = lab.random(rows, size[1]), lab.load_of(rows), f"{name} {rows} rows"
    x8, scale = quantize_rows(x)
    ours = {
        "float8": lab.attempt(label, lambda w: w[0](x), layers, load),
        "rounded rows": lab.attempt(f"{label} rounded", lambda w: w[0]._scaled(*quantize_rows(x)), layers, load),
        "of it rows to float8": lab.attempt(f"{label} quantize_rows", lambda w: quantize_rows(x), layers, load),
        "deterministic": lab.attempt(f"{label} deterministic", lambda w: w[1](x), layers, load),
    }
    if rows <= DEQUANTIZED_ROWS:
        ours["restored in registers"] = lab.attempt(
            f"{label} restored", lambda w: quantized_gemm.product(x, w[0].packed), layers, load
        )
        ours["blocks"] = lab.attempt(f"{label} blocks", lambda w: quantized_gemm.product(x, w[2]), layers, load)
    peers = {
        "bfloat16 cuBLAS": lab.attempt(f"{label} bfloat16", lambda w: F.linear(x, w), plain, load),
        "_scaled_mm alone": lab.attempt(f"{label} _scaled_mm", lambda w: w[0]._scaled(x8, scale), layers, load),
    }
    moved, flops = cost(size, rows, 1, lab.dtype.itemsize)
    return Row(name, f"{rows} rows", ours, peers, moved, flops / 2)


def _sum(rows: list[Row]) -> Row:
    """A layer's four products."""
    first = rows[0]
    ours = {way: sum(row.ours[way] for row in rows) for way in first.ours}
    peers = {way: sum(row.peers[way] for row in rows) for way in first.peers}
    return Row("a layer", first.case, ours, peers, sum(row.moved for row in rows), sum(row.flops for row in rows))
