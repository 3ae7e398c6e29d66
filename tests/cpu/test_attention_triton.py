"""The Triton backend in Triton's interpreter, against attention computed one sequence at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("tests/gpu does this on the device", allow_module_level=True)

from attention_cases import Work, make_batch, make_pool, new_tokens, oracle, queries, random_kv, run, with_padding
from attention_oracle import World, layers
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from interpreted import products_as_on_a_tensor_core

from sgl.runtime.attention import AttentionLayout, AttentionShape, BackendUnavailable, LayerAttention, attention_backend
from sgl.runtime.attention.triton_attention import TritonAttention
from sgl.runtime.kernels.attention.attention_decode import DecodeScratch, DecodeTile
from sgl.runtime.kernels.attention.attention_prefill import PrefillTile
from sgl.runtime.layers.float8_reference import KVScaleFactors

DECODES = [(40, 1), (0, 1), (150, 1), (33, 1)]
MIXED = [(70, 1), (3, 1), (0, 20), (17, 9), (5, 1), (40, 2)]


@pytest.fixture(autouse=True, scope="module")
def tensor_core():
    with products_as_on_a_tensor_core():
        yield


def small(backend: TritonAttention, splits: int = 4) -> TritonAttention:
    """Tiles that a few dozen keys fill, so that sequences are split and loops turn."""
    shape, rows = backend.shape, backend.prefill_tile.rows
    backend.decode_tile = backend.gemv_tile = DecodeTile(16, 16, splits * shape.kv_heads, merged=2)
    backend.prefill_tile = PrefillTile(min(rows, 16 if shape.group <= 16 else rows), 16, segment=16)
    if backend.deterministic:
        backend._splits = backend._split_scratch(192)
    backend._scratch = DecodeScratch(
        backend.most, shape.kv_heads, shape.group, shape.head_dim, backend.decode_tile, torch.device("cpu")
    )
    return backend


def check(work: Work, shape: AttentionShape, page_size: int = 1, dtype=torch.float32, tolerance=1e-5, seed=0) -> None:
    pool = make_pool(shape, 512 * page_size, dtype)
    kv = random_kv(work, shape, dtype, "cpu", seed)
    batch = make_batch(work, pool, kv, page_size, seed)
    backend = small(TritonAttention(pool, shape, page_size, max_running=8))
    for layer in range(shape.layers):
        q = queries(work, shape, dtype, seed=layer)
        out = run(backend, batch, work, kv, q, layer)
        torch.testing.assert_close(out.float(), oracle(q, work, kv, shape, layer), atol=tolerance, rtol=tolerance)
        assert out.is_contiguous() and not backend._scratch.counters.any()
    assert not pool.k[:, 0].any() and not pool.v[:, 0].any()


@st.composite
def works(draw: st.DrawFn) -> Work:
    decodes = draw(st.lists(st.tuples(st.integers(0, 90), st.just(1)), max_size=4))
    extends = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(2, 12)), max_size=2))
    return decodes + extends or [(0, 1)]


@settings(max_examples=6, deadline=None)
@given(
    work=works(),
    heads=st.sampled_from([(1, 1), (2, 4), (1, 3), (1, 7)]),
    page_size=st.sampled_from([1, 4, 16]),
    window=st.sampled_from([None, 1, 9, 50]),
    seed=st.integers(0, 99),
)
def test_random_batches(work, heads, page_size, window, seed):
    kv_heads, group = heads
    check(work, AttentionShape(kv_heads * group, kv_heads, 16, (window,)), page_size, seed=seed)


@pytest.mark.parametrize("head_dim", [24, 64])
def test_layers_of_different_windows_and_head_dims(head_dim):
    check(MIXED, AttentionShape(4, 2, head_dim, (None, 9)), 4)


@pytest.mark.parametrize("work", [DECODES, [(3, 1), (20, 17)]])
def test_bfloat16(work):
    check(work, AttentionShape(4, 2, 32, (None,)), dtype=torch.bfloat16, tolerance=2e-2)


@pytest.mark.parametrize("work", [DECODES[:2], [(3, 1), (20, 9)]])
def test_keys_and_values_in_eight_bits_are_scaled(work):
    shape = AttentionShape(4, 2, 16, (None,))
    pool = make_pool(shape, 512, torch.float8_e4m3fn, poison=False)
    pool.scales = [KVScaleFactors(0.5, 0.25)]
    stored = [
        tuple(part.to(torch.float8_e4m3fn).float() for part in pair)
        for pair in random_kv(work, shape, torch.float32, "cpu", 3)
    ]
    seen = [(keys * 0.5, values * 0.25) for keys, values in stored]
    batch = make_batch(work, pool, stored)
    pool.k[0, batch.slots.long()], pool.v[0, batch.slots.long()] = (
        part.to(pool.k.dtype) for part in new_tokens(work, stored, 0)
    )
    q = queries(work, shape, torch.float32)
    backend = small(TritonAttention(pool, shape, max_running=8))
    backend.plan(batch)
    out = backend.attend(q, *new_tokens(work, seen, 0), 0, batch)
    torch.testing.assert_close(out, oracle(q, work, seen, shape), atol=1e-5, rtol=1e-5)


def test_queries_inside_the_merged_projection_are_read_in_place():
    shape = AttentionShape(4, 2, 16, (None,))
    pool = make_pool(shape, 512, torch.float32)
    kv = random_kv(MIXED, shape, torch.float32, "cpu", 0)
    batch = make_batch(MIXED, pool, kv)
    q = queries(MIXED, shape, torch.float32)
    qkv = torch.cat([q, *new_tokens(MIXED, kv, 0)], 1)
    q_view, k, v = qkv.split((4, 2, 2), 1)
    backend = small(TritonAttention(pool, shape, max_running=8))
    backend.plan(batch)
    backend.store(k, v, 0, batch)
    out = backend.attend(q_view, k, v, 0, batch)
    torch.testing.assert_close(out, oracle(q, MIXED, kv, shape), atol=1e-5, rtol=1e-5)


def test_a_padded_decode_step_equals_the_step_and_writes_no_padding():
    shape = AttentionShape(4, 2, 16, (None,))
    pool = make_pool(shape, 512, torch.float32)
    kv = random_kv(DECODES, shape, torch.float32, "cpu", 0)
    batch = with_padding(make_batch(DECODES, pool, kv, rows=8), 8)
    q = torch.randn(8, 4, 16)
    k, v = (torch.cat([part, torch.ones(4, 2, 16)]) for part in new_tokens(DECODES, kv, 0))
    backend = small(TritonAttention(pool, shape, max_running=8))
    backend.plan(batch)
    backend.store(k, v, 0, batch)
    out = backend.attend(q, k, v, 0, batch)
    torch.testing.assert_close(out[:4], oracle(q[:4], DECODES, kv, shape), atol=1e-5, rtol=1e-5)
    assert not pool.k[:, 0].any() and out.isfinite().all()


@pytest.mark.parametrize("splits", [1, 8])
def test_any_number_of_splits(splits):
    shape = AttentionShape(4, 2, 16, (None,))
    pool = make_pool(shape, 512, torch.float32)
    kv = random_kv(DECODES, shape, torch.float32, "cpu", 0)
    batch = make_batch(DECODES, pool, kv)
    q = queries(DECODES, shape, torch.float32)
    backend = small(TritonAttention(pool, shape, max_running=8), splits)
    for _ in range(2):  # the counters are back at zero
        out = run(backend, batch, DECODES, kv, q)
        torch.testing.assert_close(out, oracle(q, DECODES, kv, shape), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("splits", [1, 3, 8])
def test_one_sequence_of_any_length(splits, window):
    """By itself it has items of one length and not too few: none is dropped, whatever is left for the last."""
    shape = AttentionShape(4, 2, 16, (window,))
    pool = make_pool(shape, 512, torch.float32)
    backend = small(TritonAttention(pool, shape, max_running=1), splits)
    for cached in (0, 14, 15, 16, 17, 31, 32, 47, 48, 49, 63, 64, 79, 111, 128, 170):
        work = [(cached, 1)]
        kv = random_kv(work, shape, torch.float32, "cpu", cached)
        q = queries(work, shape, torch.float32)
        out = run(backend, make_batch(work, pool, kv), work, kv, q)
        torch.testing.assert_close(out, oracle(q, work, kv, shape), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
@pytest.mark.parametrize(
    "group, dim", [(1, 128), (4, 128), (7, 80), (8, 64), (8, 256), (16, 128), (16, 256), (12, 512)]
)
def test_programs_merge_what_their_registers_hold(group, dim, dtype):
    """128 numbers a thread, or two partial results; more of them went through memory, and took ten times as long."""
    shape = AttentionShape(2 * group, 2, dim, (None,))
    backend = TritonAttention(make_pool(shape, 64, dtype), shape, max_running=4)
    for tile in (backend.decode_tile, backend.gemv_tile):
        numbers = (1 << (group - 1).bit_length()) * (1 << (dim - 1).bit_length())
        assert tile.merged == 2 or tile.merged * numbers <= 128 * 32 * tile.warps
    assert (backend.gemv_tile.warps == 2) == (dtype != torch.float32 and dim <= 256)


@pytest.mark.few(1)
@pytest.mark.parametrize("window, dtype", [(None, torch.bfloat16), (11, torch.float32)])
def test_deterministic_bits_depend_on_the_sequence_alone(window, dtype):
    """The same 24 tokens: at once, in chunks, one by one, behind a cached prefix, among others, on other pages."""
    shape = AttentionShape(4, 2, 16, (window,))
    kv = random_kv([(0, 24)], shape, dtype, "cpu", 0)[0]
    q = queries([(0, 24)], shape, dtype)
    whole = deterministic(shape, dtype, kv, q, [(0, 24)], [], 0)
    for bounds, others in [([17, 24], [(9, 1)]), ([5, 6, 23, 24], [(2, 1), (0, 3)])]:
        cached = 0
        for stop in bounds:
            part = deterministic(shape, dtype, kv, q, [(cached, stop - cached)], others, stop)
            assert torch.equal(part, whole[cached:stop])
            cached = stop


@pytest.mark.parametrize("window", [None, 70])
def test_ordered_sums_have_the_same_bits_in_one_program_or_many(window):
    shape, work = AttentionShape(4, 2, 16, (window,)), [(170, 1), (3, 1)]
    pool = make_pool(shape, 512, torch.float32)
    kv = random_kv(work, shape, torch.float32, "cpu", 0)
    batch, q = make_batch(work, pool, kv), queries(work, shape, torch.float32)
    backend = small(TritonAttention(pool, shape, max_running=2, deterministic=True))
    backend._splits = backend._split_scratch(171)
    assert backend._splits.parts == 10
    split = run(backend, batch, work, kv, q)
    assert not backend._splits.counters.any()
    backend._splits.tiles = 0
    assert torch.equal(run(backend, batch, work, kv, q), split)
    torch.testing.assert_close(split, oracle(q, work, kv, shape), atol=1e-5, rtol=1e-5)


def test_segments_grow_with_the_position():
    bounds = [*range(0, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, 1025, 128)]
    tile = PrefillTile(16, 16, segment=16)
    for context in range(1, 1024):
        assert tile.segments(context) == sum(bound < context for bound in bounds)


def deterministic(shape, dtype, kv, q, own: Work, others: Work, seed: int) -> torch.Tensor:
    """What the queries of `own`, the last sequence of the step, see."""
    (cached, new), work = own[0], [*others, *own]
    pool = make_pool(shape, 512, dtype)
    stored = [*random_kv(others, shape, dtype, "cpu", seed), tuple(part[:, : cached + new] for part in kv)]
    batch = make_batch(work, pool, stored, seed=seed)
    beside = queries(others, shape, dtype) if others else q[:0]
    backend = small(TritonAttention(pool, shape, max_running=4, deterministic=True))
    return run(backend, batch, work, stored, torch.cat([beside, q[cached : cached + new]]))[-new:]


@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    work=works(),
    layers=layers((16, 24), alibi=False, uneven=False),
    sinks=st.booleans(),
    exact=st.booleans(),
    page_size=st.sampled_from([1, 4]),
    seed=st.integers(0, 99),
)
def test_every_option(work, layers, sinks, exact, page_size, seed):
    world = World(AttentionLayout.of(layers), work, page_size=page_size, seed=seed)
    backend = world.backend("triton", deterministic=exact)
    for one in getattr(backend, "_backends", [backend]):
        small(one)
    world.check(backend, sinks)


def test_sinks_take_their_share_of_sequences_that_are_split():
    layer = LayerAttention(6, 2, 16, 16, 0.3, softcap=2.0)
    for work in ([(150, 1), (3, 1)], [(150, 1), (60, 3)]):
        for exact in (False, True):
            world = World(AttentionLayout.of([layer]), work)
            world.check(small(world.backend("triton", deterministic=exact)), sinks=True)


def test_a_long_prefill_in_chunks():
    layer = LayerAttention(2, 1, 16, 16, 0.3, chunk=20)
    for exact in (False, True):
        world = World(AttentionLayout.of([layer, replace(layer, window=13)]), [(15, 40)])
        world.check(small(world.backend("triton", deterministic=exact)))


def test_the_widest_heads():
    layer = LayerAttention(4, 2, 512, 512, 1.0 / 32)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2)):
        world = World(AttentionLayout.of([layer]), [(40, 1), (20, 5)], dtype)
        world.check(world.backend("triton"), tolerance=tolerance)


def test_what_the_kernels_cannot_do_is_said():
    for change, message in (({"value_dim": 8}, "16 and 8|8 and 16"), ({"alibi": (0.5, 0.1)}, "ALiBi")):
        layout = AttentionLayout.of([replace(LayerAttention(2, 1, 16, 16, 1.0), **change)])
        with pytest.raises(BackendUnavailable, match=message):
            attention_backend("triton", layout.pool(8, torch.float32), layout)


def test_what_pools_the_kernels_cannot_read_is_said():
    shape = AttentionShape(4, 2, 8, (None,))
    with pytest.raises(BackendUnavailable, match="head_dim"):
        attention_backend("triton", make_pool(shape, 8, torch.float32), shape)
    with pytest.raises(BackendUnavailable, match="float64"):
        attention_backend("triton", make_pool(shape, 8, torch.float64), shape)
