"""The kernels of each product of a model on a GPU for one row, small and large batches: for `Engine.info()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...kernels.gemv import gemv
from ...kernels.packed.packed_weight import BYTES, FLOATS, NIBBLES, TABLE, PackedWeight
from ...kernels.quantized.gemm_dispatch import gemv_kernel, kernels_by_rows
from ...layers.linear_layers import Linear
from ...quantization import GpuQuantizedLinear
from ..reference.reference_experts import ReferenceExperts
from ..reference.tensor_parallel_linear import local_product
from .gemv_layers import FullyFusedLayer, GemvLayer, can_run_gemv
from .small_batch_layers import MOST_ROWS, packed_of, supports_small_batch

if TYPE_CHECKING:
    from .gpu_step import ExecutionPlan, PlannedDecoder

FUSED = ", norms and additions fused in"
GENERAL = "quantized_gemm"
FIXED_SUMS = ", one order of sums"
FLOAT8_ROWS, INT8_ROWS = "torch._scaled_mm of rows in float8", "batch_invariant_matmul of rows in int8"
UNPACKED = {  # by the class of a product: small batches, and large ones, if the table of packed weights has none
    "Linear": ("cuBLAS", "cuBLAS"),
    "Fp8Linear": (None, FLOAT8_ROWS),
    "StaticFp8Linear": (FLOAT8_ROWS, FLOAT8_ROWS),
    "RowwiseFp8Linear": (f"batch_invariant_matmul{FIXED_SUMS}",) * 2,
    "DeterministicLinear": (f"batch_invariant_matmul{FIXED_SUMS}",) * 2,
    "GpuQuantizedLinear": (None, None),
    "DeterministicGpuQuantizedLinear": (f"{GENERAL}{FIXED_SUMS}",) * 2,
    "Int8ActivationLinear": (None, INT8_ROWS),
}


@dataclass(frozen=True, slots=True)
class MatmulReport:
    """Products of one name that run alike. count: of them.  weight: sizes [out, in] and its form.

    one_row, few_rows, many_rows: the kernels of steps of one row, of up to small_batch_layers.MOST_ROWS and of
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
    few, many = UNPACKED.get(type(product).__name__, (type(product).__name__,) * 2)
    fused = FUSED if folded and execution_plan.few is not None else ""
    few = (few or _by_rows(packed_of(product), 1, MOST_ROWS)) + fused
    many = many or _by_rows(packed_of(product), MOST_ROWS + 1, 2**30)
    single = few if not alone or (fused and not execution_plan.folds) else _single(product)
    return name, _kept_as(product), single, few, many, _why(product, alone, single)


def _by_rows(packed: PackedWeight, first: int, last: int) -> str:
    """The kernels by rising number of rows."""
    *some, (rest, _) = kernels_by_rows(packed, first, last)
    return ", then ".join([*(f"{kernel} up to {most} rows" for kernel, most in some), rest])


def _single(product: Linear) -> str:
    packed = product.packed if isinstance(product, GpuQuantizedLinear) else None
    return "gemv_kernels" if packed is None else str(gemv_kernel(packed))


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
    if not isinstance(product, GpuQuantizedLinear) or not product.folds or single == "gemv_tensor_core_kernels":
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
