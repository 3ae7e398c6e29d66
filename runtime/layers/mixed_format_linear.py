"""Projections whose rows are of several layers: q and k in one format, v in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .linear_layers import BlockedLinear, Linear

KINDS = {torch.float32: 8, torch.bfloat16: 9}  # of the compiled product, by what is multiplied


def stacked(pieces: Sequence[Linear], rows: Sequence[int], inputs: int, dtype: torch.dtype) -> Linear:
    """The layer of these, whose outputs are concatenated. rows: of each; dtype: of what is multiplied."""
    blocked = [piece for piece in pieces if isinstance(piece, BlockedLinear)]
    if len(blocked) == len(pieces):
        return MixedFormatBlockedLinear(blocked, inputs, dtype)
    return MixedFormatLinear(pieces, sum(rows), inputs, dtype)


class MixedFormatLinear(Linear):
    """y = x W^T + b, each piece with its own rows of W and b, on any device.

    weight: [out, in] without memory, a shape.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[Linear], outputs: int, inputs: int, dtype: torch.dtype) -> None:
        super().__init__(torch.empty(outputs, inputs, dtype=dtype, device="meta"))
        self.pieces = list(pieces)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([piece(x) for piece in self.pieces], 1)

    def tensors(self) -> Iterator[Tensor]:
        for piece in self.pieces:
            yield from piece.tensors()


class MixedFormatBlockedLinear(BlockedLinear):
    """The same of compiled products, in one call: each writes its columns of y."""

    __slots__ = ("_words_of_pieces", "pieces")

    def __init__(self, pieces: Sequence[BlockedLinear], inputs: int, dtype: torch.dtype) -> None:
        self.pieces, self.outputs = list(pieces), sum(piece.outputs for piece in pieces)
        Linear.__init__(self, torch.empty(self.outputs, inputs, dtype=dtype, device="meta"))
        self._words_of_pieces = np.stack([piece.words for piece in pieces])
        self.words = np.array([self._words_of_pieces.ctypes.data, 0, 0, KINDS[dtype], self.outputs, inputs], np.int64)
        self._address = self.words.ctypes.data

    def tensors(self) -> Iterator[Tensor]:
        for piece in self.pieces:
            yield from piece.tensors()


def kinds_of(layer: Linear) -> list[str]:
    """The names of the classes that multiply."""
    pieces = layer.pieces if isinstance(layer, MixedFormatLinear | MixedFormatBlockedLinear) else [layer]
    return list(dict.fromkeys(type(piece).__name__ for piece in pieces))
