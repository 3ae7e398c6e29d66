"""Random steps of latent layers, and the sizes of their rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from attention_cases import Work
from hypothesis import strategies as st

from sgl.runtime.attention import AttentionLayout, LayerAttention
from sgl.runtime.layers.float8_reference import FP8
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.layers.rotary_embedding import RotaryEmbedding, rotate

MIXED: Work = [(40, 1), (0, 1), (33, 1), (17, 9), (40, 2), (0, 20)]


def layer(heads: int, rank: int, turned: int, scale: float | None = None) -> LayerAttention:
    width = rank + turned
    return LayerAttention(heads, 1, width, rank, width**-0.5 if scale is None else scale, latent=True)


def layout(*layers: LayerAttention) -> AttentionLayout:
    return AttentionLayout.of(layers)


@st.composite
def layers(draw: st.DrawFn, sizes: tuple[tuple[int, int], ...]) -> list[LayerAttention]:
    """Up to three layers of the same rows, with or without a layer of other heads. sizes: of latents and what turns."""
    own = layer(draw(st.integers(1, 20)), *draw(st.sampled_from(sizes)))
    found = [replace(own, scale=draw(st.sampled_from([own.scale, 1.0, 0.1]))) for _ in range(draw(st.integers(1, 2)))]
    return [*found, replace(own, query_heads=3)] if draw(st.booleans()) else found


def check_rows(
    tokens: int,
    heads: int,
    dim: int,
    rank: int,
    turned: int,
    dtype: torch.dtype,
    kept: torch.dtype,
    device: str,
    turns: bool = True,
    own: slice = slice(None),
) -> None:
    """What is written to the pool and to the queries, against the law's operations; the padding slot and other
    slots stay as they are. own: the tokens that have queries.
    """
    from sgl.runtime.kernels.attention.latent_norm_rope_store import latent_norm_rope_store

    width, scale = rank + turned, 0.5 if kept == FP8 else 1.0
    query, latent = (torch.randn(tokens, size, device=device).to(dtype) for size in (heads * (dim + turned), width))
    norm = (1 + 0.1 * torch.randn(rank, device=device)).to(dtype)
    pool, q = (
        torch.full(shape, 7.0, device=device).to(kind)
        for shape, kind in (((tokens + 9, 1, width), kept), ((tokens, heads, width), dtype))
    )
    positions, slots = (torch.randperm(most, device=device)[:tokens].int() for most in (50 + tokens, tokens + 8))
    slots = slots + 1
    slots[0] = 0
    rotary = RotaryEmbedding(RopeParameters(1e4, turned, turned), dtype, torch.device(device), 50 + tokens)
    query, q = query[own], q[own]
    latent_norm_rope_store(
        query, latent, norm, 1e-5, rotary.table if turns else None, positions, slots, pool, q, scale, own.start or 0
    )
    angles = rotary.gather(positions, 50 + tokens)
    normed = torch.nn.functional.rms_norm(latent[:, :rank].float(), (rank,), norm.float(), 1e-5)
    last, of_queries = latent[:, None, rank:], query[:, heads * dim :].unflatten(1, (heads, turned))
    row = torch.cat((normed, (rotate(last, angles) if turns else last)[:, 0].float()), 1) / scale
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype] if kept != FP8 else 0.15
    torch.testing.assert_close(pool[slots[1:].long(), 0].float(), row[1:], atol=bound, rtol=bound)
    torch.testing.assert_close(
        q[..., rank:].float(),
        (rotate(of_queries, rotary.gather(positions[own], 50 + tokens)) if turns else of_queries).float(),
        atol=bound,
        rtol=bound,
    )
    others = torch.ones(tokens + 9, dtype=torch.bool, device=device).index_fill_(0, slots[1:].long(), False)
    assert (pool[others].float() == 7).all() and (q[..., :rank] == 7).all()
