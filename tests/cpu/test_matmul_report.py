"""Which kernel multiplies how many rows of a product, as `Engine.info()` tells it."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import layer_checks as checks
from part_models import RMS, PartsRig, attention, model
from test_quantized_kernels import draw

from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.quantized import quantized_gemm, skinny_gemm, split_k_gemm, wgmma_gemm
from sgl.runtime.kernels.quantized.gemm_dispatch import kernel_for
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.models import decoder
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.gpu.gpu_matmul_report import (
    FIXED_SUMS,
    FLOAT8_ROWS,
    FUSED,
    GENERAL,
    INT8_ROWS,
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
from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu
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


SINGLE, TENSOR = "gemv_kernels", "gemv_tensor_core_kernels"
FEW, MANY = f"{GENERAL}{FUSED}", f"{GENERAL} up to 511 rows, then cuBLAS"
PARTS = f"split_k_gemm up to 16 rows, then skinny_gemm{FUSED}"


def test_plain_weights() -> None:
    found = told("plain")
    check(found, SINGLE, "cuBLAS", "cuBLAS", None)
    assert {"qkv", "output", "gate_up", "down", "head"} == set(found) and found["head"].count == 1


def test_four_bits() -> None:
    found = told("zeros")
    check(found, TENSOR, FEW, MANY, None)
    assert found["qkv"].weight.endswith("whole numbers of 4 bits") and found["head"].few_rows == "cuBLAS"
    check(told("zeros", 16), SINGLE, FEW, MANY, "the tensor cores' kernel for one row takes groups of 32")


def test_forms_without_kernels_for_one_row() -> None:
    check(told("floats", 32), FEW, FEW, MANY, "one row has kernels for whole numbers of 4 bits")
    check(told("fine table", 32), FEW, FEW, MANY, "one row has kernels for whole numbers of 4 bits")
    check(told("order", 32), FEW, FEW, MANY, "its columns are in another order")
    check(told("float8", 16), FEW, FEW, MANY, "one row has kernels for whole numbers of 4 bits")


def test_eight_bits_with_a_scale_an_output() -> None:
    check(told("float8 an output"), SINGLE, FEW, FLOAT8_ROWS, None)
    check(told("int8 rows"), SINGLE, FEW, INT8_ROWS, None)


def test_fixed_sums() -> None:
    same = f"{GENERAL}{FIXED_SUMS}"
    check(told("zeros", 64, DeterministicGpuQuantizedLinear), same, same, same, None)


def test_more_rows_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma_gemm, "supports_shape", lambda weight, gated=False: True)
    few, many = f"{GENERAL} up to 32 rows, then wgmma_gemm{FUSED}", "wgmma_gemm up to 1024 rows, then cuBLAS"
    check(told("zeros", 32), TENSOR, few, many, None)
    check(told("float8 an output"), SINGLE, few, FLOAT8_ROWS, None)
    check(told("offset"), TENSOR, FEW, MANY, None)


def test_small_batches_by_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (skinny_gemm, split_k_gemm):
        monkeypatch.setattr(module, "has_room", lambda device: True)
    check(told("zeros", 32), TENSOR, PARTS, MANY, None)
    monkeypatch.setattr(wgmma_gemm, "supports_shape", lambda weight, gated=False: True)
    few = f"split_k_gemm up to 16 rows, then skinny_gemm up to 32 rows, then wgmma_gemm{FUSED}"
    check(told("zeros", 32), TENSOR, few, "wgmma_gemm up to 1024 rows, then cuBLAS", None)
    check(told("fine table", 32), *(f"split_k_gemm up to 16 rows, then {FEW}",) * 2, MANY, "one row has kernels")


def test_the_page_has_the_table_that_products_choose_from() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs/gpu.md").read_text()
    written = runpy.run_path(str(root / "docs/site/kernels.py"), run_name="script")["page"](text)
    assert written == text, "docs/gpu.md is not what the table says; run docs/site/kernels.py"


@pytest.mark.parametrize(
    ("outputs", "inputs", "form", "kernel"),
    [
        (1024, 1024, "plain", "split_k_gemm"),
        (1536, 1024, "plain", "skinny_gemm"),
        (2048, 2048, "zeros", "split_k_gemm"),
        (2304, 2048, "zeros", "skinny_gemm"),
        (128, 8320, "plain", "quantized_gemm"),
    ],
)
def test_seventeen_rows_of_few_outputs(
    outputs: int, inputs: int, form: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (skinny_gemm, split_k_gemm):
        monkeypatch.setattr(module, "has_room", lambda device: True)
    weight = pack_for_gpu(draw(form, outputs, inputs, 64), torch.bfloat16)
    assert [kernel_for(rows, weight) for rows in (16, 17, 32)] == ["split_k_gemm", kernel, kernel]


def test_no_rows() -> None:
    weight = pack_for_gpu(draw("zeros", 64, 128, 64), torch.bfloat16)
    assert quantized_gemm.product(torch.empty(0, 128, dtype=torch.bfloat16), weight).shape == (0, 64)
