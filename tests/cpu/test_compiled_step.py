"""The product in blocks against torch's in float32, and steps of one call against the same layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from checkpoints import write_checkpoint
from rig import Rig, Row
from test_models import VARIANTS

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import BlockedLinear, Linear

CPU = torch.device("cpu")
DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if cpu_kernels.can_multiply(dtype, CPU)]
ROWS = (1, 2, 3, 5, 6, 7, 11, 12, 13, 25, 97, 200)
pytestmark = pytest.mark.skipif(not DTYPES, reason="needs the compiled kernels and AVX-512")


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    cpu_kernels.set_threads(request.param)
    yield
    cpu_kernels.set_threads(1)


def layer_of(outputs: int, inputs: int, bias: bool, dtype: torch.dtype) -> Linear:
    layer = Linear.empty(outputs, inputs, bias, dtype, CPU)
    layer.weight.normal_()
    if layer.bias is not None:
        layer.bias.normal_()
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs, inputs", [(640, 384), (5, 34), (1, 8), (33, 2), (1100, 66)])
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_products(outputs: int, inputs: int, bias: bool, dtype: torch.dtype, threads: None) -> None:
    layer = layer_of(outputs, inputs, bias, dtype)
    blocked = BlockedLinear(layer.weight, layer.bias)
    bounds = {"atol": 1e-3, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.2, "rtol": 1e-2}
    for rows in ROWS:
        x, residual = torch.randn(rows, inputs).to(dtype), torch.randn(rows, outputs).to(dtype)
        product = F.linear(x.float(), layer.weight.float(), None if layer.bias is None else layer.bias.float())
        torch.testing.assert_close(blocked(x).float(), product, **bounds)
        total = blocked.added_to(residual.clone(), x).float()
        torch.testing.assert_close(total, product + residual.float(), **bounds)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, threads: None) -> None:
    layer = layer_of(100, 200, True, dtype)
    blocked, x = BlockedLinear(layer.weight, layer.bias), torch.randn(max(ROWS), 200).to(dtype)
    alone = torch.cat([blocked(row[None]) for row in x])
    for rows in ROWS:
        assert torch.equal(blocked(x[:rows]), alone[:rows])
        assert torch.equal(blocked(x[-rows:]), alone[-rows:])


def test_padding_reads_nothing_beyond_the_weight() -> None:
    """What fills up the last block is zero, whatever lay in that memory."""
    for dtype in DTYPES:
        layer = layer_of(37, 10, False, dtype)
        blocked = BlockedLinear(layer.weight, None)
        group = blocked.weight.shape[-1]
        restored = blocked.weight.transpose(1, 2).reshape(-1, 10)
        assert group == (2 if dtype == torch.bfloat16 else 1)
        assert torch.equal(restored[:37], layer.weight) and not restored[37:].any()


def steps_of(rig: Rig) -> list[torch.Tensor]:
    """Small prefills, decodes of several, of one, steps of both, and one whose every token's logits are wanted."""
    generator = torch.Generator().manual_seed(0)
    rows = [Row(torch.randint(4, 300, (40,), generator=generator).tolist()) for _ in range(15)]
    work = [
        [(row, 5 + index % 11) for index, row in enumerate(rows)],
        [(row, 1) for row in rows],
        [(rows[3], 1)],
        [(row, 1 + index % 3) for index, row in enumerate(rows[:7])],
    ]
    return [*(rig.step(each) for each in work), rig.step([(row, 2) for row in rows[:3]], every_row=True)]


@pytest.mark.few(10)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_have_the_bits_of_the_same_layer_by_layer(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    path = write_checkpoint(tmp_path, family, **overrides)
    exact = Rig(path, dtype)
    assert exact.model.step is not None
    exact.model.step = None
    expected = steps_of(exact)
    for threads in (1, 2, 3):
        cpu_kernels.set_threads(threads)
        rig = Rig(path, dtype)
        assert all(torch.equal(a, b) for a, b in zip(steps_of(rig), expected, strict=True))
        assert torch.equal(rig.pool.k.nan_to_num(), exact.pool.k.nan_to_num())
        assert torch.equal(rig.pool.v.nan_to_num(), exact.pool.v.nan_to_num())
    cpu_kernels.set_threads(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "heads, kv_heads, dim", [(6, 2, 64), (7, 1, 64), (10, 2, 32), (4, 4, 96), (6, 2, 128), (2, 1, 40)]
)
def test_heads_of_every_shape(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 12 * heads,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "num_hidden_layers": 2,
    }
    path, tokens = write_checkpoint(tmp_path, **sizes), list(range(20, 250))
    whole = Rig(path, torch.float32, attention="torch_native").step([(Row(tokens), 230)], every_row=True)
    rig, row = Rig(path, dtype), Row(tokens)
    found = [rig.step([(row, 16)]) for _ in range(13)]
    found += [rig.step([(row, 1)]) for _ in range(22)]
    places = [*range(15, 208, 16), *range(208, 230)]
    bound = 1e-4 if dtype == torch.float32 else 0.1
    for logits, place in zip(found, places, strict=True):
        assert (logits[0] - whole[place]).norm() < bound * whole[place].norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_keys_and_values_where_no_logits_are_wanted(dtype: torch.dtype, tmp_path: Path) -> None:
    path, tokens = write_checkpoint(tmp_path), list(range(4, 12))
    rig, other = Rig(path, dtype), Rig(path, dtype)
    run = rig.run

    def without(batch):
        batch.logit_rows = batch.logit_rows[:0]
        return run(batch)

    rig.run = without
    assert rig.step([(Row(tokens), 8)]).shape == (0, rig.model.config.vocab_size)
    other.step([(Row(tokens), 8)])
    assert torch.equal(rig.pool.k.nan_to_num(), other.pool.k.nan_to_num())


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bundled_model_says_the_same_in_one_call_and_layer_by_layer(threads: int) -> None:
    prompts = [[7 * i + j for j in range(12 + i)] for i in range(5)]
    params = [SamplingParams(max_tokens=16, ignore_eos=True, temperature=t, seed=3, logprobs=True) for t in (0, 0.8)]

    def said(engine: Engine, tokens: list[int], each: SamplingParams) -> object:
        sequence = engine.open()
        sequence.extend(tokens)
        return sequence.generate(each)

    def together(engine: Engine) -> list[object]:
        engine.flush_cache()
        done = [future.result(60) for future in [said(engine, tokens, each) for tokens in prompts for each in params]]
        return [(result.token_ids, result.logprobs) for result in done]

    with Engine(threads=threads) as engine:
        model = engine._core.runner.model
        assert model.step is not None
        expected = together(engine)
        model.step = None
        assert together(engine) == expected
