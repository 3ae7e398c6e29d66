"""4-bit and 8-bit weights against bfloat16: from which batch dequantizing for cuBLAS beats the fused product.

With --tune other tiles and other numbers of programs for each multiprocessor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
import triton
from gpu_kernel_lab import Lab, Row
from gpu_kernel_matmul import cost, sizes

from sgl.runtime.kernels.batch_invariant_matmul import processors
from sgl.runtime.kernels.packed.packed_weight import PackedWeight
from sgl.runtime.kernels.quantized import int8_gemm, quantized_gemm, skinny_gemm, wgmma_gemm
from sgl.runtime.kernels.quantized.skinny_gemm import SkinnyGemmTile
from sgl.runtime.kernels.quantized.wgmma_gemm import WgmmaTile
from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu
from sgl.runtime.quantization.quantized_weight import E2M1, QuantizedWeight

TILES = {
    16: ((16, 64, 4, 4), (16, 128, 4, 4), (16, 128, 4, 8), (16, 64, 6, 4)),
    32: ((32, 64, 4, 4), (32, 128, 4, 4), (32, 128, 4, 8), (32, 64, 6, 4)),
    64: ((64, 64, 4, 4), (64, 128, 4, 4), (64, 128, 3, 8)),
    256: ((128, 128, 3, 8), (128, 128, 3, 4), (128, 64, 3, 4), (64, 128, 3, 4)),
}
FULL = (1, 2, 3, 4, 6, 8)
# rows: outputs, parts of the inputs, warps along the outputs, programs a multiprocessor; by the tensor cores alone
CORES = {
    8: (
        (16, 8, 1, 2),
        (16, 8, 1, 3),
        (32, 4, 2, 2),
        (32, 4, 2, 1),
        (32, 8, 1, 2),
        (32, 8, 1, 1),
        (64, 2, 4, 2),
        (64, 4, 2, 2),
        (64, 2, 2, 3),
        (32, 2, 2, 4),
    ),
    16: (
        (16, 8, 1, 2),
        (16, 8, 1, 1),
        (32, 4, 2, 2),
        (32, 4, 2, 1),
        (32, 8, 1, 1),
        (32, 8, 2, 1),
        (64, 2, 4, 2),
        (64, 4, 2, 1),
        (64, 4, 4, 1),
        (64, 2, 2, 3),
        (128, 2, 4, 1),
        (32, 2, 2, 3),
        (64, 1, 4, 3),
        (64, 1, 4, 4),
        (128, 1, 4, 2),
        (128, 2, 2, 2),
        (128, 1, 4, 3),
        (64, 2, 2, 4),
    ),
    32: ((32, 2, 2, 2), (32, 2, 2, 3), (64, 2, 2, 2), (64, 1, 4, 2), (128, 1, 4, 2), (64, 2, 4, 1)),
    64: (
        (32, 4, 2, 1),
        (32, 8, 2, 1),
        (32, 2, 2, 2),
        (32, 4, 1, 1),
        (64, 2, 4, 1),
        (64, 4, 4, 1),
        (64, 2, 4, 2),
        (128, 2, 8, 1),
        (128, 2, 4, 1),
        (128, 1, 8, 1),
        (256, 1, 8, 1),
    ),
}

WIDE = {  # rows: outputs, rows, parts of the inputs, warps, programs a multiprocessor; of wgmma_gemm
    64: (
        (128, 64, 1, 8, 1),
        (128, 64, 1, 8, 2),
        (256, 64, 1, 8, 1),
        (64, 64, 1, 4, 2),
        (128, 64, 2, 8, 1),
        (64, 64, 2, 4, 1),
        (64, 64, 2, 4, 2),
        (128, 64, 4, 8, 1),
        (128, 64, 4, 8, 2),
        (64, 64, 4, 4, 2),
        (128, 64, 8, 8, 2),
    ),
    128: (
        (128, 128, 1, 8, 1),
        (256, 128, 1, 8, 1),
        (128, 128, 1, 8, 2),
        (128, 128, 2, 8, 1),
        (64, 128, 1, 4, 1),
        (64, 128, 2, 4, 1),
        (64, 128, 2, 4, 2),
        (128, 128, 4, 8, 1),
        (64, 128, 4, 4, 2),
    ),
    256: (
        (128, 256, 1, 8, 1),
        (256, 128, 1, 8, 1),
        (128, 128, 1, 8, 1),
        (128, 128, 1, 8, 2),
        (128, 256, 2, 8, 1),
        (256, 128, 2, 8, 1),
        (128, 128, 2, 8, 1),
        (64, 256, 2, 4, 1),
        (128, 256, 4, 8, 1),
        (256, 128, 4, 8, 1),
    ),
    512: ((128, 256, 1, 8, 1), (256, 128, 1, 8, 1), (128, 256, 2, 8, 1), (256, 128, 2, 8, 1)),
    1024: ((128, 256, 1, 8, 1), (256, 128, 1, 8, 1)),
}


def measure(lab: Lab) -> None:
    _compile_ahead(lab)
    rows = [row for name, size in sizes(lab).items() for row in _products(lab, name, size)]
    sums = [_sum([row for row in rows if row.case == f"{count} rows"]) for count in lab.sizes.few_bits_rows]
    lab.show(
        "four bits in groups of 64: restored in registers, or before cuBLAS; from 256 rows on under a lasting load",
        rows + sums,
    )
    lab.show(
        "int8 with a scale an output", [row for name, size in sizes(lab).items() for row in _int8(lab, name, size)]
    )
    lab.show("other forms, fused", [row for form in FORMS for row in _forms(lab, form)])
    if lab.tune:
        for name, size in sizes(lab).items():
            for count in sorted({*TILES, *CORES, *WIDE}):
                tune(lab, name, packed(lab, int4, size), size, count, TILES.get(count, ()))


def int4(outputs: int, inputs: int, group: int = 64) -> QuantizedWeight:
    scale = _scales(outputs, inputs, group)
    return QuantizedWeight(
        _codes(outputs, inputs), scale, min(group, inputs), zero=torch.randint(0, 16, scale.shape, dtype=torch.uint8)
    )


def _codes(outputs: int, inputs: int, levels: int = 16) -> torch.Tensor:
    return torch.randint(0, levels, (outputs, inputs), dtype=torch.uint8)


def _scales(outputs: int, inputs: int, group: int) -> torch.Tensor:
    return (torch.rand(outputs, math.ceil(inputs / group)) / 500 + 1e-4).half()


def _minima(outputs: int, inputs: int, group: int) -> QuantizedWeight:
    scale = _scales(outputs, inputs, group)
    return QuantizedWeight(_codes(outputs, inputs), scale, min(group, inputs), offset=-7 * scale)


def _floats(outputs: int, inputs: int, group: int, **more: torch.Tensor) -> QuantizedWeight:
    return QuantizedWeight(
        _codes(outputs, inputs),
        _scales(outputs, inputs, group).bfloat16(),
        min(group, inputs),
        table=torch.tensor(E2M1),
        **more,
    )


def _float8(outputs: int, inputs: int, group: int) -> QuantizedWeight:
    codes = (_codes(outputs, inputs, 256) & 0xBF).view(torch.float8_e4m3fn)  # no NaN
    return QuantizedWeight.float8(codes, _scales(outputs, inputs, group), min(group, inputs))


FORMS: dict[str, Callable[[int, int], QuantizedWeight]] = {
    "int4, 128": lambda o, i: int4(o, i, 128),
    "int4, 32": lambda o, i: int4(o, i, 32),
    "int4, 128, no zeros": lambda o, i: QuantizedWeight(_codes(o, i), _scales(o, i, 128), min(128, i), zero=8.0),
    "int4, 64, minima": lambda o, i: _minima(o, i, 64),
    "MXFP4": lambda o, i: _floats(o, i, 32),
    "NVFP4": lambda o, i: _floats(o, i, 16, factor=torch.ones(o)),
    "NF4": lambda o, i: QuantizedWeight(
        _codes(o, i), _scales(o, i, 64).bfloat16(), min(64, i), table=torch.linspace(-1, 1, 16) ** 3
    ),
    "int8, an output": lambda o, i: QuantizedWeight(_codes(o, i, 256), _scales(o, i, i), i, 256, zero=128.0),
    "float8, 128": lambda o, i: _float8(o, i, 128),
}


def packed(lab: Lab, make: Callable[[int, int], QuantizedWeight], size: tuple[int, int]) -> list[PackedWeight]:
    """As many bytes as no cache holds."""
    with torch.device(lab.device):
        first = pack_for_gpu(make(*size), lab.dtype)
        more = max(1, math.ceil(lab.sizes.cold / first.words.nbytes) - 1)
        return [first] + [pack_for_gpu(make(*size), lab.dtype) for _ in range(more)]


def _products(lab: Lab, name: str, size: tuple[int, int]) -> list[Row]:
    plain, stored = lab.weights(size), packed(lab, int4, size)
    rows = []
    for count in lab.sizes.few_bits_rows:
        x, load, label = lab.random(count, size[1]), lab.load_of(count), f"{name} {count} rows"
        ours = {"int4": lab.attempt(label, lambda w, x=x: quantized_gemm.matmul(x, w), stored, load)}
        if count >= 256:
            ours["restored"] = lab.attempt(
                f"{label} restored", lambda w, x=x: quantized_gemm.multiply_dequantized(x, w), stored, load
            )
        peers = {"bfloat16 cuBLAS": lab.attempt(f"{label} bfloat16", lambda w, x=x: F.linear(x, w), plain, load)}
        moved, flops = cost(size, count, 1, lab.dtype.itemsize)
        rows.append(Row(name, f"{count} rows", ours, peers, moved - math.prod(size) + size_of(stored[0]), flops))
    return rows


def _int8(lab: Lab, name: str, size: tuple[int, int]) -> list[Row]:
    """restored in registers: rows stay as they are; rounded rows: they become int8 too."""
    plain, stored, rows = lab.weights(size), packed(lab, FORMS["int8, an output"], size), []
    for count in lab.sizes.few_bits_rows:
        x, load, label = lab.random(count, size[1]), lab.load_of(count), f"{name} {count} rows int8"
        ours = {
            "restored in registers": lab.attempt(label, lambda w, x=x: quantized_gemm.matmul(x, w), stored, load),
            "rounded rows": lab.attempt(
                f"{label} rounded", lambda w, x=x: int8_gemm.product(x, w.words, w.outer), stored, load
            ),
        }
        if count >= 256:
            ours["restored"] = lab.attempt(
                f"{label} restored", lambda w, x=x: quantized_gemm.multiply_dequantized(x, w), stored, load
            )
        peers = {"bfloat16 cuBLAS": lab.attempt(f"{label} bfloat16", lambda w, x=x: F.linear(x, w), plain, load)}
        moved, flops = cost(size, count, 1, lab.dtype.itemsize)
        rows.append(Row(name, f"{count} rows", ours, peers, moved - math.prod(size) + size_of(stored[0]), flops))
    return rows


def size_of(packed: PackedWeight) -> int:
    return sum(part.nbytes for part in packed.tensors()) - packed.counters.nbytes


def _forms(lab: Lab, form: str) -> list[Row]:
    size = sizes(lab)["down"]
    stored, rows = packed(lab, FORMS[form], size), []
    for count in lab.sizes.few_bits_rows[::2][:2]:
        x = lab.random(count, size[1])
        ours = {"fused": lab.attempt(f"{form} {count}", lambda w, x=x: quantized_gemm.matmul(x, w), stored)}
        rows.append(
            Row(
                form,
                f"down, {count} rows",
                ours,
                {},
                size_of(stored[0]) + count * sum(size) * 2,
                2.0 * count * math.prod(size),
            )
        )
    return rows


def _sum(rows: list[Row]) -> Row:
    """A layer's four products."""
    first = rows[0]
    ours = {way: sum(row.ours[way] for row in rows) for way in first.ours}
    peers = {way: sum(row.peers[way] for row in rows) for way in first.peers}
    return Row("a layer", first.case, ours, peers, sum(row.moved for row in rows), sum(row.flops for row in rows))


