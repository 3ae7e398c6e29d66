"""The weight of a projection as several tensors of few bits gave it: q, k and v of their own formats, above each other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .grouped import Grouped, stacked


class Coded(NamedTuple):
    """Rows of a projection from `start` on. format: what a checkpoint called it, for people."""

    start: int
    format: str
    weight: Grouped


class Codes:
    """All rows of a projection, or those that came in few bits. pieces: in the order of their rows."""

    def __init__(self, pieces: list[Coded]) -> None:
        self.pieces = sorted(pieces, key=lambda piece: piece.start)

    @property
    def rows(self) -> int:
        """How many from the first on are there without a gap."""
        reached = 0
        for piece in self.pieces:
            reached = reached + piece.weight.shape[0] if piece.start == reached else reached
        return reached

    @property
    def format(self) -> str:
        return " and ".join(dict.fromkeys(piece.format for piece in self.pieces))

    def take(self, rows: Tensor) -> Codes:
        """In another order, which leaves each row in its piece. rows: int64, on the CPU."""
        taken = []
        for start, form, weight in self.pieces:
            order = rows[start : start + weight.shape[0]] - start
            if len(order) and not 0 <= int(order.min()) <= int(order.max()) < weight.shape[0]:
                raise ValueError(f"rows {start} to {start + weight.shape[0] - 1} are to take rows of another format")
            taken.append(Coded(start, form, weight.take(order.to(weight.codes.device))))
        return Codes(taken)

    def together(self) -> Grouped | None:
        """One weight; None where the pieces are of different forms."""
        return stacked([piece.weight for piece in self.pieces])

    def dense(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([piece.weight.dense(dtype) for piece in self.pieces])
