"""What every mixer of a layer has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from ...attention.backend_protocols import AttentionBackend
from ...cache.recurrent_state_memory import RecurrentStateMemory, StepStates
from ...layers.linear_layers import Linear
from ...layers.rope_parameters import RopeParameters
from ...layers.rotary_embedding import RotaryAngles
from ...step.step_batch import StepBatch
from ..spec.weight_targets import WeightTarget
from .reference_module import ReferenceModule


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


class ReferenceMixer(ReferenceModule):
    """A layer's mixer in torch, the reference: `output` of the result of `attend` is added to the residual.

    None: the result itself is added.  capturable: steps of one token a sequence may be CUDA graphs: no synchronization,
    and no size depends on values.
    """

    capturable = True
    output: Linear | None

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        """Where the checkpoint's tensors go; prefix: of the layer's names."""
        raise NotImplementedError

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> [T, inputs of `output`]; what later tokens need of these is written."""
        raise NotImplementedError


class ProjectedMixer(ReferenceMixer):
    """One that has `output`."""

    output: Linear
