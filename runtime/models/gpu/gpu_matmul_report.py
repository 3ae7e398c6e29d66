"""The kernels of each product of a model on a GPU for one row, small and large batches: for `Engine.info()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...kernels.gemv import gemv
from ...kernels.packed.packed_weight import BYTES, FLOATS, NIBBLES, TABLE, PackedWeight
from ...kernels.quantized import quantized_gemm, skinny_gemm, wgmma_gemm
from ...layers.linear_layers import Linear
from ...quantization import GpuQuantizedLinear
from ..reference.reference_experts import ReferenceExperts
from ..reference.tensor_parallel_linear import local_product
from .gemv_layers import FullyFusedLayer, GemvLayer, can_run_gemv
from .small_batch_layers import packed_of, supports_small_batch

if TYPE_CHECKING:
    from .gpu_step import ExecutionPlan, PlannedDecoder

PACKED = "quantized_gemm.multiply"
FOLDED = f"{PACKED}, norms and additions folded in"
TENSOR = "gemv by tensor cores"
RESTORED = f"{PACKED}, from {quantized_gemm.DEQUANTIZED_ROWS} rows on cuBLAS with parts of the weight restored"
WIDE = "many_rows_tensor"
WIDE_RESTORED = f"{WIDE} up to {wgmma_gemm.MOST_ROWS} rows, then cuBLAS with parts of the weight restored"
ALONE = {  # by the class of a product: small batches, and large ones, if nothing is fused
    "Linear": ("cuBLAS", "cuBLAS"),
    "Fp8Linear": (PACKED, "torch._scaled_mm of rows in float8"),
    "StaticFp8Linear": ("torch._scaled_mm of rows in float8",) * 2,
    "RowwiseFp8Linear": ("matmul.multiply, one order of sums",) * 2,
    "DeterministicLinear": ("matmul.multiply, one order of sums",) * 2,
    "GpuQuantizedLinear": (PACKED, RESTORED),
    "DeterministicGpuQuantizedLinear": (f"{PACKED}, one order of sums",) * 2,
    "Int8ActivationLinear": (PACKED, "matmul.multiply of rows in int8"),
}


@dataclass(frozen=True, slots=True)
class MatmulReport:
    """Products of one name that run alike. count: of them.  weight: sizes [out, in] and its form.

    gemv, small_batch_layers, many_rows: the kernels of steps of one row, of up to small_batch_layers.MOST_ROWS and of
    more.
    why: batches of one use no faster kernel for such weights; None: there is none.
    """

    name: str
    count: int
    weight: str
    one_row: str
    few_rows: str
    many_rows: str
    why: str | None


def matmul_reports(model: PlannedDecoder) -> list[MatmulReport]:
    """Of a sealed model that Triton kernels run; experts are left out, which have separate kernels."""
    found = Counter(_all(model, model.execution_plan)) if model.fused else Counter[Row]()
    return [MatmulReport(row[0], count, *row[1:]) for row, count in found.items()]


Row = tuple[str, str, str, str, str, str | None]


def _all(model: PlannedDecoder, execution_plan: ExecutionPlan) -> Iterator[Row]:
    for block, alone in zip(model.layers, execution_plan.alone, strict=True):
        for branch in block.branches:
            for holder, name in () if isinstance(branch, ReferenceExperts) else branch.products():
                yield _row(name, getattr(holder, name), execution_plan, isinstance(alone, FullyFusedLayer | GemvLayer))
    head, whole = model.head.product, model.head.project is None
    yield _row("head", head, execution_plan, whole and can_run_gemv(head), whole and supports_small_batch(head))


def _row(name: str, product: Linear, execution_plan: ExecutionPlan, alone: bool, folded: bool = True) -> Row:
    product = local_product(product)
    few, many = ALONE.get(type(product).__name__, (type(product).__name__,) * 2)
    if folded and execution_plan.few is not None:
        few = FOLDED
    single = (
        few
        if not alone or (folded and execution_plan.few is not None and not execution_plan.folds)
        else _single(product)
    )
    if supports_small_batch(product):
        few = _few(packed_of(product), few)
    if type(product) is GpuQuantizedLinear and wgmma_gemm.supports_weight(product.packed):
        many = WIDE_RESTORED
    return name, _kept_as(product), single, few, many, _why(product, alone, single)


def _few(packed: PackedWeight, few: str) -> str:
    """The kernels by rising number of rows; few: of all that no other kernel takes."""
    rows = skinny_gemm.rows_taken(packed)
    if not wgmma_gemm.supports_weight(packed):
        return f"skinny_gemm up to {rows} rows, then {few}" if rows else few
    least = wgmma_gemm.LEAST_ROWS
    first = f"skinny_gemm up to {min(rows, least - 1)} rows" if rows else f"{few} up to {least - 1} rows"
    if 0 < rows < least - 1:
        first += f", then {few} up to {least - 1} rows"
    return f"{first}, then {few.replace(PACKED, WIDE)}"


def _single(product: Linear) -> str:
    return TENSOR if isinstance(product, GpuQuantizedLinear) and gemv.uses_tensor_cores(product.packed) else "one_row"


def _kept_as(product: Linear) -> str:
    if not isinstance(product, GpuQuantizedLinear):
        return f"{' x '.join(map(str, product.weight.shape))}, {str(product.weight.dtype).removeprefix('torch.')}"
    packed = product.packed
    group = f" in groups of {packed.group}" if packed.group < packed.inputs else ""
    return f"{packed.outputs} x {packed.inputs}, {_numbers(packed)}{group}"


def _numbers(packed: PackedWeight) -> str:
    if packed.form == BYTES:
        return str(packed.words.dtype).removeprefix("torch.")
    return {NIBBLES: "whole numbers of 4 bits", FLOATS: "floats of 4 bits", TABLE: "codes of a table of 16"}[
        packed.form
    ]


def _why(product: Linear, alone: bool, single: str) -> str | None:
    if not isinstance(product, GpuQuantizedLinear) or not product.folds or single == TENSOR:
        return None
    packed = product.packed
    if packed.order is not None:
        return "its columns are in another order"
    if not can_run_gemv(product):
        return (
            "one row has kernels for whole numbers of 4 bits, and bytes with a scale an output, not for "
            f"{_numbers(packed)}{' with scales of groups' if packed.form == BYTES else ''}"
        )
    if not alone:
        return "another product of the layer, or what stands between them, has no kernels for one row"
    return None if packed.form == BYTES else _not_by_tensor_cores(packed)


def _not_by_tensor_cores(packed: PackedWeight) -> str:
    if packed.dtype != torch.bfloat16:
        return "the tensor cores' kernel for one row computes in bfloat16"
    if packed.block != gemv.TENSOR_BLOCK:
        return (
            f"the tensor cores' kernel for one row takes groups of 32, of multiples of {gemv.TENSOR_BLOCK}, or "
            "whole rows"
        )
    if packed.inputs > gemv.TENSOR_INPUTS:
        return f"the tensor cores' kernel for one row takes at most {gemv.TENSOR_INPUTS} inputs"
    return "the tensor cores' kernel for one row finds no room in this card's shared memory"
