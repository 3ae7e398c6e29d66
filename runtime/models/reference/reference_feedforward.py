"""Dense feedforward networks of a layer in torch, and the gate of per-layer embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...layers.activation_functions import activated, gated, xielu
from ...layers.linear_layers import Linear
from ..spec.model_spec import GatedFFNSpec, PerLayerEmbeddingsSpec, PlainFFNSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, bias_of, matrix, norm_for, norm_places, weight_of
from .reference_module import ReferenceModule


class ReferenceGatedFFN(ReferenceModule):
    """down(activation(gate) * up), gate above up in `gate_up` [2 inner, hidden]."""

    into = "gate_up"

    def __init__(
        self, part: GatedFFNSpec, names: TensorNames, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self._names = part, names
        self.gate_up = matrix(2 * part.inner, hidden, part.bias, names.transposed, dtype, device)
        self.down = matrix(hidden, part.inner, part.bias, names.transposed, dtype, device)

    @property
    def widest(self) -> int:
        """Numbers that a token has between the products."""
        return self.part.inner

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        names, inner = self._names, self.part.inner
        if names.gate_up is not None:
            yield from weight_of(prefix + names.gate_up.name, self.gate_up)
        else:
            for name, start in ((names.gate, 0), (names.up, inner)):
                yield WeightTarget(
                    f"{prefix}{name}.weight", self.gate_up.weight[start : start + inner], self.gate_up, start
                )
                yield from bias_of(prefix + name, self.gate_up, start, start + inner)
        yield from weight_of(prefix + names.down, self.down)

    def finish_loading(self) -> None:
        if self.part.out_scale != 1 and self.down.bias is not None:
            self.down.bias.mul_(self.part.out_scale)

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        """Gate above up."""
        if self._names.gate_up is not None and self._names.gate_up.order == "pairs":
            yield self.gate_up, np.arange(2 * self.part.inner).reshape(-1, 2).T.ravel()

    def inner(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, inner], the input of `down`."""
        y = self.gate_up(x)
        if self.part.scale != 1:
            y = torch.cat((y[:, : self.part.inner] * self.part.scale, y[:, self.part.inner :]), -1)
        if (limit := self.part.limit) is not None:
            gate, up = y.chunk(2, -1)
            y = torch.cat((gate.clamp(max=limit), up.clamp(-limit, limit) + 1), -1)
        y = gated(self.part.activation, y)
        return y if self.part.out_scale == 1 else y.mul_(self.part.out_scale)

    def output(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        return self.down(self.inner(x))


class ReferencePlainFFN(ReferenceModule):
    """down(activation(up))."""

    into = "up"

    def __init__(
        self, part: PlainFFNSpec, names: TensorNames, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self._names = part, names
        self.up = matrix(part.inner, hidden, part.bias, names.transposed, dtype, device)
        self.down = matrix(hidden, part.inner, part.bias, names.transposed, dtype, device)
        self.learned = torch.zeros(4, 1, dtype=torch.float32, device=device) if part.activation == "xielu" else None

    @property
    def widest(self) -> int:
        """Numbers that a token has between the products."""
        return self.part.inner

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        yield from weight_of(prefix + self._names.up, self.up)
        yield from weight_of(prefix + self._names.down, self.down)
        if self.learned is not None:
            for name, number in zip(("alpha_p", "alpha_n", "beta", "eps"), self.learned, strict=True):
                target = number if name.startswith("alpha") else number.view(())
                yield WeightTarget(f"{prefix}{self._names.activation}.{name}", target)

    def finish_loading(self) -> None:
        if self.learned is not None:
            alpha_p, alpha_n, beta, eps = self.learned.flatten().unbind()
            values = F.softplus(alpha_p), beta + F.softplus(alpha_n), beta, eps
            self._numbers = tuple(float(value) for value in values)

    def inner(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, inner], the input of `down`."""
        y = self.up(x)
        return activated(self.part.activation, y) if self.learned is None else xielu(y, *self._numbers)

    def output(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        return self.down(self.inner(x))


def network_for(
    part: GatedFFNSpec | PlainFFNSpec, names: TensorNames, hidden: int, dtype: torch.dtype, device: torch.device
) -> ReferenceGatedFFN | ReferencePlainFFN:
    if isinstance(part, GatedFFNSpec):
        return ReferenceGatedFFN(part, names, hidden, dtype, device)
    return ReferencePlainFFN(part, names, hidden, dtype, device)


class PerLayerEmbeddingGate(ReferenceModule):
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
