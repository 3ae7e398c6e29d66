"""What the flashinfer backend asks of flashinfer, answered here by a slow stand-in with the same calls.

The stand-in attends what the device tensors say, as the kernels do, and checks that the plan on the host says the same.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from attention_steps import World
from interpreted import products_as_on_a_tensor_core

from sgl.runtime.attention import AttentionShape, BackendUnavailable, triton_attention
from sgl.runtime.attention import flashinfer_attention as backend
from sgl.runtime.attention import flashinfer_modules as modules
from sgl.runtime.attention.flashinfer_modules import FlashInferModule
from sgl.runtime.attention.flashinfer_planner import float_bytes
from sgl.runtime.attention.shared_prefix_finder import PrefixFinder
from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.kernels.attention.attention_decode import DecodeTile
from sgl.runtime.kernels.attention.attention_prefill import PrefillTile
from sgl.runtime.layers.float8_reference import KVScaleFactors

SHAPE = AttentionShape(query_heads=4, kv_heads=2, head_dim=64, windows=(None, None))
WINDOWED = AttentionShape(query_heads=2, kv_heads=2, head_dim=64, windows=(None, 20, None, 5))


class StandIn:
    """A module of flashinfer's, `plan` and `paged_run` of 0.6.8."""

    def __init__(self, kind, calls):
        self.kind, self.calls = kind, calls

    def plan(
        self,
        floats,
        integers,
        staging,
        queries,
        pages,
        tokens,
        rows,
        sequences,
        query_heads,
        kv_heads,
        page_size,
        graph,
        dim,
        dim_v,
        causal,
        window_left,
        *split,
    ):
        assert len(split) == (3 if self.kind.backend == "fa2" else 0)
        assert all(host.dtype == torch.int32 and host.is_contiguous() for host in (queries, pages, tokens))
        assert (int(queries[-1]), len(tokens), dim) == (rows, sequences, dim_v)
        assert (window_left >= 0) == self.kind.windowed
        self.calls.append((self.kind.backend, "graph" if graph else "plan", rows, sequences))
        return queries.clone(), pages.clone(), tokens.clone(), page_size, causal, window_left

    def paged_run(
        self,
        floats,
        integers,
        info,
        q,
        k,
        v,
        queries,
        pages,
        indices,
        last,
        out,
        lse,
        mask,
        layout,
        window_left,
        early,
        *rest,
    ):
        cap, scale = rest[6:8]
        assert len(rest) == 15 and (cap > 0) == self.kind.capped
        host_queries, host_pages, tokens, page_size, causal, planned_window = info
        assert queries.tolist() == host_queries.tolist() and pages.tolist() == host_pages.tolist()
        assert window_left == planned_window and mask == int(causal) and out.is_contiguous()
        self.calls.append((self.kind.backend, "run", *(t.data_ptr() for t in (queries, pages, indices, last))))
        for i, count in enumerate(tokens.tolist()):
            run = indices[pages[i] : pages[i + 1]].long()
            assert count == (len(run) - 1) * page_size + int(last[i])
            rows = slice(int(queries[i]), int(queries[i + 1]))
            self.attend(
                q[rows],
                k[run].flatten(0, 1)[:count],
                v[run].flatten(0, 1)[:count],
                out[rows],
                None if lse is None else lse[rows],
                scale,
                cap,
                causal,
                window_left,
            )

    def attend(self, q, k, v, out, lse, scale, cap, causal, window_left):
        k, v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        at = torch.arange(len(k) - len(q), len(k))[:, None] if len(q) <= len(k) else torch.zeros(len(q), 1)
        keys = torch.arange(len(k))
        hidden = (keys > at) & causal
        if window_left >= 0:
            hidden = hidden | (keys < at - window_left)
        scores = scores.masked_fill(hidden, float("-inf"))
        out.copy_(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        if lse is not None:
            lse.copy_(scores.logsumexp(-1).T / np.log(2))


def small_tiles(pool, shape, deterministic):
    """Tiles of Triton's kernels that a few dozen keys fill."""
    return DecodeTile(16, 16, 2 * shape.kv_heads, merged=2), PrefillTile(16, 16)


@pytest.fixture
def calls(monkeypatch):
    made: list[tuple] = []
    monkeypatch.setattr(triton_attention, "tiles_for", small_tiles)
    monkeypatch.setattr(backend, "_machine", lambda device: (9, 4))
    monkeypatch.setattr(backend.modules, "load", lambda kinds: {kind: StandIn(kind, made) for kind in kinds})
    return made


@pytest.fixture(autouse=True, scope="module")
def tensor_core():
    with products_as_on_a_tensor_core():
        yield


def made(world, **options):
    return backend.FlashInferAttention(world.pool, world.shape, world.page_size, **options)


def check(attention, world, batch, layers=(0,), sinks=None):
    attention.plan(batch)
    world.embed(batch)
    for layer in layers:
        q = world.queries(batch, torch.bfloat16)
        found = attention.attend(q, q, q, layer, batch, sinks)
        assert found.is_contiguous()
        torch.testing.assert_close(found.float(), world.expected(batch, q, layer, sinks), rtol=2e-2, atol=1e-2)


def make_world(shape, page_size=1, dtype=torch.bfloat16, pages=600):
    return World(shape, pages, page_size, rows=20, most=600 // page_size + 1, dtype=dtype, device="cpu")


@pytest.mark.parametrize("page_size", [1, 8])
def test_mixed_batches(calls, page_size):
    world = make_world(SHAPE, page_size)
    attention = made(world, max_running=5, context=64)
    batch = world.batch([world.sequence(n) for n in (30, 1, 9, 40)], [1, 1, 9, 20])
    calls.clear()
    check(attention, world, batch, layers=(0, 1))
    assert calls[0] == ("fa2", "plan", 31, 4)  # the shortest tiles hold them all: decodes with the others
    assert [call[:2] for call in calls[1:]] == [("fa2", "run")] * 2
    batch = world.batch([world.sequence(n) for n in (30, 1, 9, 60)], [1, 1, 9, 40])
    calls.clear()
    check(attention, world, batch, layers=(0, 1))
    assert calls[0] == ("fa2", "plan", 49, 2)
    assert [call[:2] for call in calls[1:]] == [("fa2", "run")] * 2


def test_decodes_need_no_plan(calls):
    world = make_world(SHAPE)
    attention = made(world, max_running=4, context=64)
    calls.clear()
    check(attention, world, world.batch([world.sequence(n) for n in (30, 1, 90)], [1] * 3))
    static = world.batch([world.sequence(9)], [1], pad_to=2)
    check(attention, world, static)
    assert attention.variant(static) is None and not calls


def test_many_prefills_of_middling_length_go_to_triton(calls):
    world = make_world(SHAPE)
    attention = made(world, max_running=4, context=64)
    calls.clear()
    check(attention, world, world.batch([world.sequence(n) for n in (5, 60, 40)], [1, 40, 40]))
    assert not calls
    check(attention, world, world.batch([world.sequence(n) for n in (5, 60, 40)], [1, 20, 20]))
    assert calls


def test_long_queries_go_to_hoppers_kernels(calls):
    world = make_world(SHAPE)
    attention = made(world, max_running=4, context=64)
    calls.clear()
    check(attention, world, world.batch([world.sequence(200), world.sequence(140)], [200, 100]))
    assert calls[0] == ("fa3", "plan", 300, 2)


def test_windows_have_plans_of_their_own(calls):
    world = make_world(WINDOWED)
    attention = made(world, max_running=4, context=64)
    batch = world.batch([world.sequence(n) for n in (60, 10, 50)], [1, 1, 30])
    calls.clear()
    check(attention, world, batch, layers=range(4))
    assert [call[1] for call in calls] == ["plan"] * 3 + ["run"] * 4


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 20])
def test_soft_caps_and_sinks(calls, softcap, window):
    world = make_world(AttentionShape(4, 2, 64, (window,), scale=0.5, softcap=softcap))
    attention = made(world, max_running=4, context=64)
    sinks = torch.tensor([-3.0, 0.0, 1.5, 4.0])
    check(attention, world, world.batch([world.sequence(n) for n in (60, 10, 50)], [1, 1, 30]), sinks=sinks)
    check(attention, world, world.batch([world.sequence(n) for n in (60, 200)], [1, 150]), sinks=sinks)
    check(attention, world, world.batch([world.sequence(n) for n in (5, 60, 40)], [1, 40, 40]), sinks=sinks)


