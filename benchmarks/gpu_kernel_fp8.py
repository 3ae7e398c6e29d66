"""Float8 weights beside bfloat16: where each way of multiplying is the fastest, and one row's kernels.

ours: what the engine does (rows to float8, then `torch._scaled_mm`); deterministic: rows stay as they are.
Half the FLOP are counted, because float8 multiplies at twice the rate of the roofline's bfloat16.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from gpu_kernel_lab import Lab, Row
from gpu_kernel_matmul import cost, sizes
from gpu_kernel_one_row import KINDS, Layer, OneRow, overlap
from torch import Tensor

from sgl.runtime.kernels.quantize import quantize_rows
from sgl.runtime.layers import float8 as values
from sgl.runtime.quantization.fp8 import Fp8Linear, RowwiseFp8Linear

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
        peer = lab.attempt(f"one row {kind} bfloat16", lambda w, kind=kind: one.run(kind, w), lab.weights(one.sizes[kind]))
        rows.append(Row(kind, "1 row", {"float8": ours}, {"ours in bfloat16": peer}, moved=stored[0][0].nbytes))
    rows.append(_chain(lab, one))
    lab.show("float8, one row", rows)


def _chain(lab: Lab, one: OneRow) -> Row:
    count = lab.sizes.chain
    plain: list[Layer] = [{kind: (lab.random(*one.sizes[kind], scale=0.02), None) for kind in KINDS} for _ in range(count)]
    stored: list[Layer] = [{kind: values.quantize_weight(weight) for kind, (weight, _) in layer.items()} for layer in plain]
    ours = lab.attempt("chain float8", lambda layers: one.chain(layers, one.x), [stored]) / count
    peer = lab.attempt("chain bfloat16", lambda layers: one.chain(layers, one.x), [plain]) / count
    moved = sum(math.prod(one.sizes[kind]) for kind in KINDS)
    return Row("a layer", f"of {count} in a chain", {"float8": ours}, {"ours in bfloat16": peer}, moved=moved)


def _products(lab: Lab, name: str, size: tuple[int, int]) -> list[Row]:
    plain, stored = lab.weights(size), _stored(lab, size)
    layers = [(Fp8Linear(*pair), RowwiseFp8Linear(*pair), pair) for pair in stored]
    return [_product(lab, name, size, rows, plain, layers) for rows in lab.sizes.fp8_rows]


def _product(
    lab: Lab, name: str, size: tuple[int, int], rows: int, plain: list[Tensor], layers: list[tuple[Fp8Linear, RowwiseFp8Linear, Stored]]
) -> Row:
    x, load, label = lab.random(rows, size[1]), lab.load_of(rows), f"{name} {rows} rows"
    x8, scale = quantize_rows(x)
    ours = {
        "float8": lab.attempt(label, lambda w: w[0](x), layers, load),
        "of it rows to float8": lab.attempt(f"{label} quantize_rows", lambda w: quantize_rows(x), layers, load),
        "deterministic": lab.attempt(f"{label} deterministic", lambda w: w[1](x), layers, load),
    }
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
