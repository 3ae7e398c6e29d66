"""Inputs of the kernels for mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..packed.packed_weight import PackedWeight


class ExpertWeights(NamedTuple):
    """Of one product of all experts: weight [experts, outputs, inputs], bias [experts, outputs]."""

    weight: Tensor
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int]:
        count, outputs, inputs = self.weight.shape
        return count, outputs, inputs


class PackedExpertWeights(NamedTuple):
    """The same, quantized: the tensors of `packed` have a first dimension of experts."""

    packed: PackedWeight
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.packed.words.shape[0], self.packed.outputs, self.packed.inputs


@dataclass(frozen=True, slots=True)
class StackedExpertWeights:
    """gate_up: [experts, 2 inner, hidden], gate above up.  down: [experts, hidden, inner].

    name: of the activation.  limit: see `spec.GatedFFNSpec`.
    """

    gate_up: ExpertWeights | PackedExpertWeights
    down: ExpertWeights | PackedExpertWeights
    name: str
    limit: float | None = None

    @property
    def count(self) -> int:
        return self.gate_up.shape[0]

    @property
    def inner(self) -> int:
        return self.down.shape[2]


class SharedExpertOutput(NamedTuple):
    """Added to the experts' outputs: `every` [T, hidden], times the sigmoid of `switch` float32 [T]; and x, in
    place.
    """

    every: Tensor | None = None
    switch: Tensor | None = None
    x: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ExpertSelection:
    """experts: int32 [T, k].  weights: float32 [T, k], of the experts' outputs, or, with `of_input`, of their inputs.

    places: of all ranks, if experts are whole on several: numbers of experts that this one does not have add nothing
        here.
        None: it has all.
    """

    experts: Tensor
    weights: Tensor
    of_input: bool = False
    places: int | None = None

    @property
    def top_k(self) -> int:
        return self.experts.shape[1]

    @property
    def partial(self) -> bool:
        """Whether some of the selected experts may be stored elsewhere."""
        return self.places is not None


def shared_output_arguments(shared_output: SharedExpertOutput, none: Tensor) -> list[Tensor]:
    """As kernels take it: any tensor in place of missing ones."""
    return [none if each is None else each for each in shared_output]


def shared_output_flags(shared_output: SharedExpertOutput) -> dict[str, bool]:
    """Which of them the kernels add."""
    return {
        "SHARED": shared_output.every is not None,
        "SWITCHED": shared_output.switch is not None,
        "ADDED": shared_output.x is not None,
    }
