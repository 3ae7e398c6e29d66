"""What an adapter adds to the products of one row, by their kernels, against weights
with the pairs added to them in plain float.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from gemv_oracle import ROUGH, angles, norm, rotated
from test_adapters_triton import site

from sgl.runtime.adapters.adapter import AdapterPacker
from sgl.runtime.adapters.adapter_sites import AdapterSite
from sgl.runtime.adapters.adapter_slots import AdapterSlots
from sgl.runtime.adapters.choose_adapter_kernels import adapter_products_for
from sgl.runtime.adapters.gpu_adapter_products import GpuAdapterProducts
from sgl.runtime.adapters.lora_linear import AdaptedLinear, ReferenceAdapters, rows_of
from sgl.runtime.kernels.attention.qk_norm_rope_store import QkNormWeights
from sgl.runtime.kernels.gemv import gemv, gemv_lora
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch
from sgl.runtime.kernels.gemv.gemv_qk_norm import qkv_norm_rope_store
from sgl.runtime.kernels.residual_norm import NormWeights
from sgl.runtime.layers import float8_reference
from sgl.runtime.layers.activation_functions import ACTIVATIONS
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.models.gpu.gemv_layers import can_run_gemv, multiply
from sgl.runtime.quantization import Fp8Linear, GpuQuantizedLinear
from sgl.runtime.quantization.gpu_quantized_linear import DeterministicGpuQuantizedLinear
from sgl.runtime.quantization.quantized_weight import QuantizedWeight

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS, HIDDEN, INNER, DIM, QUERIES, KEYS = 1e-5, 48, 20, 8, 4, 2
QKV, OUT, UP, DOWN = range(4)
SITES = (
    site(QKV, HIDDEN, (QUERIES * DIM, KEYS * DIM, KEYS * DIM)),
    site(OUT, QUERIES * DIM, (HIDDEN,)),
    site(UP, HIDDEN, (INNER, INNER)),
    site(DOWN, 37, (HIDDEN,)),
)
RANKS, NARROW = (8, 12, 64, 4), (8, 12, 16, 4)
LEFT = {1: ("0.1", "2.0"), 2: ("1.0",), 3: ("0.0", "0.2", "3.0")}  # modules that an adapter leaves as they are
Adapters = list[dict[str, tuple[Tensor, Tensor, float]]]


class Made:
    """A law over slots in which adapters lie; `owner` is whose row the step at hand has, None: nobody's."""

    def __init__(self, dtype: torch.dtype, ranks: tuple[int, ...] = RANKS) -> None:
        torch.manual_seed(len(ranks))
        slots, self.dtype = (
            AdapterSlots(SITES, dtype, HERE, {8: 2, 16: 2} | {rank: 1 for rank in ranks if rank > 16}, False),
            dtype,
        )
        self.law, self.adapters, self.numbers = GpuAdapterProducts(slots, SITES), [], []
        for number, rank in enumerate(ranks):
            pairs = {
                module: (torch.randn(rank, each.inputs) / 8, torch.randn(size, rank) / 4, 0.5 + number)
                for each in SITES
                for module, size in zip(each.modules, each.sizes, strict=True)
                if module not in LEFT.get(number, ())
            }
            packed = AdapterPacker(SITES, dtype).pack(pairs)
            assert slots.take(packed.digest, packed, False)
            self.numbers.append(slots.slot_of(packed.digest))
            self.adapters.append(pairs)

    def begin(self, owner: int | None) -> Made:
        self.owner, slot = owner, -1 if owner is None else self.numbers[owner]
        self.law.begin(rows_of([slot], [1], [0]))
        return self

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape).to(HERE, self.dtype)

    def with_pairs(self, weight: Tensor, number: int) -> Tensor:
        """weight [out, in] of a site, and what its pairs are, float."""
        found, each, at = weight.float().cpu().clone(), SITES[number], 0
        for module, size in zip(each.modules, each.sizes, strict=True):
            if self.owner is not None and module in self.adapters[self.owner]:
                first, second, scale = self.adapters[self.owner][module]
                found[at : at + size] += scale * second.to(self.dtype).float() @ first.to(self.dtype).float()
            at += size
        return found.to(HERE)

    def pair(self, x: Tensor, weights: Tensor | None, number: int) -> gemv_lora.GemvLora:
        return self.law.pair_of_row(
            x, None if weights is None else NormWeights(weights, None, EPS, False), SITES[number]
        )


@pytest.fixture(autouse=True)
def unwritten_is_unread(monkeypatch):
    """A small block and few of them ahead, so that all ways of going through A are taken;
    memory that nobody has written is not a number.
    """
    monkeypatch.setattr(gemv_lora, "BLOCK", 16)
    monkeypatch.setattr(gemv_lora, "AHEAD", 2)
    empty = torch.empty
    monkeypatch.setattr(gemv_lora, "torch", SimpleNamespace(**vars(torch)))
    monkeypatch.setattr(gemv_lora.torch, "empty", lambda *shape, **keys: empty(*shape, **keys).fill_(float("nan")))


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    rough = ROUGH[dtype] * max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(found.float(), wanted.float(), atol=rough, rtol=ROUGH[dtype])


