"""Per-layer token embeddings, added through a gate."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...layers.activation_functions import activated
from ..spec.model_spec import PerLayerEmbeddingsSpec
from ..spec.weight_targets import WeightTarget, matrix, norm_for, norm_places, weight_of


class PerLayerEmbeddingGate:
    """x + norm(up(activation(down(x)) * own)), with `own` [T, width] the layer's embeddings of the tokens (Gemma 4)."""

    def __init__(self, part: PerLayerEmbeddingsSpec, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.part = part
        self.down = matrix(part.width, hidden, False, False, dtype, device)
        self.up = matrix(hidden, part.width, False, False, dtype, device)
        norm = norm_for(part.norm, hidden, device)
        assert norm is not None
        self.norm = norm

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        yield from weight_of(f"{prefix}per_layer_input_gate", self.down)
        yield from weight_of(f"{prefix}per_layer_projection", self.up)
        yield from norm_places(f"{prefix}post_per_layer_input_norm", self.part.norm, self.norm)

    def forward(self, x: Tensor, own: Tensor) -> Tensor:
        y = activated(self.part.activation, self.down(x)).mul_(own)
        return x.add_(self.norm(self.up(y)))
