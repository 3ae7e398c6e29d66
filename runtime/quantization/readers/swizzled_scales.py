"""Scales of blocks in the order in which tensor cores read them (cuBLAS' layout of block scales), and in their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .weight_reader_match import QuantizedModule, TensorHeader, WeightReader

ROWS, COLUMNS = 128, 4  # of a tile
QUARTERS = 4  # of its rows, which are adjacent


def unswizzled(
    module: QuantizedModule, name: str, shape: tuple[int, int]
) -> tuple[QuantizedModule, Callable[[WeightReader], WeightReader]]:
    """The module as if `name` [outputs, groups] were in order, and a function from a claim of that one to a claim of
    this.

    Its shape in the file determines its order.
    """
    found, (rows, columns) = module.siblings[name], _tiles(shape)
    if found.shape != (rows * ROWS // QUARTERS, columns * COLUMNS * QUARTERS):
        return module, lambda claim: claim
    return replace(
        module, siblings={**module.siblings, name: TensorHeader(found.dtype, shape)}
    ), lambda claim: _in_order(claim, name, shape)


def _tiles(shape: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[0] // ROWS), -(-shape[1] // COLUMNS)


def _in_order(claim: WeightReader, name: str, shape: tuple[int, int]) -> WeightReader:
    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        return claim.read({**tensors, name: in_order(tensors[name], shape)})

    return claim._replace(read=read)


def in_order(scales: Tensor, shape: tuple[int, int]) -> Tensor:
    """Tiles of 128 x 4, padded: in each, row 32 q + r of column c is at 16 r + 4 q + c."""
    rows, columns = _tiles(shape)
    tiles = scales.view(rows, columns, ROWS // QUARTERS, QUARTERS, COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows * ROWS, columns * COLUMNS)[: shape[0], : shape[1]].contiguous()
