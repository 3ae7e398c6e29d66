"""benchmarks/gpu_kernels.py with tiny shapes in Triton's interpreter: it runs, and its tables say what was asked."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, run benchmarks/gpu_kernels.py", allow_module_level=True)

from interpreted import products_as_on_a_tensor_core

from sgl.runtime.attention import triton_attention as backend
from sgl.runtime.kernels.attention.attention_decode import DecodeTile
from sgl.runtime.kernels.attention.attention_prefill import PrefillTile
from sgl.runtime.kernels.batch_invariant_matmul import PLAIN
from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = (
    "attention",
    "chain",
    "flashinfer",
    "fp8",
    "gated",
    "few_bits",
    "lab",
    "layers",
    "loading",
    "matmul",
    "mixed",
    "one_row",
    "roof",
    "sampler",
    "sizes",
    "steps",
)
CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning")


@pytest.fixture(scope="module")
def parts():
    """The benchmark's modules by name."""
    with pytest.MonkeyPatch.context() as patch, products_as_on_a_tensor_core():
        patch.syspath_prepend(str(BENCHMARKS))
        modules = {name: importlib.import_module(f"gpu_kernel_{name}") for name in PARTS}
        yield argparse.Namespace(
            **modules, main=importlib.import_module("gpu_kernels"), shapes=importlib.import_module("gpu_shapes")
        )


@pytest.fixture(autouse=True)
def few_programs(parts, monkeypatch):
    """The interpreter's time is that of its programs."""
    tiles = DecodeTile(16, 16, 8), PrefillTile(16, 16, segment=16)
    monkeypatch.setattr(backend, "tiles_for", lambda *about: tiles)
    for module in (gemv, parts.one_row, parts.chain):
        monkeypatch.setattr(module, "best_launch", lambda *about: GemvLaunch(16, 32, 1))
    monkeypatch.setattr(parts.attention, "MOST_RUNNING", 8)
    monkeypatch.setattr(parts.attention, "CONTEXT", 64)
    monkeypatch.setattr(parts.attention, "DECODE_TILES", tiles[:1])
    monkeypatch.setattr(parts.attention, "PREFILL_TILES", tiles[1:])


@pytest.fixture
def lab(parts):
    sizes = parts.sizes.Sizes(
        cold=4096,
        load=0.0,
        roof_load=0.01,
        roof_rows=(8,),
        chain=1,
        chain_contexts=(9, 20),
        decodes=((2, 20), (1, 9)),
        extends=((2, 0, 5), (1, 7, 3)),
        shared=(8, 12, 3),
        slots=200,
        rows=(1, 20),
        fp8_rows=(16,),
        gated_rows=(20,),
        few_bits_rows=(1, 20),
        layer_rows=(1, 5),
        sampled=(1, 2),
        mixed=(1, 3),
        context=10,
        steps=2,
        loaded=1,
    )
    shape = parts.shapes.Shape("smaller", 32, 2, 4, 2, 16, 32, 64, positions=64, context=64)
    return parts.lab.Lab(shape, CPU, torch.float32, sizes, parts.lab.Roof(1e10, 1e11), attention="triton")


def check(lab, rows: int, missing: int = 0) -> None:
    """So many rows with times of ours, and so many failures, of peers that are not here."""
    assert len(lab.rows) == rows and len(lab.failures) == missing, lab.failures
    for row in lab.rows:
        assert all(seconds > 0 for seconds in row.ours.values()), row
        assert row.moved > 0 and lab.roof.seconds(row.moved, row.flops) > 0


