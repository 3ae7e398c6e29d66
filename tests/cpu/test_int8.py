"""int8 weights on the CPU against products of the restored numbers, and the bundled model with them."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from alone import alone
from rig import Rig, Row

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.loading import load_model
from sgl.runtime.quantization import Int8BlockedLinear, Int8GroupedLinear, Int8Linear, cpu_int8_linear, transform_for
from sgl.runtime.quantization.deterministic_linear import FixedBatchLinear

NANO = Path(__file__).parents[2] / "runtime" / "nano"
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
ROUNDING = {torch.float32: 4e-3, torch.bfloat16: 2e-2}  # of a sum; in float32 what 8 bits keep of x
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


compiled = cpu_kernels.kernels is not None and bool(cpu_kernels.kernels.INT4)
by_pairs = cpu_kernels.kernels is not None and bool(cpu_kernels.kernels.VNNI)


@pytest.fixture(params=["compiled", "torch"])
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which product the layers get."""
    if request.param == "torch":
        monkeypatch.setattr(cpu_kernels, "kernels", None)
    elif not compiled:
        pytest.skip("no compiled product of int8 weights here: it needs a C compiler and AVX2")
    return str(request.param)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def restored(weight: torch.Tensor) -> torch.Tensor:
    stored, scale = cpu_int8_linear.quantize_weight(weight)
    return stored.double() * scale.double()[:, None]


# weights


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_in_int8_is_within_half_a_step(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_int8_linear, "PART", 200)  # several parts, the last one smaller
    weight = (random(24, 40) * torch.logspace(-2, 2, 24)[:, None]).to(dtype)
    weight[3] = 0
    stored, scale = cpu_int8_linear.quantize_weight(weight)
    assert stored.dtype == torch.int8 and scale.dtype == torch.float32 and stored.min() >= -127
    assert bool(((stored.float() * scale[:, None] - weight.float()).abs() <= scale[:, None] * 0.501).all())
    assert torch.equal(scale.bfloat16().float(), scale) and bool((stored.abs().amax(1)[:3] >= 126).all())
    assert not stored[3].any() and bool(scale.isfinite().all())