def check(made: Made, launch: GemvLaunch | None, biased: bool) -> None:
    for number in (OUT, DOWN):
        each = SITES[number]
        y, weight, x = made.draw(1, each.inputs), made.draw(each.outputs, each.inputs) / 4, made.draw(1, each.outputs)
        bias = made.draw(each.outputs) if biased else None
        wanted = torch.nn.functional.linear(
            y.float(), made.with_pairs(weight, number), None if bias is None else bias.float()
        )
        close(gemv.linear(y, weight, bias, launch, pair=made.pair(y, None, number)), wanted, made.dtype)
        close(
            gemv.linear_add(y, weight, x.clone(), bias, launch, pair=made.pair(y, None, number)), x + wanted, made.dtype
        )
    x, weights, weight = made.draw(1, HIDDEN), made.draw(HIDDEN), made.draw(2 * INNER, HIDDEN) / 8
    for normed in (weights, None):
        y = x.float() if normed is None else norm(x, normed)
        wanted = y @ made.with_pairs(weight, UP).T
        gate, up = wanted.chunk(2, 1)
        close(
            gemv.gate_up(x, normed, EPS, weight, None, launch, name="silu", pair=made.pair(x, normed, UP)),
            ACTIVATIONS["silu"](gate) * up,
            made.dtype,
        )
        if normed is not None:
            close(
                gemv.norm_linear(x, normed, EPS, weight, None, launch, pair=made.pair(x, normed, UP)),
                wanted,
                made.dtype,
            )


def check_heads(made: Made, launch: GemvLaunch | None, biased: bool) -> None:
    """Queries, keys and values, with and without norms of heads."""
    outputs, turned = SITES[QKV].outputs, QUERIES + KEYS
    x, weights, weight = made.draw(1, HIDDEN), made.draw(HIDDEN), made.draw(outputs, HIDDEN) / 8
    bias = made.draw(outputs) if biased else None
    table, at = (
        angles(SimpleNamespace(dim=DIM, dtype=made.dtype), str(HERE), 9),
        [torch.tensor([n], dtype=torch.int32, device=HERE) for n in (7, 3)],
    )  # type: ignore[arg-type]
    head_norm = QkNormWeights(made.draw(turned, DIM), EPS, counters=torch.zeros(turned, dtype=torch.int32, device=HERE))
    heads = (norm(x, weights) @ made.with_pairs(weight, QKV).T + (0 if bias is None else bias.float())).view(-1, DIM)
    unit = heads[:turned] * (heads[:turned].square().mean(1, keepdim=True) + EPS).rsqrt() * head_norm.weight.float()
    for of_heads in (False, True):
        pools = [made.draw(5, KEYS, DIM) for _ in range(2)]
        given, more = (
            (x, weights, EPS, weight, bias, QUERIES, KEYS),
            {"launch": launch, "pair": made.pair(x, weights, QKV)},
        )
        q = (
            qkv_norm_rope_store(*given, head_norm, table, *at, *pools, **more)
            if of_heads
            else gemv.qkv_rope_store(*given, table, *at, *pools, **more)
        )  # type: ignore[arg-type]
        wanted = rotated(unit if of_heads else heads[:turned], table[7])
        close(q[0], wanted[:QUERIES], made.dtype)
        close(pools[0][3], wanted[QUERIES:], made.dtype)
        close(pools[1][3], heads[turned:], made.dtype)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "dtype, ranks, launch",
    [(torch.float32, NARROW, None), (torch.float32, NARROW, GemvLaunch(8, 16, 1)), (torch.bfloat16, RANKS, None)],
    ids=str,
)
def test_products_are_those_of_weights_with_the_pairs_in_them(
    dtype: torch.dtype, ranks: tuple[int, ...], launch: GemvLaunch | None
):
    made = Made(dtype, ranks)
    for owner in (None, 0, 1, 2, 3) if launch is None and ranks == NARROW else (2,):
        made.begin(owner)
        check(made, launch, launch is None)
        check_heads(made, launch, launch is None)


@pytest.mark.parametrize("form", ["fp8", "int8"])
def test_weights_with_scales(form: str):
    made = Made(torch.bfloat16).begin(2)
    y, weight = made.draw(1, 37), made.draw(HIDDEN, 37)
    scale = weight.float().abs().amax(1) / 127
    kept, scale = (
        float8_reference.quantize_weight(weight)
        if form == "fp8"
        else ((weight.float() / scale[:, None]).round().to(torch.int8), scale)
    )
    restored = kept.float() * scale[:, None]
    close(
        gemv.linear(y, kept, None, weight_scale=scale, pair=made.pair(y, None, DOWN)),
        y.float() @ made.with_pairs(restored, DOWN).T,
        made.dtype,
    )


