"""Weights of four bits and of eight in groups on the CPU: the compiled product in each of its ways
against exact sums of whole numbers, and the bundled model.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rig import Rig, Row
from test_compiled_step import steps_of
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from gguf_writer import random_blocks

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.layers import compiled_kernels, cpu_kernels
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.loading import load_model
from sgl.runtime.models.layer_executors import LayerExecutorChoice, expected_executors
from sgl.runtime.quantization import GroupedLinear, Int4BlockedLinear, Int8GroupedLinear, transform_for
from sgl.runtime.quantization.cpu_int4_linear import blocked, int4_linear, packed, supports, unpacked
from sgl.runtime.quantization.quantized_weight import E2M1, DoubleQuantized, QuantizedWeight
from sgl.runtime.quantization.readers.gguf_block_kinds import BLOCKS
from sgl.runtime.quantization.readers.gguf_blocks import decode
from sgl.runtime.quantization.weight_rounding import hqq, nearest, symmetric
from sgl.runtime.text.tokenizer import Tokenizer

NANO = Path(__file__).parents[2] / "runtime" / "nano"
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
ONCE_ROUNDED = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MAIL = "<|user|>I am Anna Weber. We would like a room in Lisbon on March 3rd for 2 guests.<|end|><|assistant|>"
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
WAYS = range(cpu_kernels.kernels.INT4 + 1) if cpu_kernels.kernels else ()
needs_product = pytest.mark.skipif(
    not cpu_kernels.kernels or not cpu_kernels.kernels.INT4, reason="needs the compiled kernels and AVX2"
)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    cpu_kernels.set_threads(request.param)
    yield
    cpu_kernels.set_threads(1)


@pytest.fixture
def best_way() -> Iterator[None]:
    yield
    cpu_kernels.kernels.set_int4_way(cpu_kernels.kernels.INT4)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def drawn(seed: int) -> QuantizedWeight:
    """Any form that the product takes: every optional part is there or not, the last group is often shorter."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    outputs, group = rng.choice([1, 5, 32, 33, 70, 100]), rng.choice([16, 32, 48, 64, 96, 128, 256, 9999])
    inputs = rng.choice([1, 7, 64, 100, 130, 384, 520])
    groups = -(-inputs // group)
    shape, table = (outputs, groups), rng.choice([None, None, torch.tensor(E2M1), torch.tensor(IQ4_NL).float()])
    levels = 16 if table is not None else rng.choice([16, 256])
    zeros = [
        0.0,
        levels / 2,
        7.5,
        torch.randint(0, levels, shape, generator=generator, dtype=torch.uint8),
        levels * torch.rand(shape, generator=generator),
    ]
    zeros.append(zeros[-1].half())
    fine_scale, fine_offset = (
        twofold(shape, rng.choice([1, 2, 8]), generator) if rng.random() < 0.3 else None for _ in range(2)
    )
    weight = QuantizedWeight(
        torch.randint(0, levels, (outputs, inputs), generator=generator, dtype=torch.uint8),
        torch.randn(shape, generator=generator).to(rng.choice([torch.float32, torch.float16, torch.bfloat16])),
        group,
        levels,
        zero=rng.choice(zeros),
        offset=torch.randn(shape, generator=generator).to(rng.choice([torch.float32, torch.float16]))
        if rng.random() < 0.3
        else None,
        factor=torch.rand(outputs, generator=generator) if rng.random() < 0.3 else None,
        table=table,
        order=torch.randperm(inputs, generator=generator) if rng.random() < 0.3 else None,
    )
    fine: dict[str, Any] = {} if fine_scale is None else {"scale": fine_scale.numbers(), "fine_scale": fine_scale}
    return replace(
        weight, **fine | ({} if fine_offset is None else {"offset": fine_offset.numbers(), "fine_offset": fine_offset})
    )


def twofold(shape: tuple[int, int], each: int, generator: torch.Generator) -> DoubleQuantized:
    inner = torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
    return DoubleQuantized(inner, torch.randn(shape[0], -(-shape[1] // each), generator=generator).half() / 64, each)


def as_multiplied(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """float64: x [T, in] rounded to 8 bits in each chunk of the weight's columns."""
    inputs, group = weight.shape[1], weight.group
    chunk = 64 if group >= inputs else next(size for size in (64, 32, 16) if group % size == 0)
    columns = x.float() if weight.order is None else x.float()[:, weight.order]
    parts = F.pad(columns, (0, -inputs % chunk)).unflatten(1, (-1, chunk))
    peak = parts.abs().amax(2, keepdim=True)
    whole = (
        parts * torch.where(peak > 1e-30, torch.tensor(127.0) / peak, 0)
    ).round()  # 127 / peak would be 127 times an inverse
    rounded = (whole.double() * (peak / 127).double()).flatten(1)[:, :inputs]
    return rounded if weight.order is None else torch.empty_like(rounded).index_copy_(1, weight.order, rounded)


def terms(weight: QuantizedWeight) -> Tensor:
    """The sizes of what each number of the dense weight is the sum of."""
    zero = (
        weight.zero.float() if isinstance(weight.zero, Tensor) else torch.tensor(weight.zero).expand(weight.scale.shape)
    )
    codes = torch.arange(float(weight.levels)) if weight.table is None else weight.table
    offset = None if weight.offset is None else weight.offset.abs()
    return replace(weight, table=codes.abs(), zero=-zero.abs(), scale=weight.scale.abs(), offset=offset).dense()


# products


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(40))
def test_every_way_gives_the_same_bits_and_they_are_those_of_exact_sums(
    seed: int, dtype: torch.dtype, threads: None, best_way: None
) -> None:
    weight = drawn(seed)
    assert supports(weight) is None
    outputs, inputs = weight.shape
    bias = normal(outputs, seed=seed).to(dtype) if seed % 2 else None
    x = (normal(30, inputs, seed=seed + 1) * torch.logspace(-3, 3, 30)[:, None]).to(dtype)
    x[7] = 0
    layer, dense, residual = (
        blocked(weight, bias, dtype),
        weight.dense().double(),
        normal(30, outputs, seed=seed + 2).to(dtype),
    )
    given = as_multiplied(x, weight)
    expected = F.linear(given, dense, None if bias is None else bias.double())
    slack = 1e-6 * given.abs() @ terms(weight).double().T + ONCE_ROUNDED[dtype] * expected.abs()
    found = {}
    for way in WAYS:
        cpu_kernels.kernels.set_int4_way(way)
        found[way] = layer(x), layer.added_to(residual.clone(), x)
    assert found[0][0].dtype == dtype and bool(((found[0][0].double() - expected).abs() <= slack).all())
    torch.testing.assert_close(
        found[0][1].double(), expected + residual.double(), rtol=2 * ONCE_ROUNDED[dtype], atol=float(slack.max()) + 1e-5
    )
    assert all(
        torch.equal(one, other) for a, b in itertools.pairwise(found.values()) for one, other in zip(a, b, strict=True)
    )


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs, group", [(100, 64), (130, 48), (7, 16), (520, 9999)])
def test_every_way_rounds_activations_alike(inputs: int, group: int, dtype: torch.dtype, best_way: None) -> None:
    """Weights that are ones and zeros show them; numbers that are not finite stay in their row and are loud there."""
    weight = QuantizedWeight(torch.eye(inputs, dtype=torch.uint8), torch.ones(inputs, -(-inputs // group)), group)
    x = (normal(9, inputs) * torch.logspace(-30, 30, 9)[:, None]).to(dtype)
    x[3], x[5, 2], x[6, 4] = 0, torch.nan, torch.inf
    found = []
    for way in WAYS:
        cpu_kernels.kernels.set_int4_way(way)
        found.append(blocked(weight, None, dtype)(x))
    assert all(torch.equal(one.nan_to_num(7), found[0].nan_to_num(7)) for one in found)
    assert found[0][5:7].isnan().any(1).all() and found[0][[0, 1, 2, 3, 4, 7, 8]].isfinite().all()


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_product_is_that_of_the_weight_to_what_float32_keeps(dtype: torch.dtype) -> None:
    """The usual form, with nothing to hide an error behind: against the size of the terms."""
    weight, x = nearest(normal(96, 1024)), normal(20, 1024, seed=1).to(dtype)
    given, dense = as_multiplied(x, weight), weight.dense().double()
    expected, size = given @ dense.T, given.abs() @ dense.abs().T
    error = (Int4BlockedLinear(weight, None, dtype)(x).double() - expected).abs() - ONCE_ROUNDED[dtype] * expected.abs()
    assert bool((error <= 2e-7 * size).all())


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_bits_of_a_row_do_not_depend_on_the_batch(seed: int, dtype: torch.dtype, threads: None, best_way: None) -> None:
    weight = drawn(seed)
    layer, x = blocked(weight, None, dtype), normal(203, weight.shape[1], seed=seed).to(dtype)
    for way in WAYS:
        cpu_kernels.kernels.set_int4_way(way)
        alone = torch.cat([layer(row[None]) for row in x])
        rng = np.random.default_rng(0)
        for size in (2, 3, 5, 6, 7, 11, 12, 13, 40, 97, 203):
            rows = torch.from_numpy(rng.choice(203, size, replace=False))
            assert torch.equal(layer(x[rows]), alone[rows]), (way, size)
        assert layer(x[:0]).shape == (0, weight.shape[0])


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_numbers_that_are_products_of_two_have_the_bits_of_these_products(
    kind: str, dtype: torch.dtype, best_way: None
) -> None:
    weight = decode(kind, random_blocks(kind, 70, 3, 0), (70, 768))
    plain, x = replace(weight, fine_scale=None, fine_offset=None), normal(13, 768).to(dtype)
    assert weight.fine_scale is not None and torch.equal(weight.fine_scale.numbers(), weight.scale)
    layer, other = blocked(weight, None, dtype), blocked(plain, None, dtype)
    for way in WAYS:
        cpu_kernels.kernels.set_int4_way(way)
        assert torch.equal(layer(x), other(x))
    bits = {"Q2_K": 5.125, "Q3_K": 4.5625, "Q4_K": 4.625, "Q5_K": 8.625, "Q6_K": 8.5625, "IQ4_XS": 4.3125}[kind]
    assert layer.weight.nbytes * 8 == bits * 96 * 768


@needs_product
def test_the_largest_codes_and_states_add_up_exactly(best_way: None) -> None:
    """Where an instruction would stop at the end of its range."""
    x = torch.tensor([1.0, -1.0])[:, None].expand(2, 64)
    for levels in (16, 256):
        codes = torch.tensor([0, levels - 1, levels // 2, 1], dtype=torch.uint8)[:, None].expand(4, 64).contiguous()
        layer = blocked(QuantizedWeight(codes, torch.ones(4, 1), 64, levels), None, torch.float32)
        for way in WAYS:
            cpu_kernels.kernels.set_int4_way(way)
            assert torch.equal(layer(x), x.sum(1, keepdim=True) * codes[:, 0].float())


@needs_product
def test_nan_stays_loud() -> None:
    layer, x = Int4BlockedLinear(nearest(normal(40, 200)), None, torch.float32), normal(3, 200, seed=1)
    x[1, 5], x[2, 7] = float("nan"), float("inf")
    found = layer(x)
    assert bool(found[1:].isnan().all()) and bool(found[0].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_torch_restores_the_same_weight(seed: int, dtype: torch.dtype) -> None:
    weight = drawn(seed)
    bias, x = normal(weight.shape[0], seed=1).to(dtype), normal(5, weight.shape[1], seed=2).to(dtype)
    layer = GroupedLinear(weight, bias)
    torch.testing.assert_close(layer(x), F.linear(x, weight.dense(dtype)) + bias)
    assert sum(
        part.nbytes for part in layer.tensors() if part.dtype == torch.uint8 and part.dim() == 2
    ) <= weight.codes.numel() * (1 if weight.levels == 256 else 0.5) + 2 * weight.shape[0] * (1 + weight.scale.shape[1])


def test_codes_come_back_out_of_their_pairs() -> None:
    codes = torch.randint(0, 16, (7, 33), dtype=torch.uint8)
    assert torch.equal(unpacked(packed(codes), 33), codes)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"levels": 64}, "codes of 64 levels"),
        ({"group": 24, "scale": torch.ones(4, 3)}, "groups of 24 inputs"),
        ({"table": torch.linspace(-1, 1, 16)}, "no whole numbers, nor halves"),
        ({"table": torch.arange(16) * 10.0}, "no whole numbers, nor halves"),
    ],
)
def test_what_the_product_does_not_take_is_said_and_runs_by_torch(change: dict[str, object], message: str) -> None:
    codes = torch.randint(0, 16, (4, 64), dtype=torch.uint8)
    parts = {"stored": codes, "scale": torch.ones(4, 1), "group": 64} | change
    weight = QuantizedWeight(**parts)
    assert message in str(supports(weight))
    assert isinstance(int4_linear(weight, None, torch.float32), GroupedLinear)
    with pytest.raises(ValueError, match=message):
        Int4BlockedLinear(weight, None, torch.float32)


@needs_product
def test_what_is_kept_is_no_more_than_it_needs_to_be() -> None:
    weight, count = normal(256, 1024), 256 * 1024
    bits = {
        rounding: 8 * Int4BlockedLinear(rounding(weight), None, torch.float32).weight.nbytes / count
        for rounding in (symmetric, nearest, hqq)
    }
    assert bits == {symmetric: 4.25, nearest: 4.375, hqq: 4.5}


@needs_product
@pytest.mark.parametrize(
    "kind, bits", [("Q4_0", 4.5), ("Q4_1", 5), ("Q5_0", 8.5), ("Q5_1", 9), ("Q8_0", 8.5), ("IQ4_NL", 4.5), ("NVFP4", 5)]
)
def test_what_is_kept_of_a_file_is_no_more_than_its_scales_need(kind: str, bits: float) -> None:
    """And a number for each output is kept apart."""
    weight = decode(kind, random_blocks(kind, 64, 256 // BLOCKS[kind].elements, 0), (64, 256))
    weight = replace(weight, factor=torch.rand(64) if kind == "NVFP4" else None)
    assert blocked(weight, None, torch.float32).weight.nbytes * 8 == bits * 64 * 256


# the bundled model


@pytest.mark.parametrize("weights", ["int4", "int4_hqq", "mxfp4", "nvfp4"])
def test_layers_become_int4_and_the_head_int8(weights: str) -> None:
    if not cpu_kernels.kernels or not cpu_kernels.kernels.VNNI:
        pytest.skip("no compiled products here")
    transform = transform_for(weights, False, CPU)
    assert transform is not None
    kinds = {
        name: type(transform(name, Linear(normal(32, 64))))
        for name in ("qkv", "output", "gate_up", "down", "project", "head")
    }
    assert kinds.pop("head") is Int8GroupedLinear and kinds.pop("project") is Int8GroupedLinear
    assert set(kinds.values()) == {Int4BlockedLinear}


@pytest.mark.few(1)
@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_step_has_the_bits_of_the_layers_one_by_one(dtype: torch.dtype) -> None:
    rigs = [Rig(NANO, dtype), Rig(NANO, dtype)]
    for rig in rigs:
        rig.model = load_model(NANO, dtype, transform=turned_around)
    assert rigs[0].model.step is not None and all(rigs[0].model.step.claimed)
    rigs[1].model.step = None
    assert all(torch.equal(a, b) for a, b in zip(*map(steps_of, rigs), strict=True))


@needs_product
def test_where_only_these_products_are_compiled_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "can_multiply", lambda dtype, device: False)  # as without AVX-512
    monkeypatch.setattr(compiled_kernels, "multiplies", lambda dtype: False)
    model = load_model(NANO, torch.float32, transform=transform_for("int4", False, CPU))
    assert model.executors() == expected_executors(model, CPU, "int4") == [LayerExecutorChoice("compiled", None)] * 8
    assert expected_executors(model, CPU) == [LayerExecutorChoice("torch", None)] * 8


def turned_around(name: str, layer: Linear) -> Linear:
    """As int4, but that the inputs are in an order of their own, which the step has to follow too."""
    order = torch.randperm(layer.weight.shape[1], generator=torch.Generator().manual_seed(0))
    rounded = nearest(layer.weight[:, order])
    weight = QuantizedWeight(rounded.codes, rounded.scale, rounded.group, zero=rounded.zero, order=order)
    return int4_linear(weight, layer.bias, layer.weight.dtype)


@pytest.mark.whole
@pytest.mark.parametrize(
    "kernels, weights",
    [(True, "int4"), (True, "int4_hqq"), (True, "mxfp4"), (True, "nvfp4"), (False, "int4"), (False, "nvfp4")],
)
def test_the_bundled_model_says_nearly_the_same(weights: str, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels:
        monkeypatch.setattr(cpu_kernels, "kernels", None)
    plain, other = Rig(NANO, torch.float32), Rig(NANO, torch.float32)
    other.model = load_model(NANO, torch.float32, transform=transform_for(weights, False, CPU))
    tokens = Tokenizer.load(NANO).encode(MAIL, special_prefix=True).tolist()
    p, q = (rig.step([(Row(tokens), len(tokens))], every_row=True).log_softmax(-1) for rig in (plain, other))
    assert 1e-4 < (p.exp() * (p - q)).sum(-1).mean() < 0.05  # benchmarks/int8_loss.py has that of many texts


@pytest.mark.whole
@needs_product
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_says_the_same_alone_and_in_a_batch(dtype: str) -> None:
    prompts = [f"<|user|>A table for {count} in Bern, please<|end|><|assistant|>" for count in range(2, 8)]
    with Engine(weights="int4", dtype=dtype, kv_tokens=4000) as engine:
        info = engine.info()
        table, head, inner = 8192 * 384 * (4 if dtype == "float32" else 2), 8192 * 384, 12_582_912
        assert info["weights"] == "int4" and not info["slower"]
        assert 0 <= info["memory"]["weights"] - table - head - inner * 4.375 / 8 < 0.01 * info["memory"]["weights"]
        together = [done.token_ids for done in engine.generate(prompts, GREEDY)]
        engine.flush_cache()
        assert [engine.generate(prompt, GREEDY).token_ids for prompt in prompts] == together
        assert engine.check() is None