def test_one_row(parts, lab, monkeypatch):
    monkeypatch.setattr(parts.one_row, "CUTS", [(8, 16, 1)])
    lab.tune = True
    parts.one_row.measure(lab)
    check(lab, 6)
    assert sum(", in use" in line for line in lab.text) == 5


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ],
)
def test_chain(parts, lab, monkeypatch, keys):
    """A layer as an engine cuts it, and the best of two cuts of each part; whatever the cut, the row is the same."""
    chain, tiles = parts.chain, [DecodeTile(16, 16, 8, merged=2), DecodeTile(16, 16, 4, merged=4)]
    for name, cuts in {
        "LAUNCHES": [GemvLaunch(8, 16, 1)],
        "UPS": [chain.ExpertGemvLaunch(2, 32, 1)],
        "DOWNS": [chain.ExpertGemvLaunch(4, 16, 1)],
        "TILES": tiles,
        "BYTES": 1,
        "TURNS": 1,
    }.items():
        monkeypatch.setattr(chain, name, cuts)
    lab.shape, lab.tune = replace(lab.shape, keys=keys), True
    chain.measure(lab)
    check(lab, 2)
    assert sum(", in use" in line for line in lab.text) == 2 * 5
    layers = chain.Chain(lab)
    others = layers.cuts() | {"qkv": GemvLaunch(8, 16, 1), "attention": tiles[1]}
    torch.testing.assert_close(
        layers.run(layers.layers, 20, layers.cuts()), layers.run(layers.layers, 20, others), rtol=1e-4, atol=1e-4
    )


def test_attention(parts, lab):
    lab.tune = True
    parts.attention.measure(lab)
    check(lab, 5, missing=3 + 2 * 2)
    assert all("flashinfer" in failure for failure in lab.failures)


def test_the_steps_are_what_attention_computes(parts, lab):
    """Against a softmax written out, over the slots that the host knows; two sequences share a prefix."""
    attention = parts.attention.Attention(lab)
    work = [(9, 1), (6, 4)]
    batch = parts.steps.step_of(work, attention.pool, prefix=5)
    assert (batch.context_slots[0][:5] == batch.context_slots[1][:5]).all()
    assert len({*batch.context_slots[0], *batch.context_slots[1]}) == 15
    q = lab.random(5, lab.shape.heads, lab.shape.head_dim)
    found = parts.attention._attend(attention.triton, batch, q)(1)
    rows = [(0, 10), (1, 7), (1, 8), (1, 9), (1, 10)]  # of each query: its sequence, and how many tokens it sees
    for query, out, (sequence, seen) in zip(q, found, rows, strict=True):
        slots = torch.from_numpy(batch.context_slots[sequence][:seen]).long()
        k, v = (stored[1][slots].repeat_interleave(2, 1) for stored in (attention.pool.k, attention.pool.v))
        weights = (torch.einsum("hd,khd->hk", query, k) / math.sqrt(lab.shape.head_dim)).softmax(-1)
        torch.testing.assert_close(out, torch.einsum("hk,khd->hd", weights, v), atol=1e-5, rtol=1e-4)
    assert attention.amount(work, 5)[0] == (5 + 10) * 2 * lab.shape.kv_heads * lab.shape.head_dim * 4


class Wrapper:
    """Stands for flashinfer's wrappers: their arguments, in their order, and attention by definition."""

    def __init__(self, workspace, layout, use_tensor_cores=None, backend=None):
        assert layout == "NHD" and (use_tensor_cores is True or backend in ("fa2", "fa3"))
        self.decodes = backend is None

    def plan(self, *indices, q_data_type, kv_data_type, causal=None):
        if self.decodes:
            indices = (torch.arange(len(indices[0]), dtype=torch.int32), *indices)
        self.queries, self.begins, self.pages, last, heads, kv_heads, dim, page_size = indices
        assert all(lengths.dtype == torch.int32 for lengths in (self.queries, self.begins, self.pages, last))
        assert (last == 1).all() and len(last) == len(self.begins) - 1 == len(self.queries) - 1
        assert (heads, kv_heads, dim, page_size) == (4, 2, 16, 1) and q_data_type == kv_data_type == torch.float32
        assert causal is (None if self.decodes else True)

    def run(self, q, pools, out):
        for index in range(len(self.begins) - 1):
            pages = self.pages[self.begins[index] : self.begins[index + 1]].long()
            k, v = (pool[pages, 0].repeat_interleave(2, 1) for pool in pools)
            rows = slice(self.queries[index], self.queries[index + 1])
            scores = torch.einsum("qhd,khd->hqk", q[rows], k) / 4
            seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(pages) - scores.shape[1])
            out[rows] = torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1), v)
        return out


