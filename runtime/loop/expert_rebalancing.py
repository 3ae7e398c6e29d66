"""Experts move between ranks while an engine runs: a few between two steps, on request, or every so many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import RuntimeFailure
from ..parallel.ep.expert_balance import ExpertBalancer


class ExpertRebalancer:
    """On the scheduler thread, between steps.

    every: steps from one rebalancing to the next; None: only when asked.  asleep: whether weights are elsewhere now.
    """

    def __init__(self, experts: ExpertBalancer, every: int | None, asleep: Callable[[], bool]) -> None:
        self._experts, self._every, self._asleep, self._steps = experts, every, asleep, 0

    def rebalance(self, begin: bool) -> dict[str, Any] | None:
        """Move some; what it did once nothing is left, see `RebalanceResult`.

        begin: by what was chosen since the last time, where none is under way.

        Raises RuntimeFailure where the weights are not there to be moved.
        """
        if self._asleep():
            raise RuntimeFailure("the engine sleeps, and its experts are in main memory: wake it before they move")
        if begin and not self._experts.busy:
            self._experts.begin()
        self._experts.turn()
        return None if self._experts.busy else self._experts.last._asdict()

    def settle(self) -> None:
        """Before weights go elsewhere: no rank keeps experts that are on their way."""
        self._experts.settle()

    def stepped(self) -> None:
        """A step was computed."""
        self._steps += 1
        if self._experts.busy:
            self._experts.turn()
        elif self._every is not None and self._steps >= self._every:
            self._steps = 0
            self._experts.begin()
