"""The GPU's products with weights of 4 and 8 bits, interpreted, against the definition."""

from __future__ import annotations

from pathlib import Path

import layer_checks as checks
import pytest
import torch
from checkpoints import write_checkpoint
from rig import Rig
from torch import Tensor

from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.models import decoder
from sgl.runtime.quantization.quantized_weight import E2M1, QuantizedWeight
from sgl.runtime.quantization.weight_rounding import nearest

pytest.importorskip("triton")

NF4 = torch.linspace(-1, 1, 16) ** 3  # about
NUMBERS = torch.arange(-16.0, 16.0, 2) * 3


def draw(form: str, outputs: int, inputs: int, group: int, seed: int = 0) -> QuantizedWeight:
    """A weight of random codes in one of the forms that checkpoints have."""
    generator = torch.Generator().manual_seed(seed)
    levels = 256 if form in ("bytes", "byte zeros", "float8") else 16
    codes = torch.randint(0, levels, (outputs, inputs), generator=generator, dtype=torch.uint8)
    groups = -(-inputs // group)
    scale = (torch.rand(outputs, groups, generator=generator) + 0.5) / levels
    zeros = torch.randint(0, levels, (outputs, groups), generator=generator, dtype=torch.uint8)
    factor = torch.rand(outputs, generator=generator) + 0.5
    if form == "float8":
        finite = codes.masked_fill((codes & 127) == 127, 3)
        return QuantizedWeight.float8(finite.view(torch.float8_e4m3fn), scale, group)
    return {
        "plain": lambda: QuantizedWeight(codes, scale.half(), group, zero=8.0),
        "zeros": lambda: QuantizedWeight(codes, scale.bfloat16(), group, zero=zeros),
        "broken zeros": lambda: QuantizedWeight(codes, scale, group, zero=zeros.float() + 0.25),
        "offset": lambda: QuantizedWeight(codes, scale, group, offset=-scale * 7),
        "offset, factor": lambda: QuantizedWeight(codes, scale, group, zero=zeros, offset=-scale * 7, factor=factor),
        "floats": lambda: QuantizedWeight(codes, scale.half(), group, table=torch.tensor(E2M1), factor=factor),
        "table": lambda: QuantizedWeight(codes, scale.bfloat16(), group, table=NUMBERS),
        "fine table": lambda: QuantizedWeight(codes, scale.half(), group, table=NF4 * 16, factor=factor),
        "table, zero": lambda: QuantizedWeight(codes, scale, group, zero=zeros, table=NUMBERS),
        "order": lambda: QuantizedWeight(
            codes, scale, group, zero=zeros, order=torch.randperm(inputs, generator=generator)
        ),
        "bytes": lambda: QuantizedWeight(codes, scale, group, 256, zero=128.0),
        "byte zeros": lambda: QuantizedWeight(codes, scale, group, 256, zero=zeros, factor=factor),
    }[form]()


FORMS = (
    "plain",
    "zeros",
    "broken zeros",
    "offset",
    "offset, factor",
    "floats",
    "table",
    "fine table",
    "table, zero",
    "order",
    "bytes",
    "byte zeros",
    "float8",
)
DTYPES = (torch.bfloat16, torch.float16)


def close(found: Tensor, expected: Tensor, size: Tensor, dtype: torch.dtype) -> None:
    """size: of what is summed, which rounding is relative to."""
    step = torch.finfo(dtype).eps
    assert ((found.float() - expected).abs() <= step * (expected.abs() + size)).all()


CASES = [(form, group, torch.bfloat16) for form in FORMS for group in (16, 64, 512)]
CASES += [(form, group, torch.bfloat16) for form in ("zeros", "offset") for group in (32, 128)]
CASES += [(form, 32, torch.float16) for form in ("zeros", "floats", "fine table", "float8")]


@pytest.mark.few(16)
@pytest.mark.parametrize("form, group, dtype", CASES)
def test_a_product_is_that_of_the_dense_weight(form: str, group: int, dtype: torch.dtype) -> None:
    from sgl.runtime.kernels.quantized import quantized_gemm
    from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu, packing_refusal

    weight = draw(form, 72, 208, group)
    assert packing_refusal(weight, dtype) is None
    packed, tile = pack_for_gpu(weight, dtype), quantized_gemm.QuantizedGemmTile(16, 64, 2, 1, 4)
    x, bias = torch.randn(3, 208, generator=torch.Generator().manual_seed(1)).to(dtype), torch.randn(72).to(dtype)
    dense = weight.dense()
    expected, size = x.float() @ dense.T + bias.float(), x.float().abs() @ dense.abs().T
    found = quantized_gemm.matmul(x, packed, bias, tile=tile)
    close(quantized_gemm.matmul(x, packed, bias, tile=tile._replace(apart=True)), expected, size / 2, dtype)
    close(found, expected, size / 2, dtype)
    close(quantized_gemm.multiply_dequantized(x, packed, bias), expected, size, dtype)
    assert not packed.counters.any()


def test_what_surrounds_a_product_is_folded_in() -> None:
    from sgl.runtime.kernels.quantized import quantized_gemm
    from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu

    hidden, inner = 256, 192
    generator = torch.Generator().manual_seed(0)
    up, down = (
        pack_for_gpu(draw("zeros", 2 * inner, hidden, 64), torch.bfloat16),
        pack_for_gpu(draw("plain", hidden, inner, 64, 1), torch.bfloat16),
    )
    w_up, w_down = draw("zeros", 2 * inner, hidden, 64).dense(), draw("plain", hidden, inner, 64, 1).dense()
    norm = torch.rand(hidden, generator=generator) + 0.5
    x = torch.randn(5, hidden, generator=generator).bfloat16()
    y = torch.randn(5, inner, generator=generator).bfloat16()
    tile = quantized_gemm.QuantizedGemmTile(16, 64, 3, 1, 4)
    before = x.clone()
    readied = quantized_gemm.matmul(y, down, added_to=x, ready=(norm, 1e-6), tile=tile)
    expected = before.float() + y.float() @ w_down.T
    assert (x.float() - expected).abs().max() < 0.01 * expected.abs().max()
    assert torch.allclose(readied.squares.sum(0), x.float().square().sum(1), rtol=1e-4)
    found = quantized_gemm.matmul(readied, up, name="silu", tile=tile)
    normed = x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6) * norm
    gate, above = (normed @ w_up.T).chunk(2, 1)
    wanted = torch.nn.functional.silu(gate) * above
    assert (found.float() - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_what_no_kernel_takes_is_named() -> None:
    from sgl.runtime.quantization.gpu_weight_packing import packing_refusal

    assert "float32" in str(packing_refusal(draw("plain", 8, 64, 32), torch.float32))
    assert "groups of 48" in str(packing_refusal(draw("plain", 8, 96, 48), torch.bfloat16))
    shifted = QuantizedWeight(torch.zeros(8, 64, dtype=torch.uint8), torch.ones(8, 1), 64, zero=1.0, table=NF4)
    assert "table" in str(packing_refusal(shifted, torch.bfloat16))


def in_few_bits(plain: Linear, float8: bool) -> tuple[Linear, Linear]:
    """Of float32: beside bfloat16, and the same numbers restored."""
    from sgl.runtime.quantization import Fp8Linear, GpuQuantizedLinear

    bias = None if plain.bias is None else plain.bias.bfloat16()
    if float8:
        found = Fp8Linear.of(Linear(checks.loaded_weight(plain), bias))
        return found, Linear(found.weight.float() * found.scale[:, None], plain.bias)
    weight = nearest(checks.loaded_weight(plain), 16)
    return GpuQuantizedLinear(weight, bias, torch.bfloat16), Linear(weight.dense(), plain.bias)


@pytest.mark.parametrize(
    "behind, float8", [(True, False), (False, False), (False, True)], ids=["head in few bits", "plain head", "float8"]
)
def test_a_decoder_folds_what_stands_between_products_of_few_rows(
    behind: bool, float8: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgl.runtime.models.gpu import small_batch_layers
    from sgl.runtime.models.gpu.gpu_step import execution_plan_of

    path = write_checkpoint(tmp_path, num_hidden_layers=2, vocab_size=96)
    exact = Rig(path)
    exact.model.step = None  # it knows the weights that are replaced
    monkeypatch.setattr(decoder, "_can_fuse", lambda device: True)
    rig = checks.FusedRig(path, torch.bfloat16, attention="torch_native")
    places = [*zip(rig.model.layers, exact.model.layers, strict=True)]
    holders = [pair for one, other in places for pair in zip(one.products(), other.products(), strict=True)]
    holders += [((rig.model.head, "product"), (exact.model.head, "product"))] if behind else []
    for (holder, name), (same, _) in holders:
        few, plain = in_few_bits(getattr(same, name), float8)
        setattr(holder, name, few)
        setattr(same, name, plain)
    rig.model.execution_plan = execution_plan_of(rig.model)
    assert rig.model.executors() == [("fused", None)] * 2
    ran = []
    times = small_batch_layers._times
    monkeypatch.setattr(
        small_batch_layers, "_times", lambda *args, **options: ran.append(args[0]) or times(*args, **options)
    )
    checks.check_decoder(exact, rig, 0.05, checks.SINGLE)
    assert len(ran) == 2 * (2 * 4 + behind)  # steps of layers of products


def test_pieces_of_different_forms_are_products_of_their_own() -> None:
    from sgl.runtime.layers.mixed_format_linear import stacked
    from sgl.runtime.quantization import GpuQuantizedLinear

    weights = [draw("zeros", 48, 128, 64), draw("bytes", 24, 128, 16, 1)]
    layer = stacked(
        [GpuQuantizedLinear(weight, None, torch.bfloat16) for weight in weights], [48, 24], 128, torch.bfloat16
    )
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    dense = torch.cat([weight.dense() for weight in weights])
    close(layer(x), x.float() @ dense.T, x.float().abs() @ dense.abs().T, torch.bfloat16)
