"""Float8 weights and KV, and products that do not depend on the batch, against plain arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rig import Rig, Row

from sgl.runtime.attention import AttentionShape, attention_backend
from sgl.runtime.attention.cpu import cpu_attention as cpu_attention
from sgl.runtime.build.build_engine import _arithmetic
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.cache.kv_pool import PAD_SLOT, KVPool
from sgl.runtime.errors import ConfigError
from sgl.runtime.executor.device_choice import DeviceChoice
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers import float8_reference as values
from sgl.runtime.layers.linear_layers import BlockedLinear, Linear
from sgl.runtime.loading import load_model
from sgl.runtime.quantization import FP8, Fp8Linear, kv_dtype_for, transform_for
from sgl.runtime.quantization.deterministic_linear import ROWS, FixedBatchLinear
from sgl.runtime.step.step_batch import StepBatch

NANO = Path(__file__).parents[2] / "runtime" / "nano"
CPU = torch.device("cpu")
HALF_STEP = 2**-4  # of e4m3, relative


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# weights


@pytest.mark.parametrize("per_output", [True, False])
def test_a_weight_in_float8_is_near_the_weight(per_output: bool) -> None:
    weight = random(24, 40) * torch.logspace(-2, 2, 24)[:, None]
    weight[3] = 0
    stored, scale = values.quantize_weight(weight, per_output)
    restored = stored.float() * scale[:, None]
    step = scale[:, None] * 2**-9  # the smallest float8
    assert stored.dtype == FP8 and scale.shape == (24,)
    assert bool(((restored - weight).abs() <= HALF_STEP * weight.abs() + step / 2 + 1e-9).all())
    peaks = stored.float().abs().amax(1)
    assert bool((peaks.max() == 448) & ((peaks == 448).sum() == (23 if per_output else 1)))


def test_too_large_values_become_the_largest() -> None:
    stored = values.saturate(torch.tensor([1e9, -1e9, 3.0, float("nan")]), 2.0).float()
    assert stored[:3].tolist() == [448.0, -448.0, 1.5] and bool(stored[3].isnan())
    assert values.restore(torch.tensor([1.5]).to(FP8), 2.0, torch.bfloat16).item() == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_fp8_linear_is_the_product_of_the_restored_numbers(dtype: torch.dtype, biased: bool) -> None:
    weight, bias = random(48, 64).to(dtype), random(48, seed=1).to(dtype) if biased else None
    x = (random(9, 64, seed=2) * torch.logspace(-3, 3, 9)[:, None]).to(dtype)
    layer = Fp8Linear.of(Linear(weight, bias))
    x8, x_scale = values.quantize_rows(x)
    restored = (x8.double() * x_scale[:, None]), (layer.weight.double() * layer.scale[:, None])
    expected = F.linear(*restored, None if bias is None else bias.double())
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-5)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    error = (layer(x) - exact).norm(dim=1) / exact.norm(dim=1)
    assert 1e-3 < error.max() < 0.06  # both sides rounded to 3 bits, errors of both signs


def test_fp8_linear_adds_to_the_residual() -> None:
    layer, x, residual = Fp8Linear.of(Linear(random(16, 32))), random(4, 32, seed=1), random(4, 16, seed=2)
    expected = residual + layer(x)
    assert torch.equal(layer.added_to(residual, x), expected)


# which projections become what


@pytest.mark.parametrize("weights, scales", [("fp8", 8), ("fp8_tensor", 1)])
def test_every_projection_of_a_layer_becomes_fp8(weights: str, scales: int) -> None:
    transform = transform_for(weights, False, CPU)
    assert transform is not None
    for name in ("qkv", "output", "gate_up", "down"):
        layer = transform(name, Linear(random(8, 16)))
        assert isinstance(layer, Fp8Linear) and len(layer.scale.unique()) == scales
    for name in ("head", "project"):
        outside = Linear(random(8, 16))
        assert transform(name, outside) is outside


def test_what_is_left_alone() -> None:
    assert transform_for("auto", False, CPU) is None
    transform = transform_for("fp8", True, CPU)
    assert transform is not None
    down, head = transform("down", Linear(random(8, 16))), transform("head", Linear(random(8, 16)))
    assert isinstance(down, FixedBatchLinear) and isinstance(down.inner, Fp8Linear)
    assert type(head.inner if isinstance(head, FixedBatchLinear) else head) is Linear


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match=r"weights='fp9'.*did you mean 'fp8'"):
        transform_for("fp9", False, CPU)
    with pytest.raises(ConfigError, match="weights='nvfp4' is for the CPU and CUDA, here: xpu"):
        transform_for("nvfp4", False, torch.device("xpu"))
    with pytest.raises(ConfigError, match=r"kv_dtype='int8'.*auto, fp8"):
        kv_dtype_for("int8", torch.float32, CPU)
    assert kv_dtype_for("auto", torch.bfloat16, CPU, "cpu") == torch.bfloat16
    assert kv_dtype_for("fp8", torch.bfloat16, CPU) == kv_dtype_for("fp8", torch.float32, CPU, "cpu") == FP8


def test_an_old_gpu_is_refused_and_a_wrong_dtype_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old One")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for ask in (
        lambda: transform_for("fp8", False, torch.device("cuda")),
        lambda: kv_dtype_for("fp8", torch.bfloat16, torch.device("cuda")),
        lambda: assembled_on_cuda(weights="fp8"),
        lambda: assembled_on_cuda(kv_dtype="fp8"),
        lambda: assembled_on_cuda(kv_dtype="fp8", deterministic=True),
    ):
        with pytest.raises(ConfigError, match=r"8\.9 or higher, Old One has 8\.0"):
            ask()
    assert kv_dtype_for("fp8", torch.bfloat16, torch.device("cuda"), "torch_native") == FP8


def assembled_on_cuda(**options: Any) -> Any:
    """What an engine does of this before it loads a model."""
    choice = DeviceChoice(torch.device("cuda"), torch.bfloat16, 1, ())
    return _arithmetic(EngineConfig.from_options(options).on("cuda"), choice)


def test_the_plain_engine_changes_no_projection() -> None:
    assert assembled_on_cuda() is None


# bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs, inputs", [(70, 100), (640, 384), (256, 1024)])
@pytest.mark.parametrize("name", ["qkv", "head"])
@pytest.mark.parametrize("weights, compiled", [("auto", True), ("auto", False), ("fp8", True), ("fp8", False)])
def test_bits_of_a_row_do_not_depend_on_the_batch(
    weights: str,
    compiled: bool,
    name: str,
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(cpu_kernels, "can_multiply", lambda dtype, device: False)
    transform = transform_for(weights, True, CPU)
    assert transform is not None
    bias = random(outputs, seed=3).to(dtype)
    weight = (random(outputs, inputs) / inputs**0.5).to(dtype)
    layer = transform(name, given := Linear(weight, bias))
    if layer is given:
        layer = layer.seal()
    plain = weights == "auto" or name == "head"
    by_rows = compiled and plain and cpu_kernels.can_multiply(dtype, CPU)
    assert isinstance(layer, BlockedLinear if by_rows else FixedBatchLinear)
    x = random(67, inputs, seed=1).to(dtype)
    alone = torch.cat([layer(row[None]) for row in x])
    rng = np.random.default_rng(0)
    for size in (2, 3, 5, ROWS - 1, ROWS, ROWS + 1, 40, 67):
        rows = torch.from_numpy(rng.choice(67, size, replace=False))
        assert torch.equal(layer(x[rows]), alone[rows]), size
    assert torch.equal(layer.added_to(torch.zeros_like(alone), x), alone)
    assert layer(x[:0]).shape == (0, outputs)
    dense = layer.dense()
    assert dense is None if not plain else torch.equal(dense, weight)
    if weights == "auto" or name == "head":
        torch.testing.assert_close(alone, F.linear(x, weight, bias), rtol=2e-2, atol=2e-2)


# keys and values


SHAPE = AttentionShape(4, 2, 16, (None, 5))


def fp8_batch(work: list[tuple[int, int]], slots: int) -> StepBatch:
    free = np.random.default_rng(0).permutation(np.arange(1, slots)).astype(np.int32)
    ends = np.cumsum([cached + new for cached, new in work])
    context = np.split(free[: ends[-1]], ends[:-1])
    new_slots = np.concatenate([s[cached:] for s, (cached, _) in zip(context, work, strict=True)])
    none = torch.zeros(0, dtype=torch.int64)
    lengths = [new for _, new in work], [cached + new for cached, new in work]
    return StepBatch(none, none, torch.from_numpy(new_slots.astype(np.int64)), *lengths, context, none)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("work", [[(5, 1), (9, 1)], [(0, 40)], [(7, 1), (3, 4), (0, 70), (30, 66)]])
def test_attention_over_an_fp8_pool_is_that_over_the_restored_values(
    work: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    pools = [KVPool(2, 300, 2, 16, kind) for kind in (FP8, dtype)]
    pools[0].scales = [values.KVScaleFactors(0.5, 2.0)] * 2
    pools[0].fill_nan(range(1, 300))
    batch, tokens = fp8_batch(work, 300), sum(new for _, new in work)
    q, k, v = (random(tokens, heads, 16, seed=heads).to(dtype) for heads in (4, 2, 2))
    k8, v8 = values.saturate(k, 0.5), values.saturate(v, 2.0)
    kept = values.restore(k8, 0.5, dtype), values.restore(v8, 2.0, dtype)
    results = []
    for pool, (keys, stored) in zip(pools, ((k, v), kept), strict=True):
        write_cached(pool, batch, work)
        attention = attention_backend("torch_native", pool, SHAPE)
        attention.plan(batch)
        for layer in (0, 1):
            attention.store(keys, stored, layer, batch)
            results.append(attention.attend(q, keys, stored, layer, batch))
    assert torch.equal(pools[0].k[1].view(torch.uint8)[batch.slots], k8.view(torch.uint8))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for found, expected in zip(results[:2], results[2:], strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert bool((pools[0].k.float()[:, PAD_SLOT] == 0).all())


def write_cached(pool: KVPool, batch: StepBatch, work: list[tuple[int, int]]) -> None:
    """The same cached values in both pools, through the scales where there are any."""
    for number, (slots, (cached, _)) in enumerate(zip(batch.context_slots, work, strict=True)):
        for stored in (pool.k, pool.v):
            for layer in range(2):
                numbers = random(cached, 2, 16, seed=100 + number)
                fp8 = values.saturate(numbers, 0.5 if stored is pool.k else 2.0)
                at = torch.from_numpy(slots[:cached].astype(np.int64))
                if stored.dtype == FP8:
                    stored[layer].view(torch.uint8)[at] = fp8.view(torch.uint8)
                else:
                    stored[layer][at] = values.restore(fp8, 0.5 if stored is pool.k else 2.0, stored.dtype)


def test_freed_slots_of_an_fp8_pool_can_be_poisoned() -> None:
    pool = KVPool(1, 6, 1, 16, FP8)
    pool.fill_nan([2, 5])
    assert pool.k.float().isnan().flatten(2).all(2)[0].tolist() == [False, False, True, False, False, True]
    assert pool.scales == [(1.0, 1.0)]


# the bundled model


def logits_of(rig: Rig, tokens: list[int]) -> torch.Tensor:
    return rig.step([(Row(tokens), len(tokens))], every_row=True)


def test_the_bundled_model_says_nearly_the_same() -> None:
    tokens = list(range(300, 340))
    plain, fp8 = Rig(NANO), Rig(NANO)
    fp8.model = load_model(NANO, transform=transform_for("fp8", False, CPU))
    expected, found = logits_of(plain, tokens).log_softmax(-1), logits_of(fp8, tokens).log_softmax(-1)
    kl = (expected.exp() * (expected - found)).sum(-1)
    assert 1e-6 < kl.mean() < 0.1


@pytest.mark.skipif(
    cpu_kernels.kernels is None, reason="attention that does not depend on the batch needs the compiled kernels"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_whole_model_gives_the_same_bits_whatever_the_batch_and_the_chunks(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_attention, "SMALL_EXTEND", 10**9)  # every query by the kernel that takes one at a time
    rig = Rig(NANO, dtype, slots=2000, attention="cpu")
    rig.model = load_model(NANO, dtype, transform=transform_for("auto", True, CPU))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(10, 8000, size).tolist() for size in (5, 40, 130)]
    alone = [rig.step([(Row(prompt), len(prompt))])[0] for prompt in prompts]
    halves = [Row(prompt) for prompt in prompts]
    rig.step([(row, len(row.tokens) // 2) for row in halves])
    chunked = rig.step([(row, row.pending) for row in halves])
    lasts = [Row(prompt) for prompt in prompts]
    rig.step([(row, len(row.tokens) - 1) for row in lasts])
    decoded = rig.step([(row, 1) for row in lasts])
    for found in (chunked, decoded):
        assert torch.equal(found, torch.stack(alone))
