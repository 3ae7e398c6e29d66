"""What may compute a mixture of experts in place of the reference. Builders of models set these from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..kernels.experts.expert_inputs import StackedExpertWeights


class ExpertPlacement(Protocol):
    """Which experts of a mixture each rank has. See `ExpertParallelPlan`."""

    rank: int
    ordered: bool
    nodes: int
    groups: int
    held: tuple[tuple[int, ...], ...]
    copies: Tensor
    table: Tensor
    shared: Tensor

    @property
    def sizes(self) -> tuple[int, int]: ...

    def place(self, held: Sequence[Sequence[int]]) -> None: ...

    def places(self, chosen: Tensor, counts: Tensor | None) -> Tensor: ...


class ExpertsExecutor(Protocol):
    """Computes this rank's part of a sealed mixture."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""

    def place(self, placement: ExpertPlacement) -> None:
        """Set the placement of experts from now on."""


class ExpertsSource(Protocol):
    """Copies a layer's experts from main memory to the device. See `OffloadedExperts`."""

    def fetch(self, stacks: StackedExpertWeights, experts: Tensor, slots: Tensor | None) -> StackedExpertWeights: ...
