"""Attention written out in float32, for soft caps and sinks, which torch's own operation does not support."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_unfused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """q: [..., queries, dim]; k: [..., keys, dim]; v: [..., keys, value_dim]; returns [..., queries, value_dim].

    mask: added to the scores once they are capped.  sinks: one more logit of each query, [..., queries or 1, 1].
    """
    scores = q.float() @ k.float().mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask.float()
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : k.shape[-2]]
    return (weights @ v.float()).to(q.dtype)
