"""Ranks that are threads of which one runs at a time: Triton's interpreter knows one kernel at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch

from sgl.runtime.kernels.comm import all_reduce
from sgl.runtime.kernels.comm.all_reduce import MOST, AllReduceBuffers, AllReduceSizes
from sgl.runtime.kernels.rms_norm import add_rms_norm
from sgl.runtime.models.gpu import gemv_layers


class Turns:
    """Ranks that are threads of which one runs at a time, since the interpreter knows one:
    a rank that waits for the others lets them run.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks, self.turn, self.laid = ranks, threading.Condition(), {}
        self.memory: list[torch.Tensor] = []  # that all ranks write to

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

    def rooms(self, out: torch.Tensor) -> AllReduceBuffers | None:
        """None: products give their parts."""
        return None

    def gathered(self, x: torch.Tensor, columns: int) -> torch.Tensor:
        parts = self._all(x)
        return torch.cat(parts, 1)[:, :columns] if self.rank == 0 else x

    def broadcast(self, x: torch.Tensor) -> None:
        x.copy_(self._all(x)[0])


@dataclass(frozen=True)
class TurnRooms(AllReduceBuffers):
    owner: TurnRanks


class PostingRanks(TurnRanks):
    """Products of one row send their parts to all."""

    def __init__(self, rank: int, turns: Turns) -> None:
        super().__init__(rank, turns)
        self.posts, self._rooms = 0, None

    def rooms(self, out: torch.Tensor) -> AllReduceBuffers:
        self.posts += 1
        if self._rooms is None:
            sizes, turns = AllReduceSizes(self.ranks, out.shape[1], out.itemsize, 1, 1), self._turns
            turns.memory = turns.memory or [torch.zeros(sizes.bytes // 8, dtype=torch.int64) for _ in range(self.ranks)]
            places = torch.tensor([each.data_ptr() for each in turns.memory])
            self._rooms = TurnRooms(self.rank, sizes, places, torch.zeros(MOST, dtype=torch.int32), self)
        return self._rooms

    @staticmethod
    def patch(monkeypatch: Any) -> None:
        """Who waits lets the others post first."""

        def waits(name: str) -> Any:
            def call(*args: Any) -> Any:
                args[-1].owner._all(torch.zeros(0))
                return getattr(all_reduce, name)(*args)

            return call

        for name in ("sum_of_posted", "add_norm_of_posted"):
            monkeypatch.setattr(gemv_layers, name, waits(name))
