"""Other arithmetic than the model's own: float8 weights and KV, weights of 8 and 4 bits, and products that do not depend on the batch."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Iterable

import torch

from ..errors import ConfigError
from ..layers.float8 import FP8
from ..layers.linear import Linear
from .deterministic import DeterministicLinear, FixedRowsLinear
from .few_bits import FewBitsLinear, FixedFewBitsLinear
from .few_bits_pack import refusal
from .fp8 import Fp8Linear, RowwiseFp8Linear
from .int4 import GroupedLinear, Int4BlockedLinear, in_int4
from .int8 import Int8BlockedLinear, Int8Linear, in_int8
from .rounding import eight_bits, hqq, nearest

__all__ = [
    "FP8", "KV_DTYPES", "WEIGHTS", "FewBitsLinear", "Fp8Linear", "GroupedLinear", "Int4BlockedLinear", "Int8BlockedLinear", "Int8Linear",
    "Transform", "kv_dtype_for", "transform_for",
]  # fmt: skip

Transform = Callable[[str, Linear], Linear]

WEIGHTS = ("auto", "fp8", "fp8_tensor", "int8", "int4", "int4_hqq")  # as loaded; float8 with a scale per output; with one for each weight
WHOLE_NUMBERS = ("int8", "int4", "int4_hqq")
FOUR_BITS = {"int4": nearest, "int4_hqq": hqq}
KV_DTYPES = ("auto", "fp8")  # the model's; float8 with the pool's scales
FP8_CAPABILITY = (8, 9)
WHOLE_DTYPES = (torch.float32, torch.bfloat16)  # float16 has no room for sums of whole numbers
HEAD, PROJECT = "head", "project"  # outside the layers; they stay as they are with float8: their errors would go everywhere


def transform_for(weights: str, deterministic: bool, device: torch.device) -> Transform | None:
    """What becomes of each loaded projection (its name: qkv, output, gate_up or up, down, project, head); None: nothing.

    weights: one of WEIGHTS. Raises ConfigError for a combination that this device cannot compute.
    """
    _check_known("weights", weights, WEIGHTS)
    if weights in WHOLE_NUMBERS:
        return _to_whole_numbers(weights, deterministic, device)
    fp8 = weights != "auto"
    if fp8:
        _check_fp8_device(f"weights={weights!r}", device)
    if device.type == "cuda" and (fp8 or deterministic):
        _check_triton(f"weights={weights!r}" if fp8 else "deterministic=True")
    if not fp8:
        return (_deterministic_on(device)) if deterministic else None
    return _to_fp8(weights == "fp8", deterministic, device)


def kv_dtype_for(kv_dtype: str, dtype: torch.dtype, device: torch.device, attention: str = "auto") -> torch.dtype:
    """The dtype of a KV pool beside a model in `dtype`. kv_dtype: one of KV_DTYPES; attention: the backend asked for.

    Raises ConfigError where that backend or this device cannot read it.
    """
    _check_known("kv_dtype", kv_dtype, KV_DTYPES)
    if kv_dtype == "auto":
        return dtype
    if attention == "cpu":
        raise ConfigError(
            "kv_dtype='fp8' with attention='cpu': the compiled CPU kernels read float32 and bfloat16 only; "
            "take attention='torch_native', or kv_dtype='auto'"
        )
    if attention != "torch_native":
        _check_fp8_device("kv_dtype='fp8'", device)
    return FP8


def _to_fp8(per_output: bool, deterministic: bool, device: torch.device) -> Transform:
    rest = _deterministic_on(device) if deterministic else _unchanged
    kind = RowwiseFp8Linear if deterministic else Fp8Linear

    def transform(name: str, layer: Linear) -> Linear:
        if name in (HEAD, PROJECT) or not kind.suits(layer.weight):
            return rest(name, layer)
        _check_fp8_dtype(layer.weight)
        quantized = kind.of(layer, per_output)
        return FixedRowsLinear(quantized) if deterministic and device.type == "cpu" else quantized

    return transform


def _to_whole_numbers(weights: str, deterministic: bool, device: torch.device) -> Transform:
    if device.type == "cuda":
        return _to_few_bits(weights, deterministic)
    if device.type != "cpu":
        raise ConfigError(f"weights={weights!r} is for the CPU and CUDA, here: {device}; take weights='auto'")

    def transform(name: str, layer: Linear) -> Linear:
        if layer.weight.dtype not in WHOLE_DTYPES:
            raise ConfigError(f"weights={weights!r} goes with float32 and bfloat16, the model is in {layer.weight.dtype}: set dtype")
        quantized = _in_whole_numbers(weights, name, layer)
        return FixedRowsLinear(quantized) if deterministic and isinstance(quantized, Int8Linear | GroupedLinear) else quantized

    return transform


def _to_few_bits(weights: str, deterministic: bool) -> Transform:
    """On a GPU."""
    _check_triton(f"weights={weights!r}")
    kind = FixedFewBitsLinear if deterministic else FewBitsLinear

    def transform(name: str, layer: Linear) -> Linear:
        eight = weights == "int8" or name in (HEAD, PROJECT)
        weight = eight_bits(layer.weight) if eight else FOUR_BITS[weights](layer.weight)
        if (why := refusal(weight, layer.weight.dtype)) is not None:
            raise ConfigError(f"weights={weights!r}: {why}; set dtype='bfloat16', or weights='auto'")
        return kind(weight, layer.bias, layer.weight.dtype)

    return transform


def _in_whole_numbers(weights: str, name: str, layer: Linear) -> Linear:
    """What lies outside the layers keeps 8 bits: four there cost two thirds of what they cost in all layers together."""
    if weights == "int8" or name in (HEAD, PROJECT):
        return in_int8(layer)
    return in_int4(FOUR_BITS[weights](layer.weight), layer.bias, layer.weight.dtype)


def _deterministic_on(device: torch.device) -> Transform:
    return _one_kernel if device.type == "cuda" else _fixed_rows


def _one_kernel(name: str, layer: Linear) -> Linear:
    return DeterministicLinear(layer.weight, layer.bias)


def _fixed_rows(name: str, layer: Linear) -> Linear:
    return FixedRowsLinear(layer if name == HEAD else layer.seal(False))  # a tied head would be copied


def _unchanged(name: str, layer: Linear) -> Linear:
    return layer


def _check_known(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(known)}"
        raise ConfigError(f"Engine({option}={value!r}): there is no such kind; {hint}")


def _check_fp8_device(what: str, device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        raise ConfigError(
            f"{what} needs a GPU with compute capability 8.9 or higher, {torch.cuda.get_device_name(device)} has "
            f"{'.'.join(map(str, torch.cuda.get_device_capability(device)))}: leave it at 'auto'"
        )


def _check_fp8_dtype(weight: torch.Tensor) -> None:
    if weight.is_cuda and weight.dtype != torch.bfloat16:
        raise ConfigError(
            f"float8 weights go with dtype='bfloat16' on a GPU, the model is in {weight.dtype}: set dtype='bfloat16', or weights='auto'"
        )


def _check_triton(what: str) -> None:
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(f"{what} on a GPU needs triton: pip install 'sgl[cuda]'")
