"""The GPU's attention backends agree with attention computed one sequence at a time, eagerly and in a CUDA graph."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from attention_cases import (  # noqa: E402
    Work,
    make_batch,
    make_pool,
    new_tokens,
    oracle,
    queries,
    random_kv,
    run,
    with_padding,
)

from sgl.runtime.attention import AttentionShape, BackendUnavailable, attention_backend  # noqa: E402
from sgl.runtime.attention.triton import TritonAttention  # noqa: E402

LLAMA = AttentionShape(32, 8, 128, (None,))
DECODES: Work = [(2047, 1), (0, 1), (383, 1), (1000, 1), (63, 1), (64, 1), (6000, 1)]
MIXED: Work = [(700, 1), (0, 1), (3, 1), (0, 300), (1000, 65), (40, 2), (513, 128)]
WORKS = {"decodes": DECODES, "mixed": MIXED, "one": [(383, 1)], "prefills": [(0, 512), (0, 33), (100, 1000)]}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def backend_of(name: str, pool, shape: AttentionShape, page_size: int = 1, **options):
    try:
        return attention_backend(
            name, pool, shape, page_size=page_size, **{"max_running": 256, "context": 8192, **options}
        )
    except BackendUnavailable as error:
        pytest.skip(str(error))


def check(
    name: str, work: Work, shape: AttentionShape, page_size: int = 1, dtype=torch.bfloat16, seed: int = 0
) -> None:
    slots = (sum(map(sum, work)) // page_size + len(work) + 8) * page_size
    pool = make_pool(shape, slots, dtype, "cuda")
    backend = backend_of(name, pool, shape, page_size)
    kv = random_kv(work, shape, dtype, "cuda", seed)
    batch = make_batch(work, pool, kv, page_size, seed)
    for layer in range(shape.layers):
        q = queries(work, shape, dtype, "cuda", seed=layer)
        out = run(backend, batch, work, kv, q, layer)
        limit = TOLERANCE[dtype]
        torch.testing.assert_close(out.float(), oracle(q, work, kv, shape, layer), atol=limit, rtol=limit)
    assert not pool.k[:, 0].any()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("name", ["flashinfer", "triton", "torch_native"])
def test_backends_on_scattered_pages(name, work, page_size):
    check(name, work, LLAMA, page_size)


@pytest.mark.parametrize("work", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_windows_of_some_layers(name, work):
    check(name, work, AttentionShape(32, 8, 128, (None, 100, 2000, None)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("work", [DECODES, MIXED], ids=["decodes", "mixed"])
def test_dtypes(work, dtype):
    check("triton", work, LLAMA, 4, dtype)


@pytest.mark.parametrize(
    "heads", [(14, 2, 64), (8, 8, 128), (28, 4, 128), (8, 1, 256), (6, 2, 96), (4, 2, 16)]
)
def test_head_counts_and_dims(heads):
    check("triton", MIXED, AttentionShape(*heads, (None,)))


@pytest.mark.parametrize("heads", [(14, 2, 64), (8, 1, 256), (4, 2, 16)])
def test_head_counts_and_dims_in_float32(heads):
    check("triton", MIXED, AttentionShape(*heads, (None,)), dtype=torch.float32)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_random_batches(name, seed):
    rng = np.random.default_rng(seed)
    work = [(int(n), 1) for n in rng.integers(0, 3000, rng.integers(0, 90))]
    work += [(int(c), int(n)) for c, n in zip(rng.integers(0, 900, 9), rng.integers(2, 400, 9), strict=True)]
    check(name, work, LLAMA, int(rng.choice([1, 4, 16])), seed=seed)


@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_eight_bit_keys_and_values(name):
    pool = make_pool(LLAMA, 20_000, torch.float8_e4m3fn, "cuda", poison=False)
    pool.k_scale, pool.v_scale = 0.5, 0.25
    backend = backend_of(name, pool, LLAMA)
    kv = random_kv(MIXED, LLAMA, torch.bfloat16, "cuda", 0)
    stored = [
        tuple((x.float() / s).to(pool.k.dtype) for x, s in zip(pair, (0.5, 0.25), strict=True)) for pair in kv
    ]
    seen = [(keys.float() * 0.5, values.float() * 0.25) for keys, values in stored]
    batch = make_batch(MIXED, pool, stored)
    q = queries(MIXED, LLAMA, torch.bfloat16, "cuda")
    out = run(backend, batch, MIXED, kv, q)
    torch.testing.assert_close(out.float(), oracle(q, MIXED, seen, LLAMA), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_a_captured_decode_step_follows_growing_contexts(name, page_size, size):
    """Replays while contexts grow from a few tokens to thousands; then fewer sequences, padded to the graph's size."""
    pool = make_pool(LLAMA, 280_000, torch.bfloat16, "cuda", poison=False)
    backend = backend_of(name, pool, LLAMA, page_size, context=270_000)
    rng = np.random.default_rng(size)
    captured = step(pool, rng, size, size, 9, page_size)
    work, kv, batch = captured
    q = torch.randn(size, 32, 128, device="cuda").bfloat16()
    backend.plan(batch)
    k, v = new_tokens(work, kv, 0)
    backend.attend(q, k, v, 0, batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend.attend(q, k, v, 0, batch)
    for longest, alive in [(9, size), (300, size), (2500, max(1, size - 3)), (4000, size), (40, 1)]:
        work, kv, now = step(pool, rng, size, alive, longest, page_size)
        refill(batch, now)
        backend.plan(batch)
        write(pool, now, work, kv)
        q.normal_()
        graph.replay()
        torch.testing.assert_close(
            out[:alive].float(), oracle(q[:alive], work, kv, LLAMA), atol=2e-2, rtol=2e-2
        )
        assert out.isfinite().all()


def step(pool, rng, size: int, alive: int, longest: int, page_size: int):
    work = [(int(n), 1) for n in rng.integers(0, longest, alive)]
    kv = random_kv(work, LLAMA, torch.bfloat16, "cuda", int(rng.integers(1000)))
    batch = make_batch(work, pool, kv, page_size, int(rng.integers(1000)), rows=size)
    wide = torch.zeros(size + 2, 4100 // page_size + 8, dtype=torch.int32, device="cuda")
    table = batch.device.table
    wide[: len(table), : table.shape[1]] = table
    batch.device.table = wide
    return work, kv, with_padding(batch, size)


def refill(static, now) -> None:
    """What the runner does before a replay: the same tensors, new contents."""
    static.query_lens, static.context_lens, static.context_slots = (
        now.query_lens,
        now.context_lens,
        now.context_slots,
    )
    for name in ("rows", "token_rows", "starts", "contexts", "table"):
        getattr(static.device, name).copy_(getattr(now.device, name))
    static.slots.copy_(now.slots)


def write(pool, batch, work: Work, kv) -> None:
    places = batch.slots[: len(work)].long()
    for target, new in zip((pool.k, pool.v), new_tokens(work, kv, 0), strict=True):
        target[0, places] = new


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 200])
def test_deterministic_bits_depend_on_the_sequence_alone(window, dtype):
    """The same tokens at once, in chunks, one by one at the end, behind a cached prefix, among others, on other pages."""
    shape, total = AttentionShape(32, 8, 128, (window,)), 1300
    kv = random_kv([(0, total)], shape, dtype, "cuda", 0)[0]
    q = queries([(0, total)], shape, dtype, "cuda")
    whole = deterministic(shape, dtype, kv, q, (0, total), [], 0)
    torch.testing.assert_close(whole.float(), oracle(q, [(0, total)], [kv], shape), atol=2e-2, rtol=2e-2)
    crowd: Work = [(700, 1), (2, 1), (0, 180), (40, 3)] + [(99, 1)] * 60
    for bounds, others in [([777, total], [(9, 3)]), ([5, 6, 7, 640, 1298, 1299, total], crowd)]:
        cached = 0
        for stop in bounds:
            part = deterministic(shape, dtype, kv, q, (cached, stop - cached), others, stop)
            assert torch.equal(part, whole[cached:stop]), (cached, stop)
            cached = stop


