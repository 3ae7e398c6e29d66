"""What the executors of steps read of a decoder."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..layers.rope_parameters import RopeParameters
from ..layers.rotary_embedding import RotaryEmbedding
from ..step.step_batch import StepBatch
from .reference.reference_block import ReferenceBlock
from .reference.reference_embedding import OutputHead, TokenEmbedding
from .spec.model_spec import ModelSpec


class DecoderParts(Protocol):
    """See `Decoder`."""

    config: ModelSpec
    dtype: torch.dtype
    device: torch.device
    embedding: TokenEmbedding
    layers: list[ReferenceBlock]
    head: OutputHead
    rotaries: dict[RopeParameters, RotaryEmbedding]
    fused: bool

    def embedded(self, batch: StepBatch) -> Tensor: ...

    def finished(self, x: Tensor, batch: StepBatch) -> Tensor: ...

    def pooled(self, hidden: Tensor, batch: StepBatch) -> Tensor: ...

    def no_logits(self) -> Tensor: ...
