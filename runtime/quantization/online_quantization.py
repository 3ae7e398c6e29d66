"""Loaded projections quantized to the form that `weights` names, computed by the product of their device."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..errors import ConfigError
from ..layers.linear_layers import Linear
from .calibration_statistics import InputHessian, InputStatistics
from .cpu_int4_linear import GroupedLinear
from .fp4_fp8_rounding import float8_blocks, mxfp4, nvfp4
from .fused_quantized_weight import FusedQuantizedWeight, QuantizedPiece
from .gptq_rounding import gptq
from .gpu_quantized_linear import DeterministicGpuQuantizedLinear, GpuQuantizedLinear
from .gpu_weight_packing import packing_refusal
from .quantized_transform import keep_quantized
from .quantized_weight import QuantizedWeight
from .weight_forms import CALIBRATED, FP8_BLOCK
from .weight_rounding import hqq, nearest, round_to_int8

ROUNDINGS: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "int8": round_to_int8,
    "int4": nearest,
    "int4_hqq": hqq,
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    FP8_BLOCK: float8_blocks,
}


def rounded(form: str, weight: Tensor, seen: InputStatistics | None = None) -> QuantizedWeight:
    """weight [out, in] in one of FORMS. seen: a Hessian, for those that are CALIBRATED."""
    if form not in CALIBRATED:
        return ROUNDINGS[form](weight)
    assert isinstance(seen, InputHessian)
    return gptq(weight, seen.sums, ordered=True)


def requantized(form: str, layer: Linear, seen: InputStatistics | None = None, fixed: bool = False) -> Linear:
    """On a CPU torch multiplies forms without a kernel; on a GPU that is a ConfigError.

    fixed: on a GPU, batch-invariant.
    """
    weight = rounded(form, layer.weight, seen)
    if layer.weight.device.type != "cpu":
        return _on_gpu(form, weight, layer, fixed)
    found = keep_quantized(FusedQuantizedWeight([QuantizedPiece(0, form, weight)]), layer)
    return found if isinstance(found, Linear) else GroupedLinear(weight, layer.bias)


def _on_gpu(form: str, weight: QuantizedWeight, layer: Linear, fixed: bool) -> Linear:
    dtype = layer.weight.dtype
    if (why := packing_refusal(weight, dtype)) is not None:
        raise ConfigError(f"Engine(weights={form!r}): {why}; set dtype='bfloat16', or weights='auto'")
    return (DeterministicGpuQuantizedLinear if fixed else GpuQuantizedLinear)(weight, layer.bias, dtype)