# products


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs, inputs", [(70, 100), (640, 384), (96, 2080), (33, 2), (5, 7)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_that_of_the_restored_numbers(
    outputs: int, inputs: int, biased: bool, dtype: torch.dtype, product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_int8_linear, "PART", 32 * inputs)
    weight, bias = random(outputs, inputs).to(dtype), random(outputs, seed=1).to(dtype) if biased else None
    x = (random(40, inputs, seed=2) * torch.logspace(-3, 3, 40)[:, None]).to(dtype)
    x[7] = 0
    layer = cpu_int8_linear.int8_linear(Linear(weight, bias))
    assert (type(layer) is Int8GroupedLinear) == (product == "compiled")
    expected = F.linear(x.double(), restored(weight), None if bias is None else bias.double())
    size = x.double().norm(dim=1, keepdim=True) * restored(weight).norm(dim=1) + 1e-6
    for rows in (1, 3, 16, 17, 40):
        found = layer(x[:rows])
        assert found.dtype == dtype and found.shape == (rows, outputs)
        error = (found.double() - expected[:rows]).abs() - ROUNDING[dtype] * expected[:rows].abs()
        assert bool((error <= ROUNDING[dtype] * size[:rows]).all()), rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_it_adds_to_the_residual(rows: int, dtype: torch.dtype, product: str) -> None:
    layer = cpu_int8_linear.int8_linear(Linear(random(64, 32).to(dtype)))
    x, residual = random(rows, 32, seed=1).to(dtype), random(rows, 64, seed=2).to(dtype)
    expected = residual.float() + layer(x).float()
    torch.testing.assert_close(
        layer.added_to(residual, x).float(), expected, rtol=ROUNDING[dtype], atol=ROUNDING[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs, inputs", [(70, 100), (640, 384), (256, 1024)])
def test_bits_of_a_row_do_not_depend_on_the_batch(outputs: int, inputs: int, dtype: torch.dtype, product: str) -> None:
    transform = transform_for("int8", True, CPU)
    assert transform is not None
    layer = transform("qkv", Linear(random(outputs, inputs).to(dtype), random(outputs, seed=3).to(dtype)))
    x = random(67, inputs, seed=1).to(dtype)
    alone = torch.cat([layer(row[None]) for row in x])
    rng = np.random.default_rng(0)
    for size in (2, 3, 5, 15, 16, 17, 40, 67):
        rows = torch.from_numpy(rng.choice(67, size, replace=False))
        assert torch.equal(layer(x[rows]), alone[rows]), size
    assert layer(x[:0]).shape == (0, outputs)


def test_nan_stays_loud(product: str) -> None:
    layer, x = cpu_int8_linear.int8_linear(Linear(random(16, 32))), random(3, 32, seed=1)
    x[1, 5] = float("nan")
    found = layer(x)
    assert bool(found[1].isnan().all()) and bool(found[0].isfinite().all())


def in_a_new_thread(run: Callable[[], object]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_thread_may_begin_with_no_rows(product: str) -> None:
    layer, found = cpu_int8_linear.int8_linear(Linear(random(16, 32))), []
    in_a_new_thread(lambda: found.append(layer(torch.empty(0, 32))))
    assert found[0].shape == (0, 16)


@pytest.mark.whole
@alone
@pytest.mark.skipif(not compiled, reason="the compiled product keeps memory by thread")
def test_a_thread_that_ends_gives_its_memory_back() -> None:
    layer, x = cpu_int8_linear.int8_linear(Linear(random(32, 4096))), torch.ones(2048, 4096)

    def resident() -> int:
        ctypes.CDLL(None).malloc_trim(0)  # the allocator keeps what was freed, an arena for each thread
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    in_a_new_thread(lambda: layer(x))
    before = resident()
    for _ in range(10):
        in_a_new_thread(lambda: layer(x))
    assert resident() - before < 5 * x.numel() * 2  # of int16; all ten would be twice that


# which projections become it


def test_every_projection_becomes_int8(product: str) -> None:
    plain, fixed = (transform_for("int8", deterministic, CPU) for deterministic in (False, True))
    assert plain is not None and fixed is not None
    kinds = (Int8GroupedLinear, Int8GroupedLinear) if product == "compiled" else (Int8Linear, FixedBatchLinear)
    for name in ("qkv", "output", "gate_up", "down", "head"):
        given = [transform(name, Linear(random(8, 16))) for transform in (plain, fixed)]
        assert tuple(map(type, given)) == kinds


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.skipif(not by_pairs, reason="needs AVX512_VNNI")
@pytest.mark.parametrize("inputs", [100, 2080])
def test_the_product_that_rounds_to_15_bits_says_the_same(inputs: int, dtype: torch.dtype) -> None:
    """Of int8 weights that a checkpoint holds; a row's bits are the same alone."""
    weight, x = random(100, inputs).to(dtype), random(30, inputs, seed=1).to(dtype)
    stored, scale = cpu_int8_linear.quantize_weight(weight)
    found, expected = (kind(stored, scale, None, dtype)(x) for kind in (Int8BlockedLinear, Int8Linear))
    torch.testing.assert_close(
        found,
        expected,
        rtol=2e-4 if dtype == torch.float32 else 2e-2,
        atol={torch.float32: 0.03, torch.bfloat16: 0.5}[dtype],
    )
    layer = Int8BlockedLinear(stored, scale, None, dtype)
    assert all(torch.equal(layer(x[i : i + 7]), found[i : i + 7]) for i in (0, 5, 20))
    x[1, 5] = torch.nan
    assert layer(x)[1].isnan().all() and torch.equal(layer(x)[2:], found[2:])


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match="is for the CPU and CUDA, here: xpu; take weights='auto'"):
        transform_for("int8", False, torch.device("xpu"))
    with pytest.raises(ConfigError, match=r"float32 and bfloat16, the model is in torch\.float16"):
        Engine(weights="int8", dtype="float16", kv_tokens=100)


# the bundled model


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bundled_model_says_nearly_the_same(dtype: torch.dtype, product: str) -> None:
    tokens = list(range(300, 340))
    plain, other = Rig(NANO, dtype), Rig(NANO, dtype)
    other.model = load_model(NANO, dtype, transform=transform_for("int8", False, CPU))
    expected, found = (rig.step([(Row(tokens), 40)], every_row=True).log_softmax(-1) for rig in (plain, other))
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert 1e-6 < divergence.mean() < 5e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_with_int8_weights(dtype: str) -> None:
    prompts = [f"<|user|>A table for {count} in Bern, please<|end|><|assistant|>" for count in range(2, 8)]
    with Engine(weights="int8", dtype=dtype, kv_tokens=4000) as engine:
        info = engine.info()
        assert info["weights"] == "int8"
        table = 8192 * 384 * (4 if dtype == "float32" else 2)
        assert info["parameters"] < info["memory"]["weights"] - table < 1.1 * info["parameters"]
        together = engine.generate(prompts, GREEDY)
        engine.sleep()
        engine.wake()
        engine.flush_cache()
        again = engine.generate(prompts, GREEDY)
        assert [done.token_ids for done in together] == [done.token_ids for done in again]
        assert engine.check() is None


@pytest.mark.whole
def test_an_engine_of_another_process_and_one_that_is_deterministic() -> None:
    prompts = ["<|user|>Book a room in Oslo<|end|><|assistant|>", "<|user|>A taxi<|end|><|assistant|>"]
    options = {"weights": "int8", "kv_tokens": 2000, "dtype": "float32", "deterministic": True}
    with Engine(**options) as engine:
        expected = [engine.generate(prompt, GREEDY).token_ids for prompt in prompts]
    with Engine(**options, process=True) as engine:
        assert engine.info()["weights"] == "int8"
        assert [done.token_ids for done in engine.generate(prompts, GREEDY)] == expected
