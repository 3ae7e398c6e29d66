"""The weight of a projection from several tensors: q, k and v in different formats, some plain, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .quantized_weight import QuantizedWeight, stacked

PLAIN = "plain rows"


class QuantizedPiece(NamedTuple):
    """Rows of a projection from `start` on. format: the checkpoint's name of it, for people.

    weight: a tensor [rows, in] is dense, which was stored with quantized ones.
    """

    start: int
    format: str
    weight: QuantizedWeight | Tensor

    @property
    def end(self) -> int:
        return self.start + self.weight.shape[0]

    def take(self, rows: Tensor, start: int) -> QuantizedPiece:
        """These of the projection's rows, all of them in here, placed from `start` on."""
        weight = self.weight
        own = (rows - self.start).to(weight.device)
        return QuantizedPiece(start, self.format, weight[own] if isinstance(weight, Tensor) else weight.take(own))


class FusedQuantizedWeight:
    """All rows of a projection. pieces: in the order of their rows."""

    def __init__(self, pieces: Sequence[QuantizedPiece]) -> None:
        self.pieces = sorted(pieces, key=lambda piece: piece.start)

    @classmethod
    def with_dense(cls, pieces: Sequence[QuantizedPiece], dense: Tensor) -> FusedQuantizedWeight:
        """The rows that the pieces leave are those of `dense` [out, in]."""
        starts = [*sorted(piece.start for piece in pieces), len(dense)]
        ends = [0, *sorted(piece.end for piece in pieces)]
        gaps = [
            QuantizedPiece(end, PLAIN, dense[end:start]) for end, start in zip(ends, starts, strict=True) if start > end
        ]
        return cls([*pieces, *gaps])

    @property
    def format(self) -> str:
        return " and ".join(dict.fromkeys(piece.format for piece in self.pieces))

    def take(self, rows: Tensor) -> FusedQuantizedWeight:
        """In another order, some more than once. rows: int64, on the CPU."""
        owners = torch.bucketize(rows, torch.tensor([piece.end for piece in self.pieces]), right=True)
        taken, start = [], 0
        for owner, count in zip(
            *(part.tolist() for part in torch.unique_consecutive(owners, return_counts=True)), strict=True
        ):
            taken.append(self.pieces[owner].take(rows[start : start + count], start))
            start += count
        return FusedQuantizedWeight(taken)

    def together(self) -> list[QuantizedWeight | Tensor]:
        """The pieces, with neighbours of one form merged."""
        found: list[QuantizedWeight | Tensor] = []
        for piece in self.pieces:
            joined = _joined(found[-1], piece.weight) if found else None
            found[len(found) - (joined is not None) :] = [piece.weight if joined is None else joined]
        return found

    def restore(self, to: Tensor) -> None:
        """Write its numbers to [out, in], rounded once."""
        for piece in self.pieces:
            rows = to[piece.start : piece.end]
            if isinstance(piece.weight, Tensor):
                rows.copy_(piece.weight)
            else:
                piece.weight.restore(rows)

    def dense(self, dtype: torch.dtype) -> Tensor:
        weight = self.pieces[0].weight
        out = torch.empty(self.pieces[-1].end, weight.shape[1], dtype=dtype, device=weight.device)
        self.restore(out)
        return out


def _joined(one: QuantizedWeight | Tensor, other: QuantizedWeight | Tensor) -> QuantizedWeight | Tensor | None:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.cat([one, other])
    return stacked([one, other]) if isinstance(one, QuantizedWeight) and isinstance(other, QuantizedWeight) else None
