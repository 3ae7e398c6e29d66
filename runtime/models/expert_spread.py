"""Which rank computes which row of a mixture whose experts lie whole on several ranks, some of them on more than one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from .spec import Held

ELSEWHERE = -1


class Spread:
    """One rank's view. Of an expert with copies each takes its turn: the row number n of all that ever chose it goes to copy n % copies.

    All ranks count alike, so that they agree without a word. held: of each rank the expert of each of its places, as it stands now.
    copies: int64 [experts].  table: int64 [experts, most copies], the place here of each copy, or ELSEWHERE.
    """

    def __init__(self, held: Held, count: int) -> None:
        self.rank, self._count, self.ordered, self.nodes, self.groups = held.rank, count, held.ordered, held.nodes, held.groups
        self.place(held.experts)

    def place(self, held: Sequence[Sequence[int]]) -> None:
        """From now on experts lie so."""
        self.held = tuple(map(tuple, held))
        where: list[list[int]] = [[] for _ in range(self._count)]
        for rank, own in enumerate(self.held):
            for place, expert in enumerate(own):
                where[expert].append(place if rank == self.rank else ELSEWHERE)
        self.copies = torch.tensor([len(each) for each in where])
        self.table = torch.full((self._count, int(self.copies.max())), ELSEWHERE)
        for expert, each in enumerate(where):
            self.table[expert, : len(each)] = torch.tensor(each)

    def places(self, chosen: Tensor, counts: Tensor | None) -> Tensor:
        """Where here each row goes for each of the experts that it chose, or ELSEWHERE. chosen, and what is given: int64 [T, k].

        counts: int64 [experts], how often each was chosen, these rows counted in; None: never before.
        """
        flat = chosen.flatten()
        among = torch.bincount(flat, minlength=self._count)
        order, first = flat.argsort(stable=True), among.cumsum(0) - among
        number = torch.empty_like(flat)
        number[order] = torch.arange(len(flat)) - first[flat[order]]
        if counts is not None:
            number += (counts - among)[flat]
        return self.table[flat, number % self.copies[flat]].view_as(chosen)


def rows_of(held: Sequence[Sequence[int]], since: Sequence[int], now: Sequence[int]) -> list[int]:
    """Of each rank how many rows it computed while experts lay so. since, now: how often each expert was chosen before and behind."""
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
    """How many of the numbers from `since` to the one before `now` are `copy` by modulus."""
    return (now - copy - 1) // copies - (since - copy - 1) // copies
