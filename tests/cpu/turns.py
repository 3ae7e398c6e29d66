"""Ranks that are threads of which one runs at a time: Triton's interpreter knows one kernel at a time."""

from __future__ import annotations

import threading

import torch

from sgl.runtime.kernels.norm import add_rms_norm


class Turns:
    """Ranks that are threads of which one runs at a time, since the interpreter knows one: a rank that waits for the others lets them run."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.turn, self.laid = ranks, threading.Condition(), {}

    def all(self, number: int, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        laid = self.laid.setdefault(number, {})
        laid[rank] = x.clone()
        self.turn.notify_all()
        assert self.turn.wait_for(lambda: len(laid) == self.ranks, 60)
        self.laid.pop(number - 2, None)
        return [laid[each] for each in range(self.ranks)]


class TurnRanks:
    def __init__(self, rank: int, turns: Turns) -> None:
        self.rank, self.ranks, self._turns, self._calls = rank, turns.ranks, turns, 0

    def _all(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._calls += 1
        return self._turns.all(self._calls, self.rank, x)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self._all(x))

    def joined(self, x: torch.Tensor, part: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return add_rms_norm(x, self.summed(part), weight, eps)

    def gathered(self, x: torch.Tensor, columns: int) -> torch.Tensor:
        parts = self._all(x)
        return torch.cat(parts, 1)[:, :columns] if self.rank == 0 else x

    def told(self, x: torch.Tensor) -> None:
        x.copy_(self._all(x)[0])
