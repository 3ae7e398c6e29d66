"""Recurrent mixers of one sequence as loops over its tokens, in float64: what the batched forms are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from sgl.runtime.layers.recurrent import LinearAttention, SelectiveScan


def linear(said: LinearAttention, state: Tensor) -> tuple[Tensor, Tensor]:
    """state: [heads, key, value]"""
    q, k, v, decay, beta = (None if part is None else part.double() for part in said[:5])  # type: ignore[attr-defined]
    past = torch.zeros(v.shape[1], 1) if said.skip is None else said.skip[:, None]
    past = past.double() * v
    if said.unit is not None:
        q, k = (each / (each.square().sum(-1, keepdim=True) + said.unit).sqrt() for each in (q, k))
    q, v = q * said.scale, v if said.times is None else v * said.times.double()
    state, out = state.double().clone(), torch.zeros(v.shape, dtype=torch.float64)
    for t in range(len(q)):
        for head in range(v.shape[1]):
            kept = state[head] * decay[t, head].exp()[:, None]
            shared = head * k.shape[1] // v.shape[1]
            u = v[t, head] if beta is None else beta[t, head] * (v[t, head] - kept.T @ k[t, shared])
            state[head] = kept + torch.outer(k[t, shared], u)
            out[t, head] = state[head].T @ q[t, shared]
    return out + past, state


def selective(said: SelectiveScan, state: Tensor) -> tuple[Tensor, Tensor]:
    """state: [channels, state]"""
    x, dt, a, b, c, skip = (part.double() for part in said)
    state, out = state.double().clone(), torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        for channel in range(x.shape[1]):
            state[channel] = (
                state[channel] * (dt[t, channel] * a[channel]).exp() + dt[t, channel] * x[t, channel] * b[t]
            )
            out[t, channel] = state[channel] @ c[t] + x[t, channel] * skip[channel]
    return out, state


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """state: [width - 1, channels]"""
    rows, width = torch.cat([state, x]), len(weight)
    out = torch.stack([(rows[t : t + width].double() * weight.double()).sum(0) for t in range(len(x))])
    return out if bias is None else out + bias.double(), rows[len(rows) - width + 1 :]