def _compile_ahead(lab: Lab) -> None:
    for size in sizes(lab).values():
        with torch.device(lab.device):
            stored = pack_for_gpu(int4(*size), lab.dtype)
        lab.compile_ahead(
            lambda x=lab.random(count, size[1]), w=stored: quantized_gemm.matmul(x, w)
            for count in lab.sizes.few_bits_rows
        )


def tune(
    lab: Lab,
    name: str,
    stored: list[PackedWeight],
    size: tuple[int, int],
    count: int,
    shapes: Iterable[tuple[int, int, int, int]],
) -> None:
    """shapes: of tiles; rows, outputs, stages and warps. Where the tensor cores'
    own kernel takes the weight its cuts too.
    """
    x, found = lab.random(count, size[1]), []
    tiles: list[quantized_gemm.QuantizedGemmTile | SkinnyGemmTile | WgmmaTile] = list(
        dict.fromkeys(_tile(lab, size, count, full, *shape) for shape in shapes for full in FULL)
    )
    if skinny_gemm.supports_weight(stored[0]):
        tiles += [
            tile for tile in map(SkinnyGemmTile._make, CORES.get(count, ())) if tile.ring(count, stored[0].group) > 1
        ]
    if wgmma_gemm.supports_weight(stored[0]):
        tiles += [
            tile
            for tile in map(WgmmaTile._make, WIDE.get(count, ()))
            if tile.split == 1 or tile.programs(count, size[0]) <= tile.full * processors(lab.device)
        ]
    lab.compile_ahead(lambda tile=tile: quantized_gemm.matmul(x, stored[0], tile=tile) for tile in tiles)
    for tile in tiles:
        seconds = lab.attempt(
            f"{name} {count} rows {tile}",
            lambda w, tile=tile: quantized_gemm.matmul(x, w, tile=tile),
            stored,
            lab.load_of(count) / 4,
        )
        found.append((seconds, tile))
    moved = size_of(stored[0])
    for seconds, tile in sorted(found, key=lambda one: one[0])[:8]:
        lab.say(f"  {name} {count} rows {tile}: {1e6 * seconds:.1f} us, {moved / seconds / 1e12:.2f} TB/s")


def _tile(
    lab: Lab, size: tuple[int, int], count: int, full: int, rows: int, outputs: int, stages: int, warps: int
) -> quantized_gemm.QuantizedGemmTile:
    tiles, blocks = triton.cdiv(size[0], outputs) * triton.cdiv(count, rows), size[1] // 128
    return quantized_gemm.QuantizedGemmTile(
        rows,
        outputs,
        max(1, min(blocks // 2, full * processors(lab.device) // tiles)),
        stages,
        warps,
        apart=count <= 64,
    )
