"""The deterministic product (a row's bits depend on it and the weight only) against cuBLAS, weights not cached."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from gpu_kernel_lab import Lab, Row

from sgl.runtime.kernels.batch_invariant_matmul import MatmulTile, matmul

NAMES = ("qkv", "output", "gate_up", "down")
TILES = {  # for tuning, by the most rows
    16: (
        MatmulTile(16, 64, 128, 4, 4),
        MatmulTile(16, 64, 128, 6, 4),
        MatmulTile(16, 64, 256, 5, 4),
        MatmulTile(16, 128, 128, 5, 8),
    ),
    64: (
        MatmulTile(64, 64, 64, 6, 4),
        MatmulTile(64, 64, 128, 4, 4),
        MatmulTile(64, 64, 128, 6, 4),
        MatmulTile(64, 128, 64, 5, 8),
    ),
    128: (MatmulTile(128, 64, 64, 6, 4), MatmulTile(128, 64, 128, 4, 4), MatmulTile(128, 128, 64, 4, 8)),
    256: (
        MatmulTile(256, 64, 64, 4, 4),
        MatmulTile(256, 128, 64, 4, 8),
        MatmulTile(128, 64, 64, 6, 4),
        MatmulTile(128, 128, 64, 4, 8, True),
    ),
    2**31: (
        MatmulTile(128, 128, 64, 4, 8, True),
        MatmulTile(256, 128, 64, 4, 8, True),
        MatmulTile(128, 256, 64, 4, 8, True),
    ),
}


def measure(lab: Lab) -> None:
    rows = [_row(lab, name, size, count) for count in lab.sizes.rows for name, size in sizes(lab).items()]
    lab.show("matmul: the deterministic product; from 256 rows on under a lasting load", rows)
    if lab.tune:
        for count in lab.sizes.rows:
            for name, size in sizes(lab).items():
                _tune(lab, name, size, count)


def sizes(lab: Lab) -> dict[str, tuple[int, int]]:
    return dict(zip(NAMES, lab.shape.linears, strict=True))


def cost(size: tuple[int, int], rows: int, weight_bytes: int, row_bytes: int) -> tuple[float, float]:
    """Bytes and FLOP of a product."""
    return math.prod(size) * weight_bytes + rows * sum(size) * row_bytes, 2.0 * rows * math.prod(size)


def _row(lab: Lab, name: str, size: tuple[int, int], rows: int) -> Row:
    weights, x, load = lab.weights(size), lab.random(rows, size[1]), lab.load_of(rows)
    ours = lab.attempt(f"{name} {rows} rows", lambda w: matmul(x, w), weights, load)
    peer = lab.attempt(f"{name} {rows} rows cuBLAS", lambda w: F.linear(x, w), weights, load)
    return Row(
        name,
        f"{rows} rows",
        {"deterministic": ours},
        {"cuBLAS": peer},
        *cost(size, rows, lab.dtype.itemsize, lab.dtype.itemsize),
    )


def _tune(lab: Lab, name: str, size: tuple[int, int], rows: int) -> None:
    """Tiles may replace each other only if their bits are equal."""
    weights, x, load = lab.weights(size), lab.random(rows, size[1]), lab.load_of(rows)
    chosen = matmul(x, weights[0])
    for tile in next(tiles for most, tiles in TILES.items() if rows <= most):
        seconds = lab.attempt(f"{name} {rows} rows {tile}", lambda w, tile=tile: matmul(x, w, tile=tile), weights, load)
        same = not math.isnan(seconds) and torch.equal(matmul(x, weights[0], tile=tile), chosen)
        lab.say(f"  {name} {rows} rows {tile}: {1e6 * seconds:.1f} us, bits {'equal' if same else 'DIFFERENT'}")
