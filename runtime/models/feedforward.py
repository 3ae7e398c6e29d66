"""Feedforward networks of a layer in torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers.activation import activated, gated, xielu
from .names import Names
from .places import Place, bias_of, matrix, weight_of
from .spec import Feedforward, Gated, Plain


class GatedPart:
    """down(activation(gate) * up), gate above up in `gate_up` [2 inner, hidden]."""

    into = "gate_up"

    def __init__(self, part: Gated, names: Names, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.part, self._names = part, names
        self.gate_up = matrix(2 * part.inner, hidden, part.bias, names.transposed, dtype, device)
        self.down = matrix(hidden, part.inner, part.bias, names.transposed, dtype, device)

    def places(self, prefix: str) -> Iterator[Place]:
        names, inner = self._names, self.part.inner
        if names.gate_up is not None:
            yield from weight_of(prefix + names.gate_up.name, self.gate_up)
        else:
            for name, start in ((names.gate, 0), (names.up, inner)):
                yield Place(f"{prefix}{name}.weight", self.gate_up.weight[start : start + inner], self.gate_up, start)
                yield from bias_of(prefix + name, self.gate_up, start, start + inner)
        yield from weight_of(prefix + names.down, self.down)

    def seal(self) -> None: ...

    def inner(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, inner], what `down` takes."""
        return gated(self.part.activation, self.gate_up(x))


class PlainPart:
    """down(activation(up))."""

    into = "up"

    def __init__(self, part: Plain, names: Names, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.part, self._names = part, names
        self.up = matrix(part.inner, hidden, part.bias, names.transposed, dtype, device)
        self.down = matrix(hidden, part.inner, part.bias, names.transposed, dtype, device)
        self._learned = torch.zeros(4, 1, dtype=torch.float32, device=device) if part.activation == "xielu" else None

    def places(self, prefix: str) -> Iterator[Place]:
        yield from weight_of(prefix + self._names.up, self.up)
        yield from weight_of(prefix + self._names.down, self.down)
        if self._learned is not None:
            for name, number in zip(("alpha_p", "alpha_n", "beta", "eps"), self._learned, strict=True):
                target = number if name.startswith("alpha") else number.view(())
                yield Place(f"{prefix}{self._names.activation}.{name}", target)

    def seal(self) -> None:
        if self._learned is not None:
            alpha_p, alpha_n, beta, eps = self._learned.flatten().unbind()
            values = F.softplus(alpha_p), beta + F.softplus(alpha_n), beta, eps
            self._numbers = tuple(float(value) for value in values)

    def inner(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, inner], what `down` takes."""
        y = self.up(x)
        return activated(self.part.activation, y) if self._learned is None else xielu(y, *self._numbers)


def feedforward_for(
    part: Feedforward, names: Names, hidden: int, dtype: torch.dtype, device: torch.device
) -> GatedPart | PlainPart:
    kind = GatedPart if isinstance(part, Gated) else PlainPart
    return kind(part, names, hidden, dtype, device)  # type: ignore[arg-type]
