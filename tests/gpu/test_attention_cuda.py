"""The GPU's attention backends agree with attention computed one sequence at a time, eagerly and in a CUDA graph.

Each page size, window, dtype and shape of heads is compiled anew: few of each here, more in tests/cpu's interpreter.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from attention_cases import Work, make_batch, make_pool, new_tokens, oracle, queries, random_kv, run, with_padding  # noqa: E402
from attention_oracle import World  # noqa: E402

from sgl.runtime.attention import AttentionLayout, AttentionShape, BackendUnavailable, LayerAttention, attention_backend  # noqa: E402
from sgl.runtime.attention.triton_attention import TritonAttention  # noqa: E402
from sgl.runtime.kernels.attention import merge_attention, page_indices  # noqa: E402
from sgl.runtime.kernels.attention.attention_decode import decode_kernel  # noqa: E402
from sgl.runtime.kernels.attention.attention_prefill import prefill_kernel  # noqa: E402
from sgl.runtime.kernels.attention.kv_cache_write import store_kernel  # noqa: E402
from sgl.runtime.layers.float8_reference import KVScaleFactors  # noqa: E402

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


@pytest.mark.parametrize(
    "name, page_size", [("flashinfer", 1), ("triton", 1), ("torch_native", 1), ("flashinfer", 16), ("triton", 16)]
)
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_backends_on_scattered_pages(name, work, page_size):
    check(name, work, LLAMA, page_size)


@pytest.mark.parametrize("work", [DECODES, MIXED], ids=["decodes", "mixed"])
def test_windows_of_some_layers(work):
    check("triton", work, AttentionShape(32, 8, 128, (None, 100)))


def test_float32():
    check("triton", MIXED, LLAMA, dtype=torch.float32)


@pytest.mark.parametrize("heads, dtype", [((14, 2, 64), torch.float16), ((8, 1, 256), torch.bfloat16)])
def test_head_counts_and_dims(heads, dtype):
    check("triton", MIXED, AttentionShape(*heads, (None,)), dtype=dtype)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_random_batches(name, seed):
    rng = np.random.default_rng(seed)
    work = [(int(n), 1) for n in rng.integers(0, 3000, rng.integers(0, 90))]
    work += [(int(c), int(n)) for c, n in zip(rng.integers(0, 900, 9), rng.integers(2, 400, 9), strict=True)]
    check(name, work, LLAMA, [1, 16][seed % 2], seed=seed)


def test_many_prefills_of_middling_length():
    """The composite gives them to Triton; the short and few behind long prefixes to flashinfer, which splits keys."""
    for work in ([(300, 1), *[(700, 64)] * 40], [(6000, 5), (7000, 16)]):
        check("flashinfer", work, LLAMA)


def test_eight_bit_keys_and_values():
    pool = make_pool(LLAMA, 20_000, torch.float8_e4m3fn, "cuda", poison=False)
    pool.scales = [KVScaleFactors(0.5, 0.25)]
    backend = backend_of("triton", pool, LLAMA)
    kv = random_kv(MIXED, LLAMA, torch.bfloat16, "cuda", 0)
    stored = [tuple((x.float() / s).to(pool.k.dtype) for x, s in zip(pair, (0.5, 0.25), strict=True)) for pair in kv]
    seen = [(keys.float() * 0.5, values.float() * 0.25) for keys, values in stored]
    batch = make_batch(MIXED, pool, stored)
    q = queries(MIXED, LLAMA, torch.bfloat16, "cuda")
    out = run(backend, batch, MIXED, kv, q)
    torch.testing.assert_close(out.float(), oracle(q, MIXED, seen, LLAMA), atol=3e-2, rtol=3e-2)


KERNELS = (decode_kernel, prefill_kernel, store_kernel, merge_attention._merge, page_indices._page_indices)


def compiled() -> int:
    return sum(len(cache[0]) for kernel in KERNELS for cache in kernel.device_caches.values())


@pytest.mark.parametrize("name", ["flashinfer", "triton"])
def test_nothing_is_compiled_after_the_start(name):
    """Whatever the number of sequences and tokens, the width of the table, and where views begin."""
    pool = make_pool(LLAMA, 60_000, torch.bfloat16, "cuda", poison=False)
    backend = backend_of(name, pool, LLAMA)
    warm: Work = [(5, 1), (9, 3)]
    run(
        backend,
        make_batch(warm, pool, kv := random_kv(warm, LLAMA, torch.bfloat16, "cuda", 0)),
        warm,
        kv,
        queries(warm, LLAMA, torch.bfloat16, "cuda"),
    )
    before = compiled()
    for seed, ones in enumerate((0, 1, 2, 3, 15, 16, 17, 100)):
        work = [(100 + 7 * n, 1) for n in range(ones)] + [(50, 1 + seed + n) for n in range(1 + seed % 3)] * (seed % 2)
        work = work or [(3, 40)]
        kv = random_kv(work, LLAMA, torch.bfloat16, "cuda", seed)
        batch = scattered(make_batch(work, pool, kv, seed=seed), seed)
        k, v = new_tokens(work, kv, 0)
        qkv = torch.cat([queries(work, LLAMA, torch.bfloat16, "cuda"), k, v], 1)
        q, k, v = qkv.split((32, 8, 8), 1)
        backend.plan(batch)
        backend.store(k, v, 0, batch)
        found = backend.attend(q, k, v, 0, batch)
        torch.testing.assert_close(found.float(), oracle(q, work, kv, LLAMA), atol=2e-2, rtol=2e-2)
    assert compiled() == before


def scattered(batch, offset: int):
    """The step's integers as views of one tensor that begin anywhere, and a table of another width."""
    names = ("rows", "starts", "contexts", "token_rows")
    values = [*(getattr(batch.device, name) for name in names), batch.slots]
    packed = torch.cat([torch.cat([value.new_zeros(1 + (offset + n) % 4), value]) for n, value in enumerate(values)])
    start, views = 0, []
    for n, value in enumerate(values):
        start += 1 + (offset + n) % 4
        views.append(packed[start : start + len(value)])
        start += len(value)
    table = torch.nn.functional.pad(batch.device.table, (0, offset))
    device = replace(batch.device, table=table, **dict(zip(names, views, strict=False)))
    return replace(batch, slots=views[-1], device=device)


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
        torch.testing.assert_close(out[:alive].float(), oracle(q[:alive], work, kv, LLAMA), atol=2e-2, rtol=2e-2)
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


