"""The interface of every mixer of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from ...attention.attention_backend import AttentionBackend
from ...cache.recurrent_state_memory import RecurrentStateMemory, StepStates
from ...layers.linear_layers import Linear
from ...layers.rotary_embedding import RopeParameters, RotaryAngles
from ...step.step_batch import StepBatch
from ..spec.weight_targets import WeightTarget


class ReferenceStep(NamedTuple):
    """What all layers of a step share.

    angles: of the step's tokens, by rotation.  states: None if no layer keeps any.
    """

    batch: StepBatch
    attention: AttentionBackend
    angles: dict[RopeParameters, RotaryAngles]
    states: StepStates | None = None


def step_states(batch: StepBatch, memory: RecurrentStateMemory | None) -> StepStates | None:
    """What the layers of a step read and write of the states."""
    if memory is None or batch.state_read is None or batch.state_write is None:
        return None
    return StepStates(memory, batch.state_read.long(), batch.state_write.long())


class ReferenceMixer(Protocol):
    """A layer's mixer in torch, the reference: `output` of the result of `attend` is added to the residual.

    None: the result itself is added.
    """

    @property
    def capturable(self) -> bool:
        """Whether steps of one token a sequence may be CUDA graphs: no synchronization, and no size depends on
        values.
        """

    @property
    def output(self) -> Linear | None: ...

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        """Where the checkpoint's tensors go; prefix: of the layer's names."""

    def products(self) -> Iterator[tuple[object, str]]:
        """The modules that hold each projection, and its name there."""

    def tensors(self) -> Iterator[Tensor]:
        """Tensors in addition to its products."""

    def seal(self) -> None:
        """Bring what was loaded into order, before the products are sealed."""

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        """The projections whose rows `seal` reorders, with the file's row for each of theirs, int64."""

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> [T, inputs of `output`]; what later tokens need of these is written."""
