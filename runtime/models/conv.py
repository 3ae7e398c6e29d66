"""A gated short convolution in torch (LFM2): gate, mix a few neighbouring tokens of each channel, gate again. The law."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..layers.conv import causal_conv
from ..layers.linear import Linear
from .mixer import Step
from .names import Names
from .places import Place, matrix, weight_of
from .ragged import ragged_rows
from .spec import ShortConv


class ShortConvPart:
    """`into` gives B, C and x of all channels, [T, 3 * channels]; `output` takes C times the convolution of B times x.

    kernel: [channels, width], the newest token's weight last.
    """

    def __init__(self, part: ShortConv, names: Names, index: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.part, self.index, self._names = part, index, names.conv
        self.into = matrix(3 * part.channels, hidden, part.bias, False, dtype, device)
        self.output = matrix(hidden, part.channels, part.bias, False, dtype, device)
        self.kernel = torch.empty(part.channels, part.width, dtype=dtype, device=device)
        self.bias = torch.empty(part.channels, dtype=dtype, device=device) if part.bias else None

    def places(self, prefix: str) -> Iterator[Place]:
        yield from weight_of(prefix + self._names.into, self.into)
        yield from weight_of(prefix + self._names.output, self.output)
        yield Place(f"{prefix}{self._names.kernel}.weight", self.kernel[:, None])
        if self.bias is not None:
            yield Place(f"{prefix}{self._names.kernel}.bias", self.bias)

    def products(self) -> Iterator[tuple[object, str]]:
        yield from ((self, "into"), (self, "output"))

    def tensors(self) -> Iterator[Tensor]:
        yield self.kernel
        if self.bias is not None:
            yield self.bias

    def seal(self) -> None:
        """Nothing has another order in the files."""

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        """Rows lie as in the files."""
        yield from ()

    def attend(self, x: Tensor, step: Step) -> Tensor:
        """x [T, hidden], normed -> what `output` takes, [T, channels]; the last inputs of each sequence are left as its state."""
        states = step.states
        assert states is not None
        (kept,) = states.of(self.index)
        first, last, y = self.into(x).chunk(3, dim=-1)
        mixed, left = causal_conv(first * y, self.kernel, self.bias, kept.index_select(0, states.read), ragged_rows(step.batch))
        kept.index_copy_(0, states.write, left)
        return last * mixed
