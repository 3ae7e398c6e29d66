"""The one-row kernels on the device, at the sizes of real models, alone and chained inside a captured CUDA graph."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))
from gemv_oracle import (
    BITS,
    CASES,
    EPS,
    Case,
    angles,
    check_gate_up,
    check_head,
    check_linear,
    check_linear_add,
    check_normed_heads,
    check_qkv,
    layer,
    random,
    stored,
)

from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch, TensorCoreGemvLaunch
from sgl.runtime.kernels.launch import programmatic_launch as overlapping

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LLAMA_8B = Case(4096, 32, 8, 128, 14336, 128256, torch.bfloat16)
REAL = [
    LLAMA_8B,
    Case(2048, 32, 8, 64, 8192, 128256, torch.bfloat16),
    Case(896, 14, 2, 64, 4864, 151936, torch.bfloat16, True),
    Case(5120, 40, 8, 128, 13824, 32000, torch.float16),
    Case(1024, 8, 4, 96, 3000, 5003, torch.float32, True),
    LLAMA_8B._replace(fp8=True),
    LLAMA_8B._replace(bits="bytes"),
    Case(2048, 32, 8, 64, 8192, 1000, torch.bfloat16, True, fp8=True),
    Case(2560, 8, 4, 256, 10240, 4000, torch.bfloat16),
    Case(2560, 32, 8, 128, 9728, 4000, torch.bfloat16),
]
LAUNCHES = [None, GemvLaunch(2, 4096, 4), GemvLaunch(8, 512, 2)]


@pytest.fixture(params=[False, True], ids=["apart", "overlapped"])
def overlap(request, monkeypatch) -> bool:
    monkeypatch.setattr(overlapping, "OVERLAP", request.param)
    return request.param


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize("case", REAL + CASES, ids=str)
def test_every_kernel(case: Case, launch: GemvLaunch | None, overlap):
    check_qkv(case, "cuda", launch)
    check_qkv(case, "cuda", launch, normed=False)
    check_normed_heads(case, "cuda", launch)
    check_linear(case, "cuda", launch)
    check_linear_add(case, "cuda", launch)
    check_gate_up(case, "cuda", launch)
    check_head(case, "cuda", launch)


REAL_BITS = [
    Case(4096, 32, 8, 128, 14336, 1000, torch.bfloat16, bits="zeros", group=64),
    Case(2560, 16, 8, 128, 9728, 1000, torch.bfloat16, bits="middle", group=128),
    Case(1536, 12, 2, 128, 8960, 1000, torch.float16, True, bits="offsets", group=32),
    Case(1536, 12, 2, 128, 8960, 1000, torch.bfloat16, True, bits="offsets", group=32),
    Case(2880, 12, 2, 64, 2880, 1000, torch.bfloat16, True, bits="an output", group=2**20),
]


LAUNCHES_OF_BITS = [
    None,
    GemvLaunch(16, 1024, 2),
    GemvLaunch(4, 2048, 4),
    TensorCoreGemvLaunch(16, 4, 1),
    TensorCoreGemvLaunch(32, 8, 1),
    TensorCoreGemvLaunch(16, 16, 9),
]


@pytest.mark.parametrize("launch", LAUNCHES_OF_BITS, ids=str)
@pytest.mark.parametrize("case", REAL_BITS + BITS, ids=str)
def test_weights_of_four_bits(case: Case, launch: GemvLaunch | TensorCoreGemvLaunch | None, overlap):
    if isinstance(launch, TensorCoreGemvLaunch) and (case.dtype != torch.bfloat16 or case.group == 16):
        launch = None
    check_qkv(case, "cuda", launch)
    check_qkv(case, "cuda", launch, normed=False)
    check_linear(case, "cuda", launch)
    check_linear_add(case, "cuda", launch)
    check_gate_up(case, "cuda", launch)
    check_head(case, "cuda", launch)


def test_padding_slot_and_scaled_fp8_pool(overlap):
    check_qkv(LLAMA_8B, "cuda", None, slot=0)
    check_qkv(LLAMA_8B, "cuda", None, scales=(0.05, 0.1), pool_dtype=torch.float8_e4m3fn)
    check_normed_heads(LLAMA_8B, "cuda", None, slot=0)
    check_normed_heads(LLAMA_8B, "cuda", None, scales=(0.05, 0.1), pool_dtype=torch.float8_e4m3fn)


class Chain:
    """Some layers without attention (the queries stand for its output), then the head."""

    def __init__(self, case: Case, layers: int) -> None:
        torch.manual_seed(5)
        self.case, width = case, case.queries * case.dim
        heads = (case.queries + 2 * case.keys) * case.dim
        sizes = [(heads, case.hidden), (case.hidden, width), (2 * case.inner, case.hidden), (case.hidden, case.inner)]
        self.layers = [[stored(case, layer(case, "cuda", *size)[0])[:2] for size in sizes] for _ in range(layers)]
        self.head = layer(case, "cuda", case.vocabulary, case.hidden)[0]
        self.norm, self.table = random(case, "cuda", case.hidden), angles(case, "cuda", 9)
        self.place = torch.tensor([3], dtype=torch.int32, device="cuda")
        self.pools = random(case, "cuda", 2, 5, case.keys, case.dim)

    def run(self, entry: Tensor) -> Tensor:
        x, case = entry.clone(), self.case
        for (qkv, a), (output, b), (gate_up, c), (down, d) in self.layers:
            q = gemv.qkv_rope_store(
                x,
                self.norm,
                EPS,
                qkv,
                None,
                case.queries,
                case.keys,
                self.table,
                self.place,
                self.place,
                *self.pools,
                weight_scale=a,
            )
            gemv.linear_add(q.view(1, -1), output, x, weight_scale=b)
            y = gemv.gate_up(x, self.norm, EPS, gate_up, weight_scale=c)
            gemv.linear_add(y, down, x, weight_scale=d)
        return gemv.norm_linear(x, self.norm, EPS, self.head)


def captured(chain: Chain, entry: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain.run(entry)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = chain.run(entry)
    return graph, logits


@pytest.mark.parametrize("case", [*REAL[:3], REAL[-2]], ids=str)
def test_a_captured_chain_gives_the_bits_of_separate_launches(case: Case, overlap, monkeypatch):
    """A kernel that read anything too early would differ in some of many replays, each from another row."""
    chain = Chain(case, 4)
    entry = random(case, "cuda", 1, case.hidden)
    graph, logits = captured(chain, entry)
    monkeypatch.setattr(overlapping, "OVERLAP", False)
    for _ in range(25):
        entry.copy_(random(case, "cuda", 1, case.hidden))
        graph.replay()
        found, pools = logits.clone(), chain.pools.clone()
        assert torch.isfinite(found).all()
        assert torch.equal(found, chain.run(entry))
        assert torch.equal(pools, chain.pools)


def test_a_captured_chain_of_norms_on_both_sides_gives_the_bits_of_separate_launches(overlap, monkeypatch):
    """Additions and norms between the products are launched so as to overlap as well."""
    from sgl.runtime.kernels.residual_norm import NormWeights, add_norm

    case = Case(2560, 8, 4, 256, 10240, 1000, torch.bfloat16)
    chain, weights = Chain(case, 4), NormWeights(torch.rand(case.hidden, device="cuda") + 0.5, None, EPS)

    def run(entry: Tensor) -> Tensor:
        x, over = entry.clone(), overlapping.overlaps(entry.device)
        delta = None
        for (qkv, _), (output, _), (gate_up, _), (down, _) in chain.layers:
            y = add_norm(x, delta, after=weights, before=weights, overlap=over)
            q = gemv.qkv_rope_store(
                y, None, EPS, qkv, None, case.queries, case.keys, chain.table, chain.place, chain.place, *chain.pools
            )
            y = add_norm(x, gemv.linear(q.view(1, -1), output), after=weights, before=weights, overlap=over)
            delta = gemv.linear(gemv.gate_up(y, None, EPS, gate_up, name="gelu_tanh"), down)
        return gemv.linear(add_norm(x, delta, after=weights, before=weights, overlap=over), chain.head)

    chain.run = run
    entry = random(case, "cuda", 1, case.hidden)
    graph, logits = captured(chain, entry)
    monkeypatch.setattr(overlapping, "OVERLAP", False)
    for _ in range(25):
        entry.copy_(random(case, "cuda", 1, case.hidden))
        graph.replay()
        found = logits.clone()
        assert torch.isfinite(found).all() and torch.equal(found, run(entry))