@pytest.mark.parametrize("dtype, window", [(torch.bfloat16, None), (torch.bfloat16, 200), (torch.float32, None)])
def test_deterministic_bits_depend_on_the_sequence_alone(dtype, window):
    """The same tokens at once, in chunks, one by one at the end, behind a
    cached prefix, among others, on other pages.
    """
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


def test_ordered_sums_have_the_same_bits_in_one_program_or_many():
    work: Work = [(7000, 1), (3, 1), (511, 1), (512, 2), (1290, 3)]
    pool = make_pool(LLAMA, 20_000, torch.bfloat16, "cuda")
    kv = random_kv(work, LLAMA, torch.bfloat16, "cuda", 0)
    batch, q = make_batch(work, pool, kv), queries(work, LLAMA, torch.bfloat16, "cuda")
    backend = TritonAttention(pool, LLAMA, context=8192, deterministic=True)
    assert backend._splits is not None and backend._splits.tiles >= len(work)
    split = run(backend, batch, work, kv, q)
    for _ in range(50):
        assert torch.equal(run(backend, batch, work, kv, q), split)
    assert not backend._splits.counters.any()
    backend._splits.tiles = 0
    assert torch.equal(run(backend, batch, work, kv, q), split)
    torch.testing.assert_close(split.float(), oracle(q, work, kv, LLAMA), atol=2e-2, rtol=2e-2)


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
    assert ("flashinfer's" if backend.name == "flashinfer" else "no flashinfer") in backend.reason
    exact = attention_backend("auto", make_pool(LLAMA, 64, torch.float32, "cuda"), LLAMA)
    assert exact.name == "triton"


PLAIN = LayerAttention(8, 2, 128, 128, 0.1)
ASKED = {
    "soft cap": replace(PLAIN, softcap=5.0),
    "soft cap and window": replace(PLAIN, softcap=5.0, window=100),
    "chunk": replace(PLAIN, chunk=64),
    "chunk and window": replace(PLAIN, chunk=64, window=30),
    "wide": LayerAttention(4, 1, 512, 512, 1.0 / 32),
    "middling": LayerAttention(4, 2, 80, 80, 0.1),
}


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("backend", ["triton", "auto", "exact"])
@pytest.mark.parametrize("asked", ASKED)
def test_what_a_layer_may_ask(asked: str, backend: str, sinks: bool) -> None:
    work = [(300, 1), (3, 1), (70, 9), (20, 40)]
    world = World(AttentionLayout.of([PLAIN, ASKED[asked]]), work, torch.bfloat16, 16, device="cuda")
    found = world.backend("triton", deterministic=True) if backend == "exact" else world.backend(backend)
    assert found.capturable and all(found.reasons(layer)[0] != "torch_native" for layer in range(2))
    world.check(found, sinks, tolerance=2e-2)