@pytest.mark.parametrize("work", [[(8, 1), (3, 1)], [(4, 3), (0, 5)]])
def test_flashinfer_is_asked_for_the_same(parts, lab, monkeypatch, work):
    fake = types.SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=Wrapper, BatchPrefillWithPagedKVCacheWrapper=Wrapper
    )
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    monkeypatch.setattr(parts.flashinfer, "WORKSPACE", 8)
    attention = parts.attention.Attention(lab)
    batch = parts.steps.step_of(work, attention.pool)
    q = lab.random(sum(batch.query_lens), 4, 16)
    expected = parts.attention._attend(attention.triton, batch, q)(2)
    peers = parts.flashinfer.planned(lab, attention.pool, batch, q)
    assert len(peers) == (1 if work[0][1] == 1 else 2)
    for plan in peers.values():
        torch.testing.assert_close(plan()(2), expected, atol=1e-5, rtol=1e-4)


def test_matmul(parts, lab, monkeypatch):
    monkeypatch.setattr(parts.matmul, "TILES", {2**31: [PLAIN]})
    lab.tune = True
    parts.matmul.measure(lab)
    check(lab, 2 * 4)
    assert sum("bits equal" in line for line in lab.text) == 2 * 4


def test_fp8(parts, lab):
    lab.dtype = torch.bfloat16
    parts.fp8.measure(lab)
    assert all("_scaled_mm" in failure for failure in lab.failures)
    check(lab, 5 + 4 + 1, missing=len(lab.failures))
    assert lab.rows[-1].ours["float8"] == pytest.approx(sum(row.ours["float8"] for row in lab.rows[5:9]))


def test_gated(parts, lab):
    lab.dtype = torch.float16
    parts.gated.measure(lab)
    check(lab, 1)


def test_few_bits(parts, lab):
    lab.dtype = torch.bfloat16
    parts.few_bits.measure(lab)
    check(lab, 4 * 2 + 2 + 4 * 2 + 9)  # four bits and their sums, int8, other forms
    assert lab.rows[8].ours["int4"] == pytest.approx(
        sum(row.ours["int4"] for row in lab.rows[:8] if row.case == "1 rows")
    )


def test_sampler(parts, lab):
    parts.sampler.measure(lab)
    check(lab, 2 * 8)


def test_the_sampler_s_peers_keep_what_ours_keeps(parts):
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.04, 0.01]])).repeat(200, 1)
    assert set(parts.sampler.PEERS["top_p 0.9"](logits).tolist()) == {0, 1, 2}
    assert set(parts.sampler.PEERS["greedy"](logits).tolist()) == {0}


def test_layers(parts, lab):
    parts.layers.measure(lab)
    check(lab, 2 * 5)


def test_the_layers_peers_do_the_same(parts, lab, monkeypatch):
    seen = []
    monkeypatch.setattr(
        parts.layers,
        "_row",
        lambda lab, name, rows, numbers, ours, peer, items: seen.append((name, ours, peer, items[0])),
    )
    for maker in (parts.layers._norm, parts.layers._activation, parts.layers._embedding):
        maker(lab, 3)
    for name, ours, peer, item in seen:
        torch.testing.assert_close(ours(item), peer(item), msg=name)


def test_loading(parts, lab, capsys):
    lab.shape = parts.shapes.SHAPES["tiny"]
    parts.loading.measure(lab)
    assert "load_model" in lab.text[-1] and "8 threads" in lab.text[-1] and "wake" in lab.text[-1]
    assert not lab.failures


def test_mixed(parts, lab):
    lab.shape = parts.shapes.SHAPES["tiny"]
    parts.mixed.measure(lab)
    check(lab, 2 * 2)


def test_mixed_steps_run_in_pieces_and_eagerly_and_leave_the_runner_as_it_was(parts, lab):
    lab.shape, pieces, seen = parts.shapes.SHAPES["tiny"], object(), []

    def forward(work):
        seen.append((runner._mixed is pieces, [item.hi - item.lo for item in work]))

    runner = types.SimpleNamespace(_mixed=pieces, forward=forward)
    rows = parts.mixed._rows(lab, runner, 5, size=1e6)
    assert [row.what for row in rows] == ["mixed", "decode"] and rows[0].peers.keys() == {
        "eager gpu",
        "eager step",
        "eager host",
    }
    steps, uneven = len(seen) // 3, [1, 1, 1, 1, 5]
    assert seen == [(True, uneven)] * steps + [(False, uneven)] * steps + [(True, [1] * 5)] * steps
    assert runner._mixed is pieces


