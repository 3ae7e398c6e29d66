"""Which transform brings a loaded projection into the form that options ask for."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError
from ..layers.float8_reference import FP8
from ..layers.linear_layers import BlockedLinear, Linear
from .calibration_statistics import InputHessian, InputMagnitudes, InputStatistics
from .cpu_int4_linear import GroupedLinear
from .cpu_int8_linear import Int8Linear, int8_linear
from .deterministic_linear import DeterministicLinear, FixedBatchLinear
from .fp8_linear import Fp8Linear, RowwiseFp8Linear, StaticFp8Linear
from .online_quantization import requantized
from .weight_forms import ACTIVATIONS, CALIBRATED, FORMS, FP8_BLOCK, KV_DTYPES, WEIGHTS

Transform = Callable[[str, Linear], Linear]

FP8_CAPABILITY = (8, 9)
WHOLE_DTYPES = (torch.float32, torch.bfloat16)  # float16 has too small a range for integer sums
EXACT = (
    "router",
    "switch",
    "rates",
    "spread",
    "steps",
)  # the router stays in float32, decay inputs of states as they are stored
HEAD = "head"
OUTSIDE = (HEAD, "project")
"""Outside the layers weights stay as they are with float8: errors would go everywhere. With 4-bit weights they have
eight: four there cost two thirds of what they cost in all layers together.
"""


class CalibratedTransform(NamedTuple):
    """seen: what must be known of a projection's input; quantise: (name, loaded layer, that) -> the layer to compute
    with.

    For projections outside the layers nothing is known (None).
    """

    seen: type[InputStatistics]
    quantise: Callable[[str, Linear, Any], Linear]


def transform_for(weights: str, deterministic: bool, device: torch.device) -> Transform | None:
    """The transform of each loaded projection (its name: qkv, output, gate_up or up, down, router, ...); None: none.

    Further names: switch, input, rates, project, head. weights: one of WEIGHTS, except those of `calibrated_for`.
    Raises ConfigError for a combination that this device cannot compute.
    """
    _check_known("weights", weights, WEIGHTS)
    if weights == "auto":
        if device.type == "cuda" and deterministic:
            _check_triton("deterministic=True")
        return _deterministic_on(device) if deterministic else None
    if weights in CALIBRATED:
        raise ConfigError(f"weights={weights!r} needs texts to calibrate by: Engine(calibration=...)")
    return (
        _to_quantized(weights, deterministic, device) if weights in FORMS else _to_fp8(weights, deterministic, device)
    )


def calibrated_for(
    weights: str, activations: str, deterministic: bool, device: torch.device
) -> CalibratedTransform | None:
    """The same for forms that depend on activations; None: none. activations: one of ACTIVATIONS.

    Raises ConfigError for what this device cannot compute.
    """
    _check_known("activations", activations, ACTIVATIONS)
    if weights in CALIBRATED:
        return CalibratedTransform(InputHessian, _to_quantized(weights, deterministic, device))
    percent = ACTIVATIONS[activations]
    return (
        None
        if percent is None
        else CalibratedTransform(InputMagnitudes, _to_static_fp8(weights, percent, deterministic, device))
    )


def kv_dtype_for(kv_dtype: str, dtype: torch.dtype, device: torch.device, attention: str = "auto") -> torch.dtype:
    """The dtype of a KV pool for a model in `dtype`. kv_dtype: one of KV_DTYPES; attention: the requested backend.

    Raises ConfigError if that backend or this device cannot read it.
    """
    _check_known("kv_dtype", kv_dtype, KV_DTYPES)
    if kv_dtype == "auto":
        return dtype
    if attention != "torch_native":
        _check_fp8_device("kv_dtype='fp8'", device)
    return FP8


def _to_fp8(weights: str, deterministic: bool, device: torch.device) -> Transform:
    _check_fp8(weights, device)
    rest = _deterministic_on(device) if deterministic else _unchanged
    kind = RowwiseFp8Linear if deterministic else Fp8Linear

    def transform(name: str, layer: Linear) -> Linear:
        if name in (*OUTSIDE, *EXACT) or not kind.supports(layer.weight):
            return rest(name, layer)
        _check_fp8_dtype(layer.weight)
        quantized = kind.of(layer, weights == "fp8")
        return FixedBatchLinear(quantized) if deterministic and device.type == "cpu" else quantized

    return transform


def _to_static_fp8(
    weights: str, percent: float, deterministic: bool, device: torch.device
) -> Callable[[str, Linear, Any], Linear]:
    if weights not in ("fp8", "fp8_tensor") or deterministic:
        asked = (
            "deterministic=True, whose products leave activations as they are"
            if deterministic
            else f"weights={weights!r}"
        )
        raise ConfigError(
            f"scales of activations that are found by a calibration go with weights='fp8', not with {asked}: take "
            "activations='dynamic'"
        )
    transform = _to_fp8(weights, False, device)

    def quantise(name: str, layer: Linear, seen: InputMagnitudes | None) -> Linear:
        found = transform(name, layer)
        return (
            StaticFp8Linear.of_range(found, seen.percentile(percent))
            if seen and isinstance(found, Fp8Linear)
            else found
        )

    return quantise


def _to_quantized(weights: str, deterministic: bool, device: torch.device) -> Callable[..., Linear]:
    """(name, layer, and for calibrated forms the statistics)"""
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"weights={weights!r} is for the CPU and CUDA, here: {device}; take weights='auto'")
    return (
        _quantized_on_gpu(weights, deterministic)
        if device.type == "cuda"
        else _quantized_on_cpu(weights, deterministic)
    )


def _quantized_on_cpu(weights: str, deterministic: bool) -> Callable[..., Linear]:
    whole = weights != FP8_BLOCK
    rest = _fixed_rows if deterministic else _unchanged

    def quantise(name: str, layer: Linear, seen: InputStatistics | None = None) -> Linear:
        if name in EXACT:
            return rest(name, layer)
        if whole and layer.weight.dtype not in WHOLE_DTYPES:
            raise ConfigError(
                f"weights={weights!r} goes with float32 and bfloat16, the model is in {layer.weight.dtype}: set dtype"
            )
        if name in OUTSIDE and not whole:
            return rest(name, layer)
        quantized = int8_linear(layer) if name in OUTSIDE or weights == "int8" else requantized(weights, layer, seen)
        return (
            FixedBatchLinear(quantized)
            if deterministic and isinstance(quantized, Int8Linear | GroupedLinear)
            else quantized
        )

    return quantise


def _quantized_on_gpu(weights: str, deterministic: bool) -> Callable[..., Linear]:
    _check_triton(f"weights={weights!r}")
    rest = _one_kernel if deterministic else _unchanged

    def quantise(name: str, layer: Linear, seen: InputStatistics | None = None) -> Linear:
        if name in EXACT:
            return rest(name, layer)
        if name in OUTSIDE:
            return rest(name, layer) if weights == FP8_BLOCK else requantized("int8", layer, fixed=deterministic)
        return requantized(weights, layer, seen, deterministic)

    return quantise


def _deterministic_on(device: torch.device) -> Transform:
    return _one_kernel if device.type == "cuda" else _fixed_rows


def _one_kernel(name: str, layer: Linear) -> Linear:
    return DeterministicLinear(layer.weight, layer.bias)


def _fixed_rows(name: str, layer: Linear) -> Linear:
    """A product whose rows do not depend on each other stays as it is."""
    if BlockedLinear.supports(layer.weight):
        return layer
    return FixedBatchLinear(layer if name == HEAD else layer.seal())  # a tied head would be copied


def _unchanged(name: str, layer: Linear) -> Linear:
    return layer


def _check_known(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(known)}"
        raise ConfigError(f"Engine({option}={value!r}): there is no such kind; {hint}")


def _check_fp8(weights: str, device: torch.device) -> None:
    _check_fp8_device(f"weights={weights!r}", device)
    if device.type == "cuda":
        _check_triton(f"weights={weights!r}")


def _check_fp8_device(what: str, device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        raise ConfigError(
            f"{what} needs a GPU with compute capability 8.9 or higher, {torch.cuda.get_device_name(device)} has "
            f"{'.'.join(map(str, torch.cuda.get_device_capability(device)))}: leave it at 'auto'"
        )


def _check_fp8_dtype(weight: torch.Tensor) -> None:
    if weight.is_cuda and weight.dtype != torch.bfloat16:
        raise ConfigError(
            f"float8 weights go with dtype='bfloat16' on a GPU, the model is in {weight.dtype}: set "
            "dtype='bfloat16', or weights='auto'"
        )


def _check_triton(what: str) -> None:
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(f"{what} on a GPU needs triton: pip install 'sgl[cuda]'")
