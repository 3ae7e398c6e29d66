"""Which kernel multiplies how many rows of a product, as `Engine.info()` tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

import layer_checks as checks
from part_models import RMS, PartsRig, attention, model
from test_quantized_kernels import draw

from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.quantized import wgmma_gemm
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.models import decoder
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.gpu.gpu_matmul_report import (
    FOLDED,
    PACKED,
    RESTORED,
    TENSOR,
    WIDE,
    WIDE_RESTORED,
    MatmulReport,
    matmul_reports,
)
from sgl.runtime.models.spec.model_spec import GatedFFNSpec, LayerNorms, LayerSpec
from sgl.runtime.quantization import Fp8Linear
from sgl.runtime.quantization.gpu_quantized_linear import (
    DeterministicGpuQuantizedLinear,
    GpuQuantizedLinear,
    Int8ActivationLinear,
)
from sgl.runtime.quantization.weight_rounding import round_to_int8

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    monkeypatch.setattr(gemv, "has_room", lambda device: True)


def told(form: str, group: int = 64, kind: type[GpuQuantizedLinear] = GpuQuantizedLinear) -> dict[str, MatmulReport]:
    """Of a model of two layers whose products are all in one form: "plain", "float8
    an output", "int8 rows", or one of `draw`.
    """
    found: Decoder = PartsRig(model(*[LayerSpec(LayerNorms.pre(RMS), attention(), GatedFFNSpec(32))] * 2), HALF).model
    checks.lay_plain(found)
    for block in found.layers if form != "plain" else ():
        for holder, name in block.products():
            setattr(holder, name, made(form, group, kind, getattr(holder, name)))
    vars(found).pop("execution_plan", None)
    return {product.name: product for product in matmul_reports(found)}


def made(form: str, group: int, kind: type[GpuQuantizedLinear], plain: Linear) -> Linear:
    if form == "float8 an output":
        return Fp8Linear.of(plain)
    if form == "int8 rows":
        return Int8ActivationLinear(replace(round_to_int8(plain.weight.float()), rounds_rows=True), plain.bias, HALF)
    return kind(draw(form, *plain.weight.shape, group), plain.bias, HALF)


def check(found: dict[str, MatmulReport], one: str, few: str, many: str, why: str | None) -> None:
    qkv = found["qkv"]
    assert (qkv.count, qkv.one_row, qkv.few_rows, qkv.many_rows) == (2, one, few, many)
    assert qkv.why == why if why is None else str(qkv.why).startswith(why)


def test_plain_weights() -> None:
    found = told("plain")
    check(found, "one_row", "cuBLAS", "cuBLAS", None)
    assert {"qkv", "output", "gate_up", "down", "head"} == set(found) and found["head"].count == 1


def test_four_bits() -> None:
    found = told("zeros")
    check(found, TENSOR, FOLDED, RESTORED, None)
    assert found["qkv"].weight.endswith("whole numbers of 4 bits") and found["head"].few_rows == "cuBLAS"
    check(told("zeros", 16), "one_row", FOLDED, RESTORED, "the tensor cores' kernel for one row takes groups of 32")


def test_forms_without_kernels_for_one_row() -> None:
    check(told("floats", 32), FOLDED, FOLDED, RESTORED, "one row has kernels for whole numbers of 4 bits")
    check(told("fine table", 32), FOLDED, FOLDED, RESTORED, "one row has kernels for whole numbers of 4 bits")
    check(told("order", 32), FOLDED, FOLDED, RESTORED, "its columns are in another order")
    check(told("float8", 16), FOLDED, FOLDED, RESTORED, "one row has kernels for whole numbers of 4 bits")


def test_eight_bits_with_a_scale_an_output() -> None:
    check(told("float8 an output"), "one_row", FOLDED, "torch._scaled_mm of rows in float8", None)
    check(told("int8 rows"), "one_row", FOLDED, "matmul.multiply of rows in int8", None)


def test_fixed_sums() -> None:
    same = f"{PACKED}, one order of sums"
    check(told("zeros", 64, DeterministicGpuQuantizedLinear), same, same, same, None)


def test_more_rows_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma_gemm, "supports_shape", lambda weight, gated=False: True)
    wide = FOLDED.replace(PACKED, WIDE)
    check(told("zeros", 32), TENSOR, f"{FOLDED} up to 32 rows, then {wide}", WIDE_RESTORED, None)
    check(
        told("float8 an output"),
        "one_row",
        f"{FOLDED} up to 32 rows, then {wide}",
        "torch._scaled_mm of rows in float8",
        None,
    )
    check(told("offset"), TENSOR, FOLDED, RESTORED, None)
