"""Products of weights as they are by AVX2, and steps with them, as on a CPU without AVX-512."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from rig import Rig, Row
from test_compiled_step import ROWS, layer_of, steps_of
from test_experts import mixture

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.layers import compiled_kernels, cpu_kernels
from sgl.runtime.layers.linear_layers import BlockedLinear, Linear
from sgl.runtime.models import layer_executors

CPU = torch.device("cpu")
BY_AVX2 = 1
ONCE_ROUNDED = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}
DTYPES = [dtype for dtype in cpu_kernels.KINDS if cpu_kernels.can_multiply(dtype, CPU)]
pytestmark = pytest.mark.skipif(not DTYPES, reason="needs the compiled kernels and AVX2")


@pytest.fixture(autouse=True)
def without_avx512(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    best = {dtype: compiled_kernels.WAYS.index(cpu_kernels.isa_variant(dtype)) for dtype in DTYPES}
    for dtype in DTYPES:
        cpu_kernels.kernels.set_dense_way(cpu_kernels.KINDS[dtype], BY_AVX2)
    monkeypatch.setattr(cpu_kernels, "has_tiles", lambda dtype: False)
    yield
    for dtype in DTYPES:
        cpu_kernels.kernels.set_dense_way(cpu_kernels.KINDS[dtype], best[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs, inputs", [(640, 384), (5, 34), (1, 8), (33, 2), (1100, 66)])
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_products(outputs: int, inputs: int, bias: bool, dtype: torch.dtype) -> None:
    """Against float64, within what float32 sums and one rounding of the result leave."""
    check_products(layer_of(outputs, inputs, bias, dtype), ROWS)


def check_products(layer: Linear, counts: Sequence[int]) -> None:
    """counts: of rows."""
    dtype, (outputs, inputs) = layer.weight.dtype, layer.weight.shape
    blocked, weight = BlockedLinear(layer.weight, layer.bias), layer.weight.double()
    for rows in counts:
        x, residual = torch.randn(rows, inputs).to(dtype), torch.randn(rows, outputs).to(dtype)
        beside = 0 if layer.bias is None else layer.bias.double()
        size = (
            x.double().abs() @ weight.abs().T + residual.double().abs() + abs(beside)
        )  # of what is rounded on the way: they may cancel
        total = x.double() @ weight.T + residual.double() + beside
        found = blocked.added_to(residual.clone(), x).double()
        assert bool(((found - total).abs() <= 1e-6 * size + ONCE_ROUNDED[dtype] * total.abs()).all())
        assert bool(
            (
                (blocked(x).double() + residual.double() - total).abs()
                <= 1e-6 * size + ONCE_ROUNDED[dtype] * (total - residual.double()).abs()
            ).all()
        )


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    check_bits(layer_of(100, 200, True, dtype), ROWS)


def check_bits(layer: Linear, counts: Sequence[int]) -> None:
    """counts: of rows."""
    blocked, x = (
        BlockedLinear(layer.weight, layer.bias),
        torch.randn(max(counts), layer.weight.shape[1]).to(layer.weight.dtype),
    )
    alone = torch.cat([blocked(row[None]) for row in x])
    for rows in counts:
        assert torch.equal(blocked(x[:rows]), alone[:rows]) and torch.equal(blocked(x[-rows:]), alone[-rows:])


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_experts(dtype: torch.dtype) -> None:
    """Their products are shared out together."""
    part, x = (
        mixture("shared, switched", dtype),
        torch.randn(70, 48, generator=torch.Generator().manual_seed(1)).to(dtype),
    )
    found, expected = part.inner(x), part.by_torch(x)
    assert (found.float() - expected.float()).norm() < (
        1e-5 if dtype == torch.float32 else 1e-2
    ) * expected.float().norm()
    assert torch.equal(found, torch.cat([part.inner(row[None]) for row in x]))


@pytest.mark.skipif(torch.float32 not in DTYPES or cpu_kernels.kernels.FLOAT32 == BY_AVX2, reason="needs both ways")
@torch.inference_mode()
def test_float32_has_the_bits_of_avx512() -> None:
    layer, x = layer_of(70, 130, True, torch.float32), torch.randn(29, 130)
    blocked = BlockedLinear(layer.weight, layer.bias)
    found = blocked(x)
    cpu_kernels.kernels.set_dense_way(cpu_kernels.KINDS[torch.float32], cpu_kernels.kernels.FLOAT32)
    assert torch.equal(blocked(x), found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_have_the_bits_of_the_same_layer_by_layer(dtype: torch.dtype, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path)
    exact, rig = Rig(path, dtype), Rig(path, dtype)
    assert (
        layer_executors.best_executor(CPU, dtype).by == "compiled"
        and rig.model.step is not None
        and all(rig.model.step.claimed)
    )
    exact.model.step = None
    assert all(torch.equal(a, b) for a, b in zip(steps_of(rig), steps_of(exact), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_those_of_torch(dtype: torch.dtype, tmp_path: Path) -> None:
    """Prompts, which torch attends, and single tokens."""
    path, tokens = write_checkpoint(tmp_path), list(range(20, 90))
    whole = Rig(path, torch.float32, attention="torch_native").step([(Row(tokens), 70)], every_row=True)
    rig, row = Rig(path, dtype), Row(tokens)
    found = [rig.step([(row, 60)]), *(rig.step([(row, 1)]) for _ in range(10))]
    bound = 1e-4 if dtype == torch.float32 else 0.1
    for logits, place in zip(found, range(59, 70), strict=True):
        assert (logits[0] - whole[place]).norm() < bound * whole[place].norm()


@pytest.mark.few(1)
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_engine_writes_what_it_writes_by_torch(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    params, texts = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True), []
    for by in ("compiled", "torch"):
        with Engine(device="cpu", dtype="float32", kv_tokens=2000, deterministic=deterministic) as engine:
            assert engine.info()["layers"][0]["executor"] == by
            texts.append(engine.generate("one two three " * 12, params).token_ids)
        monkeypatch.setattr(cpu_kernels, "can_multiply", lambda dtype, device: False)  # as without AVX2
    assert texts[0] == texts[1]
