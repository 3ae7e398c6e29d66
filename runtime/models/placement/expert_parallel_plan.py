"""Which rank computes which row of a mixture whose experts are whole on several ranks, some of them replicated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ..spec.model_spec import ExpertShare

ELSEWHERE = -1
CPU = torch.device("cpu")


class ExpertParallelPlan:
    """One rank's view.

    The copies of an expert are used round-robin: row n of all that ever chose it goes to copy n % copies.
    All ranks count alike, so they agree without communication. held: for each rank the expert of each of its places,
    now.
    copies: int64 [experts].  table: int64 [experts, most copies], the place here of each copy, or ELSEWHERE.  shared:
        int64 [places more than experts], those with copies, then ELSEWHERE.  They keep their addresses: graphs use
        them.
    """

    def __init__(self, held: ExpertShare, count: int, device: torch.device = CPU) -> None:
        self.rank, self._count, self.ordered, self.nodes, self.groups = (
            held.rank,
            count,
            held.ordered,
            held.nodes,
            held.groups,
        )
        more = sum(map(len, held.experts)) - count
        sizes = (count,), (count, 1 + more), (more,)
        self.copies, self.table, self.shared = (torch.empty(size, dtype=torch.int64, device=device) for size in sizes)
        self.place(held.experts)

    @property
    def sizes(self) -> tuple[int, int]:
        """Places of this rank, and of all."""
        return len(self.held[self.rank]), sum(map(len, self.held))

    def place(self, held: Sequence[Sequence[int]]) -> None:
        """Set the placement of experts from now on."""
        self.held = tuple(map(tuple, held))
        where: list[list[int]] = [[] for _ in range(self._count)]
        for rank, own in enumerate(self.held):
            for place, expert in enumerate(own):
                where[expert].append(place if rank == self.rank else ELSEWHERE)
        self.copies.copy_(torch.tensor([len(each) for each in where]))
        self.table.copy_(torch.tensor([_filled(each, self.table.shape[1]) for each in where]))
        self.shared.copy_(
            torch.tensor(
                _filled([expert for expert, each in enumerate(where) if len(each) > 1], len(self.shared)),
                dtype=torch.int64,
            )
        )

    def places(self, chosen: Tensor, counts: Tensor | None) -> Tensor:
        """The place here of each expert that each row chose, or ELSEWHERE. chosen, and the result: int64 [T, k].

        counts: int64 [experts], how often each was chosen, including these rows; None: never before.
        """
        flat = chosen.flatten()
        among = torch.bincount(flat, minlength=self._count)
        order, first = flat.argsort(stable=True), among.cumsum(0) - among
        number = torch.empty_like(flat)
        number[order] = torch.arange(len(flat), device=flat.device) - first[flat[order]]
        if counts is not None:
            number += (counts - among)[flat]
        return self.table[flat, number % self.copies[flat]].view_as(chosen)


def _filled(places: list[int], size: int) -> list[int]:
    return places + [ELSEWHERE] * (size - len(places))


def rows_of(held: Sequence[Sequence[int]], since: Sequence[int], now: Sequence[int]) -> list[int]:
    """For each rank, how many rows it computed with this placement.

    since, now: how often each expert was chosen before and after.
    """
    copies, all_copies = [0] * len(now), Counter(expert for own in held for expert in own)
    found = []
    for own in held:
        rows = 0
        for expert in own:
            rows += _turns(since[expert], now[expert], copies[expert], all_copies[expert])
            copies[expert] += 1
        found.append(rows)
    return found


def _turns(since: int, now: int, copy: int, copies: int) -> int:
    """How many numbers from `since` up to and excluding `now` are `copy` modulo `copies`."""
    return (now - copy - 1) // copies - (since - copy - 1) // copies
