"""Rank 0's view of experts that are whole on ranks:

which rank computed how many rows, and which experts should move.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...attention.attention_layout import listed
from ...models.executor_protocols import ExpertPlacement
from ...models.placement.expert_parallel_plan import rows_of
from ...models.reference.reference_experts import ReferenceExperts
from ..workers.worker_group import RankGroup
from .expert_migration import ExpertMigrationStep, ExpertMigrator, bytes_of, describe_experts_apart
from .expert_placement import Held, balance, keep_in_place, loads, moves, place_experts

MOST = 32 * 2**20  # bytes that go from rank to rank between two steps, or one expert
WORTH = 1.02  # of a layer's fullest rank, how much more it has than it would have: less is not worth moving for


class RebalanceResult(NamedTuple):
    """One rebalancing.

    layers: whose experts moved.  experts, bytes: that went to another place.  seconds: between steps, of rank 0.
    balance_before: of the rows since the one before, how busy ranks were relative to the busiest of each layer, on
    average.
        balance_expected: of the same rows, had experts been placed as they are now.
    """

    layers: int = 0
    experts: int = 0
    bytes: int = 0
    seconds: float = 0.0
    balance_before: float = 1.0
    balance_expected: float = 1.0


class _ExpertLayerBalance:
    """counted: of each expert, how often it was chosen before it last moved.  planned: before `window` was asked last.

    rows: of each rank, before experts last moved.

    part: None while its weights are loaded anew.
    """

    part: ReferenceExperts | None

    def __init__(self, part: ReferenceExperts, ranks: int) -> None:
        self.rows = [0] * ranks
        self.take(part)

    def take(self, part: ReferenceExperts) -> None:
        """Its weights were loaded, and nothing was computed with them."""
        assert part.spread is not None and part.counts is not None
        self.part, self.spread, self._counts = part, part.spread, part.counts
        self.counted = self.planned = [0] * part.part.count

    @property
    def counts(self) -> list[int]:
        found: list[int] = self._counts.tolist()
        return found

    def rows_now(self, part: ReferenceExperts | None = None) -> list[int]:
        """part: the one that is there now, which may be another since weights were loaded."""
        found = [
            sum(pair) for pair in zip(self.rows, rows_of(self.spread.held, self.counted, self.counts), strict=True)
        ]
        if part is None or part is self.part or part.spread is None or part.counts is None:
            return found
        counts = part.counts.tolist()
        return [sum(pair) for pair in zip(found, rows_of(part.spread.held, [0] * len(counts), counts), strict=True)]

    def moving(self) -> None:
        """Its experts are about to move."""
        self.rows, self.counted = self.rows_now(), self.counts

    def let_go(self) -> None:
        """Its weights are going to be others: nothing here keeps those of before."""
        self.moving()
        self.part = None

    @property
    def here(self) -> ReferenceExperts:
        assert self.part is not None
        return self.part

    def window(self) -> list[int]:
        """How often each expert was chosen since this was asked last."""
        before, self.planned = self.planned, self.counts
        return _less(self.planned, before)


class ExpertBalancer:
    """team: the others.

    mover: rank 0's.  last: what the last rebalancing did, once it is done.  Its methods are called between steps.
    """

    def __init__(self, team: RankGroup, mover: ExpertMigrator, ranks: int) -> None:
        self._team, self._mover = team, mover
        self.layers = {index: _ExpertLayerBalance(part, ranks) for index, part in mover.parts.items()}
        self._windows = deque[
            tuple[int, list[int]]
        ]()  # of layers that are still to be planned, how often each expert was chosen
        self._slices = deque[ExpertMigrationStep]()
        self._rows, self._expected = self.rows(), list[list[float]]()
        self._now = self.last = RebalanceResult()
        self.count = self.moved = 0

    @property
    def busy(self) -> bool:
        """Whether a rebalancing is under way."""
        return bool(self._slices or self._windows)

    def look(self) -> None:
        """Where weights were loaded anew, experts are placed as at the start, and may have other forms."""
        fresh = {index: part for index, part in self._mover.parts.items() if part is not self.layers[index].part}
        for index, part in fresh.items():
            self.layers[index].moving()
            self.layers[index].take(part)
        if fresh:
            self._slices.clear()
            self._windows.clear()
            self._together("review", self._mover.review)

    def let_go(self) -> None:
        """Weights are going to be loaded anew."""
        for layer in self.layers.values():
            layer.let_go()
        self._together("drop", self._mover.drop)

    def begin(self) -> None:
        """By what was chosen since the last time."""
        assert not self.busy
        self.look()
        before, self._rows, self._expected = self._rows, self.rows(), []
        self._now = RebalanceResult(
            balance_before=balance([_less(*pair) for pair in zip(self._rows, before, strict=True)])
        )
        self._windows += ((index, self.layers[index].window()) for index in self._mover.movable)
        self._done()

    def turn(self) -> None:
        """The next few experts move, or the next layer is planned:

        a layer that would not gain stays as it is.
        """
        self.look()
        if not self.busy:
            return
        if self._slices:
            self._move(self._slices.popleft())
        else:
            self._plan(*self._windows.popleft())
        self._done()

    def settle(self) -> None:
        """The layer whose experts are on their way is done at once."""
        while self._slices:
            self.turn()

    def _plan(self, index: int, weights: list[int]) -> None:
        layer = self.layers[index]
        held = better(layer.spread, weights)
        self._expected.append(loads(held or layer.spread.held, weights))
        if held is not None:
            self._slices += slices(index, layer.spread.held, held, bytes_of(layer.here))
            self._now = self._now._replace(layers=self._now.layers + 1)

    def _move(self, slice: ExpertMigrationStep) -> None:
        layer, began, count = self.layers[slice.layer], time.perf_counter(), len(slice.moves)
        if slice.held is not None:
            layer.moving()
        slice = slice._replace(chosen=describe_experts_apart(layer.here))
        self._together("move", self._mover.take, slice)
        now, size = self._now, count * bytes_of(layer.here)
        self.moved += count
        self._now = now._replace(
            experts=now.experts + count, bytes=now.bytes + size, seconds=now.seconds + time.perf_counter() - began
        )

    def _together(self, name: str, own: Callable[..., None], *arguments: Any) -> None:
        """On all ranks. Where that breaks off they are no longer at the same place, and all end."""
        self._team.tell(name, *arguments)
        try:
            own(*arguments)
        except BaseException as error:
            self._team.report_failed_step(error)
            raise

    def _done(self) -> None:
        if not self.busy:
            self.last, self.count = self._now._replace(balance_expected=balance(self._expected)), self.count + 1

    def rows(self) -> list[list[int]]:
        """Of each layer with experts, how many pairs of a token and an expert each rank computed."""
        return [self.layers[index].rows_now(part) for index, part in self._mover.parts.items()]

    def places(self) -> dict[str, list[str]]:
        """Of layers whose experts are placed alike, the experts of each rank."""
        found: dict[Held, list[int]] = {}
        for index, part in self._mover.parts.items():
            assert part.spread is not None
            found.setdefault(part.spread.held, []).append(index)
        return {listed(layers): [listed(sorted(own)) for own in held] for held, layers in found.items()}

    @property
    def staged(self) -> int:
        """Bytes of a rank's memory that are taken while the experts of a layer move."""
        return max(max(map(len, layer.spread.held)) * bytes_of(layer.here) for layer in self.layers.values())

    @property
    def fixed(self) -> list[int]:
        """Layers whose experts stay where they are, as they are kept in different forms."""
        return sorted({*self.layers} - {*self._mover.movable})


def better(placement: ExpertPlacement, weights: Sequence[int]) -> Held | None:
    """Where experts should be; None: as they are. weights: how often each was chosen."""
    if not any(weights):
        return None
    nodes = placement.nodes if placement.groups % placement.nodes == 0 else 1
    wanted = place_experts(weights, [*map(len, placement.held)], nodes, placement.groups if nodes > 1 else 1)
    found = keep_in_place(placement.held, wanted, nodes)
    return found if max(loads(placement.held, weights)) > WORTH * max(loads(found, weights)) else None


def slices(layer: int, before: Held, after: Held, expert: int) -> Iterator[ExpertMigrationStep]:
    """expert: bytes of one."""
    wanted, each = moves(before, after), max(1, MOST // expert)
    for start in range(0, len(wanted), each):
        part = tuple(wanted[start : start + each])
        yield ExpertMigrationStep(layer, part, after if start + each >= len(wanted) else None)


def _less(now: Sequence[int], before: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(now, before, strict=True)]