def test_which_products_add_what_adapters_do():
    """And that they give what they gave, with the pair's part more, rounded once."""
    made = Made(torch.bfloat16).begin(2)
    y, weight, bias = made.draw(1, 37), made.draw(HIDDEN, 37), made.draw(HIDDEN)
    codes, scale = (
        torch.randint(0, 256, (HIDDEN, 37), dtype=torch.uint8, device=HERE),
        torch.rand(HIDDEN, 1, device=HERE) / 64,
    )
    bytes_of, four = (
        QuantizedWeight(codes, scale, 37, levels=256, zero=128.0),
        QuantizedWeight(codes % 16, scale.bfloat16(), 37, zero=8.0),
    )
    plain, fp8, whole = (
        Linear(weight, bias),
        Fp8Linear.of(Linear(weight, bias)),
        GpuQuantizedLinear(bytes_of, bias, torch.bfloat16),
    )
    for base, numbers in ((plain, weight), (fp8, fp8.weight.float() * fp8.scale[:, None]), (whole, bytes_of.dense())):
        product = AdaptedLinear(base, SITES[DOWN], made.law)
        assert can_run_gemv(product)
        close(multiply(product, y), y.float() @ made.with_pairs(numbers, DOWN).T + bias.float(), made.dtype)
    assert can_run_gemv(GpuQuantizedLinear(four, bias, torch.bfloat16)) and not can_run_gemv(
        AdaptedLinear(GpuQuantizedLinear(four, bias, torch.bfloat16), SITES[DOWN], made.law)
    )
    assert not can_run_gemv(
        AdaptedLinear(DeterministicGpuQuantizedLinear(bytes_of, bias, torch.bfloat16), SITES[DOWN], made.law)
    )
    assert not can_run_gemv(AdaptedLinear(plain, SITES[DOWN], made.law, special=True)) and not can_run_gemv(
        AdaptedLinear(plain, SITES[DOWN], ReferenceAdapters(made.law._slots))
    )


def test_the_bits_of_a_row_do_not_depend_on_what_lies_in_other_slots():
    found, pairs = [], {"3.0": (torch.randn(8, 37), torch.randn(HIDDEN, 8), 0.5)}
    y, weight = torch.randn(1, 37).to(HERE), torch.randn(HIDDEN, 37).to(HERE)
    for ranks in ((), (8, 8), (8, 8, 12)):
        made = Made(torch.float32, ranks)
        slots: Any = made.law._slots
        packed = AdapterPacker(SITES, torch.float32).pack(pairs)
        assert slots.take(packed.digest, packed, False)
        made.law.begin(rows_of([slots.slot_of(packed.digest)], [1], [0]))
        found.append(gemv.linear(y, weight, pair=made.law.pair_of_row(y, None, SITES[DOWN])))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_what_the_kernels_do_not_take(monkeypatch):
    def others(runs: list[tuple[int, int, int]]) -> AdapterSite:
        return SimpleNamespace(number=0, runs=runs)  # type: ignore[return-value]

    assert gemv_lora.piece_starts_of([(0, 0, 8)], 8) == (8, 8) and gemv_lora.piece_starts_of(
        [(0, 0, 4), (1, 4, 8)], 8
    ) == (4, 8)
    assert gemv_lora.piece_starts_of([(0, 0, 2), (1, 2, 4), (2, 4, 8)], 8) == (2, 4)
    assert (
        gemv_lora.piece_starts_of([(1, 0, 4), (0, 4, 8)], 8)
        is None
        is gemv_lora.piece_starts_of([(i, i, i + 1) for i in range(4)], 4)
    )
    assert gemv_lora.piece_starts_of([(0, 0, 2), (1, 2, 4), (0, 4, 6), (1, 6, 8)], 8) is None
    made = Made(torch.float32)
    assert all(made.law.supports_gemv(each) for each in SITES)
    assert not adapter_products_for(SimpleNamespace(fused=True), made.law._slots, SITES, True).supports_gemv(SITES[0])  # type: ignore[arg-type]
    wide = AdapterSlots(SITES, torch.float32, HERE, {256: 1}, False)
    assert not GpuAdapterProducts(wide, SITES).supports_gemv(SITES[0])
    monkeypatch.setattr(gemv_lora, "ON", False)
    assert not Made(torch.float32).law.supports_gemv(SITES[0])


def test_a_step_of_several_rows_has_no_pair_of_one():
    made = Made(torch.float32)
    made.law.begin(rows_of(np.array(made.numbers[:2]).tolist(), [1, 1], [0, 1]))
    assert made.law._of_row is None