def test_float8_keys(calls):
    world = make_world(SHAPE, dtype=torch.float8_e4m3fn)
    world.pool.scales = [KVScaleFactors(0.5 + layer, 2.0 / (1 + layer)) for layer in range(len(world.pool.scales))]
    attention = made(world, max_running=4, context=64)
    calls.clear()
    check(attention, world, world.batch([world.sequence(n) for n in (60, 200)], [1, 150]))
    assert {call[0] for call in calls} == {"fa2"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_store_leaves_the_padding_slot_alone(calls, dtype):
    world = make_world(SHAPE, dtype=dtype)
    scale = 2.0 if dtype == torch.float8_e4m3fn else 1.0
    world.pool.scales[1] = KVScaleFactors(v=scale)
    attention = made(world, max_running=4, context=64)
    batch = world.batch([world.sequence(9), world.sequence(3)], [1, 1], pad_to=4)
    k, v = torch.randint(-8, 9, (2, 4, SHAPE.kv_heads, SHAPE.head_dim)).bfloat16()  # the interpreter rounds wrongly
    k[0, 0, 0] = 1e6
    attention.store(k, v, 1, batch)
    slots = [int(own[-1]) for own in batch.context_slots[:2]]
    limit = torch.finfo(dtype).max
    torch.testing.assert_close(world.pool.k[1, slots].float(), k[:2].clamp(-limit, limit).to(dtype).float())
    torch.testing.assert_close(world.pool.v[1, slots].float(), (v[:2] / scale).to(dtype).float())
    assert not world.pool.k[:, 0].float().any() and not world.pool.v[:, 0].float().any()


@pytest.mark.few(1)
@pytest.mark.parametrize(("page_size", "sinks"), [(1, None), (4, None), (4, torch.tensor([-3.0, 0.0, 1.5, 4.0]))])
def test_shared_prefix(calls, monkeypatch, page_size, sinks):
    monkeypatch.setattr("sgl.runtime.attention.shared_prefix_finder.LEAST_TOKENS", 40)
    monkeypatch.setattr("sgl.runtime.attention.shared_prefix_finder.LEAST_SAVED", 100)
    world = make_world(SHAPE, page_size, pages=900 // page_size)
    attention = made(world, max_running=16, context=200)
    prefix = world.sequence(48)
    calls.clear()
    runs = []
    for step in range(2):
        shared = [world.sequence(49 + step + 5 * n, prefix) for n in range(9)]
        batch = world.batch([world.sequence(70), *shared, world.sequence(3)], [1] * 11, pad_to=16)
        before = len(calls)
        check(attention, world, batch, sinks=sinks)
        assert attention.variant(batch) == "shared prefix"
        runs.append([call for call in calls[before:] if call[1] == "run"] + [batch.plan.shared.skip.data_ptr()])
    assert [call[1:] for call in calls if call[1] == "graph"] == [("graph", 16, 1)] * 2
    assert runs[0] == runs[1] and len(runs[0]) == 2
    mixed = world.batch([*shared, world.sequence(65, prefix)], [1] * 9 + [5])
    calls.clear()
    check(attention, world, mixed)
    assert [call[2:] for call in calls if call[1] == "plan"] == [(9, 1), (5, 1)]


def test_the_buffer_for_prefills_grows(calls, monkeypatch):
    monkeypatch.setattr(backend, "LEAST_PAGES", 50)
    world = make_world(SHAPE)
    attention = made(world, max_running=4, context=100)
    for length in (30, 300, 40):
        check(attention, world, world.batch([world.sequence(length), world.sequence(19)], [2, 12]))


def naive_prefix(rows: list[np.ndarray]) -> int:
    """Tokens before the last that all have in common."""
    shortest = min(map(len, rows)) - 1
    return next((i for i in range(shortest) if len({int(row[i]) for row in rows}) > 1), shortest)


def test_the_finder_finds_the_longest_prefix_of_all_who_share(monkeypatch):
    monkeypatch.setattr("sgl.runtime.attention.shared_prefix_finder.LEAST_TOKENS", 16)
    monkeypatch.setattr("sgl.runtime.attention.shared_prefix_finder.LEAST_SAVED", 16)
    random = np.random.default_rng(0)
    for page_size in (1, 4):
        for _ in range(30):
            world = make_world(SHAPE, page_size, pages=900 // page_size)
            prefix = world.sequence(int(random.integers(4, 20)) * 4)
            shared = [world.sequence(len(prefix) + int(random.integers(1, 9)), prefix) for _ in range(8)]
            others = [world.sequence(int(random.integers(1, 40))) for _ in range(int(random.integers(0, 12)))]
            finder, rows = PrefixFinder(page_size), [*others, *shared]
            found = finder.find(rows)
            tokens = naive_prefix(shared) // page_size * page_size
            if tokens < 16 or sum(len(row) > 1 for row in rows) > 16:
                assert found is None
                continue
            assert found is not None and found.pages * page_size == tokens
            assert found.members.tolist() == [False] * len(others) + [True] * 8 and found.leader == len(others)
            longer = finder.find([world.sequence(len(row) + 1, row) for row in rows])
            assert longer is not None and longer.pages == found.pages


def test_what_cannot_run_is_said_at_once(calls, monkeypatch):
    pool = KVPool(2, 8, 2, 64, torch.float32)
    with pytest.raises(BackendUnavailable, match="float32"):
        backend.FlashInferAttention(pool, SHAPE)
    pool = KVPool(2, 8, 2, 64, torch.bfloat16)
    with pytest.raises(BackendUnavailable, match="rest of the batch"):
        backend.FlashInferAttention(pool, SHAPE, deterministic=True)
    with pytest.raises(BackendUnavailable, match="head_dim"):
        backend.FlashInferAttention(pool, AttentionShape(4, 2, 80, (None,)))

    for shape, message in (
        (AttentionShape(2, 2, 64, (None,), alibi=(0.5, 0.1)), "ALiBi"),
        (AttentionShape(2, 2, 64, (None,), value_dim=32), "32 and 64"),
        (AttentionShape(2, 2, 64, (None, None), chunks=(None, 8)), "chunks"),
    ):
        with pytest.raises(BackendUnavailable, match=message):
            backend.FlashInferAttention(pool, shape)

    def fail(self, *arguments):
        raise RuntimeError("Ninja build failed. Ninja output:\n[1/2] nvcc\nx.cu: error: no such thing\n")

    monkeypatch.setattr(StandIn, "plan", fail)
    with pytest.raises(BackendUnavailable, match=r"x\.cu: error: no such thing"):
        backend.FlashInferAttention(pool, SHAPE)


class Spec:
    is_aot = is_compiled = False
    build_dir = Path("/cache/x")

    def __init__(self, built):
        self.built = built

    def build(self, verbose):
        self.built.append(verbose)


@pytest.fixture
def package(monkeypatch):
    """A flashinfer whose kernels were never compiled; returns what is built."""
    built: list[bool] = []
    jit = SimpleNamespace(gen_batch_prefill_module=lambda *arguments: Spec(built))
    prefill = SimpleNamespace(get_batch_prefill_module=lambda *arguments: arguments)
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(jit=jit, prefill=prefill))
    monkeypatch.setitem(sys.modules, "flashinfer.prefill", prefill)
    return built


KIND = FlashInferModule("fa2", torch.bfloat16, torch.bfloat16, 128, False)


def test_modules_are_compiled_once(package, monkeypatch):
    monkeypatch.setattr(modules.shutil, "which", lambda name: name)
    found = modules.load([KIND, KIND._replace(backend="fa3")])
    assert [arguments[0] for arguments in found.values()] == ["fa2", "fa3"] and package == [False, False]
    monkeypatch.setattr(Spec, "is_compiled", True)
    assert modules.load([KIND])[KIND][-2:] == (False, False) and len(package) == 2


def test_a_missing_compiler_or_package_is_said(package, monkeypatch):
    monkeypatch.delenv("FLASHINFER_NVCC", raising=False)
    monkeypatch.setattr(modules.shutil, "which", lambda name: None if "nvcc" in name else name)
    with pytest.raises(BackendUnavailable, match="nvcc is not installed"):
        modules.load([KIND])
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(BackendUnavailable, match="cannot be imported"):
        modules.load([KIND])


def test_scratch_is_enough_for_the_plans_of_flashinfer():
    """Its rule for Llama 8B on 132 multiprocessors: 264 / 8 tiles of 128
    rows, or what 1024 queries of a prefix fill.
    """
    shape = AttentionShape(32, 8, 128, (None,))
    for sequences, tiles in ((256, 33), (2048, 64)):
        assert float_bytes(shape, sequences, 132) >= 32 * tiles * 128 * 129 * 4
    assert float_bytes(shape, 256, 132) < 100e6
