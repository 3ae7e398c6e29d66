"""The selective scan of Mamba 1: each channel keeps a few numbers that decay at their own rates."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .ragged_sequences import RaggedSequences


class SelectiveScan(NamedTuple):
    """The inputs of a batch's tokens, float32: a channel's h [state] becomes e^(dt a) h + dt x b; output h c + skip x.

    x, dt: [T, channels].  a: [channels, state], below 0, of all tokens.  b, c: [T, state].  skip: [channels], of all
        tokens.
    """

    x: Tensor
    dt: Tensor
    a: Tensor
    b: Tensor
    c: Tensor
    skip: Tensor

    def scan(self, state: Tensor, ragged: RaggedSequences) -> tuple[Tensor, Tensor]:
        """[T, channels] and the state after each sequence. state: [S, channels, state], before them."""
        if ragged.single:
            return self.advanced(state)
        tokens = ragged.chunks(1)
        rows, state, out = tokens.rows[:, 0], state[tokens.order], torch.empty_like(self.x)
        x, dt, b, c = (part[rows] for part in (self.x, self.dt, self.b, self.c))
        for start, stop in tokens.steps:
            at = slice(start, stop)
            out[at], state[: stop - start] = SelectiveScan(x[at], dt[at], self.a, b[at], c[at], self.skip).advanced(
                state[: stop - start]
            )
        return out[tokens.places], state[tokens.back]

    def advanced(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """`scan` of sequences of one token each."""
        state = state * (self.dt[..., None] * self.a).exp() + (self.dt * self.x)[..., None] * self.b[:, None]
        return (state @ self.c[..., None]).squeeze(-1) + self.x * self.skip, state