def test_the_roofline(parts, lab):
    roof, text = parts.roof.roofline(lab.shape, CPU, torch.float32, lab.sizes)
    assert roof.copy > 0 and roof.matmul > 0 and "8 rows" in text
    assert roof.seconds(roof.copy, 3 * roof.matmul) == pytest.approx(3.0)


def test_a_row_tells_rate_share_and_ratio_of_the_first_of_ours(parts):
    row = parts.lab.Row("x", "1 row", {"a": 2.0, "b": 1.0}, {"peer": 3.0, "absent": math.nan}, moved=4e12)
    assert row.cells(parts.lab.Roof(4e12, 1e15)) == ["2.00 TB/s", "50", "1.50"]
    row.flops = 6e15
    assert row.cells(parts.lab.Roof(4e12, 6e15)) == ["2.00 TB/s", "50", "1.50"]
    assert row.cells(parts.lab.Roof(4e12, 5e15))[:2] == ["3000 TFLOP/s", "60"]


class Graph:
    """A captured graph that does nothing."""

    def replay(self): ...


class Event:
    """On a clock that only replays and calls move."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.now

    def synchronize(self): ...

    def elapsed_time(self, other):
        return other.at - self.at


@pytest.mark.parametrize("load", [0.0, 0.01])
def test_times_are_those_of_one_call(parts, lab, monkeypatch, load):
    """With stand-ins for CUDA: a graph of n calls takes n ms."""
    calls = []

    def replay(graph):
        Event.now += len(calls) - 1

    monkeypatch.setattr(Graph, "replay", replay)
    for name, value in {
        "CUDAGraph": Graph,
        "graph": lambda graph: nullcontext(),
        "Event": Event,
        "synchronize": lambda *device: None,
        "_sleep": lambda cycles: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    lab.device = torch.device("cuda")
    assert lab.seconds(calls.append, [1, 2, 3], load) == pytest.approx(1e-3)
    assert len(calls) == 1 + (3 if load else 24)
    assert lab.queued(lambda: setattr(Event, "now", Event.now + 2)) == pytest.approx(2e-3)
    assert lab.host(lambda: None, 3) >= 0


def test_a_whole_run(parts, lab, tmp_path, capsys):
    args = parts.main.options(["gated", "layers", "--out", str(tmp_path / "out.txt")])
    assert parts.main.run(args, lab.shape, CPU, torch.float16, lab.sizes) == 0
    text = (tmp_path / "out.txt").read_text()
    assert text.count("== ") == 3 and "norm_rope_store" in text and "copies" in text
    assert text.strip() == capsys.readouterr().out.strip()


def test_the_steps_of_the_real_sizes_fit_the_pool(parts):
    for sizes in (parts.sizes.Sizes(), parts.sizes.QUICK):
        count, prefix, own = sizes.shared
        steps = [
            *(n * context for n, context in sizes.decodes),
            *(n * (cached + new) for n, cached, new in sizes.extends),
            prefix + count * own,
        ]
        assert max(steps) < sizes.slots
        assert max(cached + new for _, cached, new in sizes.extends) <= parts.shapes.SHAPES["llama8b"].context


def test_a_failing_case_is_told_and_does_not_end_the_run(parts, lab, monkeypatch):
    monkeypatch.setattr(parts.gated, "measure", lambda lab: 1 / 0)
    parts.main.one(lab, "gated")
    assert lab.failures == ["gated"] and "ZeroDivisionError" in lab.text[-1]


def test_without_a_device_it_says_so(parts, capsys):
    assert parts.main.main(["one_row"]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


def test_a_case_that_is_not_known(parts, capsys):
    with pytest.raises(SystemExit) as ended:
        parts.main.options(["one_row", "bogus"])
    assert ended.value.code == 2 and "no case 'bogus'" in capsys.readouterr().err
    assert parts.main.options(["--quick"]).cases == list(parts.main.CASES)
