"""The torch backend against attention computed one token and one head at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.attention import AttentionShape, BackendUnavailable, attention_backend
from sgl.runtime.attention import padded_attention_groups as planning
from sgl.runtime.cache.kv_layer_group import KVLayerGroup
from sgl.runtime.cache.kv_pool import PAD_SLOT, KVPool
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.step.step_batch import StepBatch

SLOTS = 3000
USABLE = ["torch_native", *(["cpu"] if cpu_kernels.kernels else [])]
Work = list[tuple[int, int]]  # (cached, new) tokens of each sequence


def make_pool(shape: AttentionShape, slots: int, dtype: torch.dtype = torch.float32) -> KVPool:
    return KVPool(shape.layers, slots, shape.kv_heads, shape.head_dim, dtype)


def make_batch(work: Work, pool: KVPool, rng: np.random.Generator) -> StepBatch:
    """A batch on scattered slots; cached tokens get random KV, every other slot stays NaN."""
    free = rng.permutation(np.arange(1, SLOTS))
    pool.fill_nan(free)
    context_slots, start = [], 0
    for cached, new in work:
        context_slots.append(free[start : start + cached + new].astype(np.int32))
        start += cached + new
        for stored in (pool.k, pool.v):
            size = (pool.k.shape[0], cached, *pool.k.shape[2:])
            stored[:, context_slots[-1][:cached]] = torch.from_numpy(rng.standard_normal(size)).to(stored.dtype)
    slots = np.concatenate([s[c:] for s, (c, _) in zip(context_slots, work, strict=True)])
    unused = torch.zeros(0, dtype=torch.int64)
    return StepBatch(
        token_ids=unused,
        positions=unused,
        slots=torch.from_numpy(slots.astype(np.int64)),
        query_lens=[new for _, new in work],
        context_lens=[cached + new for cached, new in work],
        context_slots=context_slots,
        logit_rows=unused,
    )


def oracle(
    q: torch.Tensor, layer: int, pool: KVPool, work: Work, batch: StepBatch, shape: AttentionShape
) -> torch.Tensor:
    out, token, window = torch.zeros_like(q), 0, shape.windows[layer]
    for (cached, new), slots in zip(work, batch.context_slots, strict=True):
        for query in range(cached, cached + new):
            first = 0 if window is None else max(0, query - window + 1)
            seen = slots[first : query + 1]
            for head in range(shape.query_heads):
                keys = pool.k[layer, seen, head // shape.group].double()
                values = pool.v[layer, seen, head // shape.group].double()
                weights = torch.softmax(keys @ q[token, head].double() * shape.head_dim**-0.5, 0)
                out[token, head] = (weights @ values).to(q.dtype)
            token += 1
    return out


def check(
    work: Work, shape: AttentionShape, seed: int = 0, dtype: torch.dtype = torch.float32, tolerance: float = 1e-5
) -> None:
    for backend in USABLE:
        check_backend(backend, work, shape, seed, dtype, tolerance)


def check_backend(
    backend: str, work: Work, shape: AttentionShape, seed: int, dtype: torch.dtype, tolerance: float
) -> None:
    rng = np.random.default_rng(seed)
    pool = make_pool(shape, SLOTS, dtype)
    batch = make_batch(work, pool, rng)
    attention = attention_backend(backend, pool, shape)
    attention.plan(batch)
    total = sum(new for _, new in work)
    heads = shape.query_heads + 2 * shape.kv_heads
    for layer in range(shape.layers):
        qkv = torch.from_numpy(rng.standard_normal((total, heads, shape.head_dim))).to(dtype)
        q, k, v = qkv.split((shape.query_heads, shape.kv_heads, shape.kv_heads), 1)
        attention.store(k, v, layer, batch)
        out = attention.attend(q, k, v, layer, batch)
        assert out.is_contiguous() and out.shape == q.shape
        assert torch.equal(pool.k[layer, batch.slots], k)
        assert torch.equal(pool.v[layer, batch.slots], v)
        torch.testing.assert_close(out, oracle(q, layer, pool, work, batch, shape), atol=tolerance, rtol=tolerance)
    assert not pool.k[:, PAD_SLOT].any()


@st.composite
def works(draw: st.DrawFn) -> Work:
    cached = st.integers(0, 60)
    work = draw(st.lists(st.tuples(cached, st.just(1)), max_size=6))
    work += draw(st.lists(st.tuples(cached, st.integers(2, planning.SMALL_EXTEND)), max_size=4))
    work += draw(st.lists(st.tuples(st.sampled_from([0, 0, 7, 40]), st.integers(17, 40)), max_size=2))
    return work or [(0, 1)]


@settings(max_examples=40, deadline=None)
@given(
    work=works(),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    windows=st.lists(st.sampled_from([None, 1, 2, 9, 33, 500]), min_size=1, max_size=2),
    seed=st.integers(0, 1000),
)
def test_random_batches(work: Work, kv_heads: int, group: int, windows: list[int | None], seed: int) -> None:
    check(work, AttentionShape(kv_heads * group, kv_heads, 8, tuple(windows)), seed)


@pytest.mark.parametrize("window", [None, 20, 300])
@pytest.mark.parametrize("cached", [0, 130])
def test_a_prefill_longer_than_one_block_of_queries(cached: int, window: int | None) -> None:
    check([(5, 1), (cached, 300)], AttentionShape(2, 1, 4, (window,)))


@pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")
@pytest.mark.parametrize("window", [None, 30])
def test_deterministic_bits_depend_on_the_sequence_alone(window: int | None) -> None:
    """The last 40 of 70 tokens: at once or in chunks, behind what is cached, alone and beside others."""
    shape = AttentionShape(4, 2, 8, (window,))
    rng = np.random.default_rng(0)
    own = torch.from_numpy(rng.standard_normal((70, 8, 8))).float()
    whole = deterministic(own, 0, 70, [], shape)[30:]
    chunks = [deterministic(own, a, b, [(5, 1), (0, 33)], shape) for a, b in ((30, 51), (51, 52), (52, 70))]
    assert torch.equal(torch.cat(chunks), whole)
    with pytest.raises(BackendUnavailable, match="depend on the rest"):
        attention_backend("torch_native", make_pool(shape, 8), shape, deterministic=True)
    assert attention_backend("auto", make_pool(shape, 8), shape, deterministic=True).name == "cpu"


def deterministic(own: torch.Tensor, cached: int, stop: int, others: Work, shape: AttentionShape) -> torch.Tensor:
    """What the tokens cached .. stop of `own`, the heads of one sequence, see; it comes behind `others`."""
    pool, work = make_pool(shape, SLOTS), [*others, (cached, stop - cached)]
    batch = make_batch(work, pool, np.random.default_rng(len(others)))
    _, k, v = own.split((shape.query_heads, shape.kv_heads, shape.kv_heads), 1)
    slots = batch.context_slots[-1][:cached]
    pool.k[0, slots], pool.v[0, slots] = k[:cached], v[:cached]
    beside = torch.randn(sum(new for _, new in others), *own.shape[1:])
    heads = torch.cat([beside, own[cached:stop]]).split((shape.query_heads, shape.kv_heads, shape.kv_heads), 1)
    attention = attention_backend("cpu", pool, shape, deterministic=True)
    attention.plan(batch)
    attention.store(*heads[1:], 0, batch)
    return attention.attend(*heads, 0, batch)[len(beside) :]


def test_contexts_of_very_different_length_go_into_buckets() -> None:
    work = [(3, 1), (2000, 1), (10, 1), (40, 1), (9, 1)]
    spans = planning.spans_of([1] * 5, [np.zeros(cached + 1, np.int32) for cached, _ in work], None)
    assert [len(group) for group in planning.groups_of(spans)[0]] == [1, 4]
    check(work, AttentionShape(4, 2, 8, (None, 16)))


def test_bfloat16() -> None:
    check(
        [(30, 1), (50, 1), (10, 6), (0, 40)], AttentionShape(6, 2, 64, (None, 8)), dtype=torch.bfloat16, tolerance=2e-2
    )


def test_one_group_covers_the_whole_batch_in_order() -> None:
    check([(4, 5), (40, 5), (0, 5)], AttentionShape(4, 2, 8, (None,)))
    check([(7, 1), (7, 1)], AttentionShape(4, 2, 8, (None,)))


def test_padding_slot_cannot_be_poisoned_and_unknown_backends_are_named() -> None:
    shape = AttentionShape(2, 1, 8, (None,))
    pool = make_pool(shape, 8)
    with pytest.raises(ValueError, match="padding slot"):
        pool.fill_nan([3, PAD_SLOT])
    with pytest.raises(ConfigError, match="did you mean 'torch_native'"):
        attention_backend("torch_natve", pool, shape)


def test_a_slot_takes_as_many_bytes_as_said() -> None:
    pool = KVPool(3, 10, 2, 8, torch.bfloat16)
    assert KVLayerGroup(3, 2, 8, 8).bytes_per_slot(torch.bfloat16) * pool.slots == pool.k.nbytes + pool.v.nbytes
    with pytest.raises(ConfigError, match="pool of 1 slots"):
        KVPool(3, 1, 2, 8)
