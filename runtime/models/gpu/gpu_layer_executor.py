"""What a step on a GPU asks of the executor of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ...attention.backend_protocols import AttentionBackend
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...layers.float8_reference import KVScaleFactors
from ...step.step_batch import StepBatch
from ..reference.reference_block import ReferenceBlock
from ..reference.reference_mixer import ReferenceStep
from .gpu_residual_norm import Pending


@dataclass(frozen=True, slots=True)
class GpuStep:
    """What all layers of a step share.

    keys, values: the pool by layer, [slots, kv_heads, head_dim] each.  scales: what they are divided by, by layer.
    reference, own: what reference layers need: see `attention.GpuStep`, and `PerLayerEmbeddings`.  memory: of the
        states, if layers keep any.
    """

    batch: StepBatch
    attention: AttentionBackend
    keys: Sequence[Tensor] | Mapping[int, Tensor]
    values: Sequence[Tensor] | Mapping[int, Tensor]
    scales: Sequence[KVScaleFactors] | Mapping[int, KVScaleFactors]
    reference: ReferenceStep | None = None
    own: Sequence[Tensor | None] = ()
    memory: RecurrentStateMemory | None = None


class LayerExecutor(Protocol):
    """Computes one layer, by kernels or by torch."""

    @property
    def block(self) -> ReferenceBlock: ...

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """x += delta and what the layer adds; returns x and what is still to be added, of `rows` only if given."""

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        """x += delta; only what later tokens need of x is written."""
