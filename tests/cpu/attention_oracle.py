"""Steps of models with any layers, on pools whose free slots are NaN, and
attention one query and one head at a time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from attention_cases import Work, _batch
from hypothesis import strategies as st

from sgl.runtime.attention import AttentionBackend, AttentionLayout, LayerAttention, attention_backend
from sgl.runtime.layers.float8_reference import KVScaleFactors

PAGES = 400


def attended(q: Any, keys: Any, values: Any, layer: LayerAttention, head: int, sink: float | None) -> Any:
    """One query [key_dim] at the end of keys [context, key_dim] and values [context, value_dim], in float64."""
    position, scores = len(keys) - 1, {}
    for place, key in enumerate(keys):
        far = position - place
        if layer.window is not None and far >= layer.window:
            continue
        if layer.chunk is not None and place // layer.chunk != position // layer.chunk:
            continue
        score = float(q @ key) * layer.scale
        if layer.softcap is not None:
            score = layer.softcap * math.tanh(score / layer.softcap)
        scores[place] = score - (layer.alibi[head] * far if layer.alibi is not None else 0.0)
    highest = max([*scores.values(), *([] if sink is None else [sink])])
    weights = {place: math.exp(score - highest) for place, score in scores.items()}
    total = sum(weights.values()) + (0.0 if sink is None else math.exp(sink - highest))
    return sum(weight * values[place] for place, weight in weights.items()) / total


class World:
    """A step of `work` on scattered pages. Cached tokens have random keys and values in every layer that stores.

    kept: the dtype of the pool, where it is another; float8 has random scales.
    """

    def __init__(
        self,
        layout: AttentionLayout,
        work: Work,
        dtype: torch.dtype = torch.float32,
        page_size: int = 1,
        seed: int = 0,
        device: str = "cpu",
        pages: int = PAGES,
        kept: torch.dtype | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.layout, self.work, self.dtype, self.page_size = layout, work, dtype, page_size
        self.random, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        self.pool = layout.pool(pages * page_size, kept or dtype, device)
        if kept is not None:
            layout.scale(self.pool, [KVScaleFactors(*rng.uniform(0.3, 3, 2)) for _ in layout.layers])
        self.pool.fill_nan(torch.arange(1, pages * page_size))
        counts = [-(-sum(lengths) // page_size) for lengths in work]
        taken = np.split(rng.permutation(np.arange(1, pages))[: sum(counts)], np.cumsum(counts)[:-1])
        table = np.full((len(work) + 2, max(counts) + 1), 2**30, np.int32)
        rows = rng.permutation(len(work))
        for row, own in zip(rows, taken, strict=True):
            table[row, : len(own)] = own
        self.slots = [
            (own[:, None] * page_size + np.arange(page_size)).reshape(-1)[: sum(lengths)].astype(np.int32)
            for own, lengths in zip(taken, work, strict=True)
        ]
        self.batch = _batch(work, self.slots, rows, table, page_size, self.device)
        for slots, (cached, _) in zip(self.slots, work, strict=True):
            for part in self.pool.parts:
                for stored in (part.k, part.v):
                    new = self.normal(len(stored), cached, *stored.shape[2:]).to(stored.dtype)
                    of_bytes = stored.dtype.itemsize == 1  # which torch writes by index as bytes only
                    (stored.view(torch.uint8) if of_bytes else stored)[:, slots[:cached]] = (
                        new.view(torch.uint8) if of_bytes else new
                    )

    def normal(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.random).to(self.device, self.dtype)

    def backend(self, name: str, **options: Any) -> AttentionBackend:
        if self.device.type == "cpu" and name != "triton":
            self.batch = replace(self.batch, slots=self.batch.slots.long())
        return attention_backend(name, self.pool, self.layout, page_size=self.page_size, max_running=16, **options)

    def check(self, backend: AttentionBackend, sinks: bool = False, tolerance: float = 2e-5) -> None:
        """Every layer, in order."""
        backend.plan(self.batch)
        for index, layer in enumerate(self.layout.layers):
            given = self.normal(layer.query_heads).float() * 3 if sinks else None
            found, q = self.attend(backend, index, layer, given)
            expected = self.expected(q, index, layer, given)
            assert found.is_contiguous() and found.shape == expected.shape and found.dtype == q.dtype
            torch.testing.assert_close(found.float().cpu(), expected, atol=tolerance, rtol=tolerance)
        for part in self.pool.parts:
            assert not part.k[:, 0].float().any() and not part.v[:, 0].float().any()

    def attend(
        self, backend: AttentionBackend, index: int, layer: LayerAttention, sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What comes out, and the queries, which lie among other heads."""
        tokens, heads, keys = len(self.batch.slots), layer.query_heads, layer.kv_heads
        qk = self.normal(tokens, heads + keys, layer.key_dim)
        q, k, v = qk[:, :heads], qk[:, heads:], self.normal(tokens, keys, layer.value_dim)
        if layer.source is not None:
            return backend.attend(q, None, None, index, self.batch, sinks), q
        backend.store(k, v, index, self.batch)
        return backend.attend(q, k, v, index, self.batch, sinks), q

    def expected(self, q: torch.Tensor, index: int, layer: LayerAttention, sinks: torch.Tensor | None) -> torch.Tensor:
        source = index if layer.source is None else layer.source
        stored, scales = self.layout.stored(self.pool, source), self.layout.scales(self.pool, source)
        out = np.zeros((len(q), layer.query_heads, layer.value_dim))
        queries, token = q.double().cpu().numpy(), 0
        for slots, (cached, new) in zip(self.slots, self.work, strict=True):
            keys, values = (
                part.cpu().float()[slots].double().numpy() * scale for part, scale in zip(stored, scales, strict=True)
            )
            for seen in range(cached + 1, cached + new + 1):
                for head in range(layer.query_heads):
                    own = head // (layer.query_heads // layer.kv_heads)
                    sink = None if sinks is None else float(sinks[head])
                    out[token, head] = attended(
                        queries[token, head], keys[:seen, own], values[:seen, own], layer, head, sink
                    )
                token += 1
        return torch.from_numpy(out).float()


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Decodes, then extends and prefills, as the scheduler orders them."""
    decodes = draw(st.lists(st.tuples(st.integers(0, 60), st.just(1)), max_size=4))
    extends = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(2, 12)), max_size=2))
    prefills = draw(st.lists(st.tuples(st.sampled_from([0, 0, 7, 30]), st.integers(17, 30)), max_size=1))
    return decodes + extends + prefills or [(0, 1)]


@st.composite
def layers(
    draw: st.DrawFn, dims: tuple[int, ...] = (3, 8, 16), alibi: bool = True, chunks: bool = True, uneven: bool = True
) -> list[LayerAttention]:
    """Up to three kinds of layers, some of which read what an earlier one has stored."""
    kinds = [draw(kind(dims, alibi, uneven)) for _ in range(draw(st.integers(1, 3)))]
    limit = st.sampled_from([None, 1, 2, 9, 20, 500])
    found: list[LayerAttention] = []
    for _ in range(draw(st.integers(1, 5))):
        layer = replace(draw(st.sampled_from(kinds)), window=draw(limit), chunk=draw(limit) if chunks else None)
        sources = [i for i, other in enumerate(found) if other.source is None and other.stored == layer.stored]
        if sources and draw(st.booleans()):
            layer = replace(layer, source=draw(st.sampled_from(sources)))
        found.append(layer)
    return found


@st.composite
def kind(draw: st.DrawFn, dims: tuple[int, ...], alibi: bool, uneven: bool) -> LayerAttention:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    key_dim = draw(st.sampled_from(dims))
    slopes = tuple(2.0 ** -(head + 1) for head in range(kv_heads * group))
    return LayerAttention(
        kv_heads * group,
        kv_heads,
        key_dim,
        value_dim=draw(st.sampled_from(dims)) if uneven else key_dim,
        scale=draw(st.sampled_from([key_dim**-0.5, 1.0, 0.1])),
        softcap=draw(st.sampled_from([None, None, 2.0, 50.0])),
        alibi=slopes if alibi and draw(st.booleans()) else None,
    )
