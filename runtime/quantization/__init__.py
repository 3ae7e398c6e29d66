"""Other arithmetic than the model's own: float8 weights and KV, 8-bit and 4-bit weights, batch-invariant products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..layers.float8_reference import FP8
    from .cpu_int4_linear import GroupedLinear, Int4BlockedLinear, Int8GroupedLinear
    from .cpu_int8_linear import Int8BlockedLinear, Int8Linear
    from .deterministic_linear import DeterministicLinear
    from .fp8_linear import Fp8Linear, RowwiseFp8Linear
    from .gpu_quantized_linear import GpuQuantizedLinear
    from .transforms import CalibratedTransform, Transform, calibrated_for, kv_dtype_for, transform_for
    from .weight_forms import ACTIVATIONS, KV_DTYPES, WEIGHTS

__all__ = [
    "ACTIVATIONS",
    "FP8",
    "KV_DTYPES",
    "WEIGHTS",
    "CalibratedTransform",
    "DeterministicLinear",
    "Fp8Linear",
    "GpuQuantizedLinear",
    "GroupedLinear",
    "Int4BlockedLinear",
    "Int8BlockedLinear",
    "Int8GroupedLinear",
    "Int8Linear",
    "RowwiseFp8Linear",
    "Transform",
    "calibrated_for",
    "kv_dtype_for",
    "transform_for",
]

_HOMES = {
    "cpu_int4_linear": ("GroupedLinear", "Int4BlockedLinear", "Int8GroupedLinear"),
    "cpu_int8_linear": ("Int8BlockedLinear", "Int8Linear"),
    "deterministic_linear": ("DeterministicLinear",),
    "fp8_linear": ("Fp8Linear", "RowwiseFp8Linear"),
    "gpu_quantized_linear": ("GpuQuantizedLinear",),
    "transforms": ("FP8", "CalibratedTransform", "Transform", "calibrated_for", "kv_dtype_for", "transform_for"),
    "weight_forms": ("ACTIVATIONS", "KV_DTYPES", "WEIGHTS"),
}

__getattr__ = lazy_names(__name__, _HOMES)
