"""Random steps of latent layers, and the sizes of their rows."""

from __future__ import annotations

from dataclasses import replace

from attention_cases import Work
from hypothesis import strategies as st

from sgl.runtime.attention import AttentionLayout, LayerAttention

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