def deterministic(shape, dtype, kv, q, own: tuple[int, int], others: Work, seed: int) -> torch.Tensor:
    (cached, new), work = own, [*others, own]
    pool = make_pool(shape, 20_000, dtype, "cuda")
    stored = [*random_kv(others, shape, dtype, "cuda", seed), tuple(part[:, : cached + new] for part in kv)]
    batch = make_batch(work, pool, stored, seed=seed)
    beside = queries(others, shape, dtype, "cuda") if others else q[:0]
    backend = TritonAttention(pool, shape, deterministic=True)
    return run(backend, batch, work, stored, torch.cat([beside, q[cached : cached + new]]))[-new:]


def test_decodes_give_the_same_bits_each_time_and_leave_the_counters_at_zero():
    pool = make_pool(LLAMA, 20_000, torch.bfloat16, "cuda")
    kv = random_kv(DECODES, LLAMA, torch.bfloat16, "cuda", 0)
    batch = make_batch(DECODES, pool, kv)
    backend = TritonAttention(pool, LLAMA)
    q = queries(DECODES, LLAMA, torch.bfloat16, "cuda")
    first = run(backend, batch, DECODES, kv, q)
    for _ in range(200):
        assert torch.equal(run(backend, batch, DECODES, kv, q), first)
    assert not backend._scratch.counters.any()


def test_auto_says_what_it_chose_and_why():
    pool = make_pool(LLAMA, 64, torch.bfloat16, "cuda")
    backend = attention_backend("auto", pool, LLAMA, page_size=1, max_running=8, context=1024)
    assert backend.name in ("flashinfer", "triton") and backend.reason
    assert backend.name == "flashinfer" or "no flashinfer" in backend.reason
    exact = attention_backend("auto", make_pool(LLAMA, 64, torch.float32, "cuda"), LLAMA)
    assert exact.name == "triton"
