"""The transform of quantized checkpoints' projections: kept if a kernel multiplies them so, otherwise dequantized."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers import cpu_kernels
from ..layers.float8_reference import FP8
from ..layers.linear_layers import Linear
from ..layers.mixed_format_linear import kinds_of, stacked
from . import cpu_float_linear
from .cpu_float_linear import FloatBlockedLinear
from .cpu_int4_linear import blocked, supports
from .cpu_int8_linear import Int8BlockedLinear
from .device_weight import DeviceWeight
from .fp8_linear import Fp8Linear
from .fused_quantized_weight import FusedQuantizedWeight
from .gpu_quantized_linear import GpuQuantizedLinear, Int8ActivationLinear
from .gpu_weight_packing import has_nan, packing_refusal
from .quantized_weight import QuantizedWeight

Transform = Callable[[str, Linear], Linear]
MIDDLE = 128  # of codes of 8 bits


@dataclass(frozen=True)
class QuantizedLayerCount:
    """Projections that a checkpoint holds quantized.

    by: what computes them.  why: they are not kept so; None: they are.
    """

    count: int
    format: str
    by: str
    why: str | None

    def __str__(self) -> str:
        return (
            f"{self.count} projections of {self.format}: "
            f"{self.by if self.why is None else f'restored to {self.by}: {self.why}'}"
        )


class LayerTransform(ABC):
    """A transform of loaded projections (see `Decoder.load`) that is called for each part of the model too."""

    @abstractmethod
    def __call__(self, name: str, layer: Linear) -> Linear: ...

    @abstractmethod
    def begin(self, model: object, index: int) -> None:
        """Part `index` of a Decoder is loaded, and its projections follow."""

    @abstractmethod
    def end(self, model: object, index: int) -> None:
        """It is sealed."""


class KeepQuantizedTransform(LayerTransform):
    """A transform of loaded projections (see `Decoder.load`): first of quantized ones, then `inner` of dense ones.

    inner: for quantising or for fixed sums; it takes dense weights, so no other weight stays quantized with it.
    """

    def __init__(self, inner: Transform | None = None) -> None:
        self._inner = inner
        self._seen: Counter[tuple[str, str, str | None]] = Counter()

    @property
    def keeps_all(self) -> bool:
        """Whether it does no more than to keep or restore quantized projections."""
        return self._inner is None

    def __call__(self, name: str, layer: Linear) -> Linear:
        codes = layer.coded
        if isinstance(codes, DeviceWeight):
            made = codes.layer(layer)
            self._seen[codes.format, type(made).__name__, None] += 1
            return made
        if codes is not None:
            assert isinstance(codes, FusedQuantizedWeight)
            kept = "the options ask for other arithmetic" if self._inner else keep_quantized(codes, layer)
            if isinstance(kept, Linear):
                self._seen[codes.format, " and ".join(kinds_of(kept)), None] += 1
                return kept
            dtype = layer.weight.dtype
            self._seen[codes.format, dtype_name(dtype), kept] += 1
            layer.weight, layer.coded = codes.dense(dtype) if layer.weight.is_meta else layer.weight, None
        return self._inner(name, layer) if self._inner else layer

    def begin(self, model: object, index: int) -> None:
        if isinstance(self._inner, LayerTransform):
            self._inner.begin(model, index)

    def end(self, model: object, index: int) -> None:
        if isinstance(self._inner, LayerTransform):
            self._inner.end(model, index)

    def layer_counts(self) -> tuple[QuantizedLayerCount, ...]:
        """Each format, with the counts of its projections."""
        return tuple(QuantizedLayerCount(count, *seen) for seen, count in self._seen.items())


def keep_quantized(codes: FusedQuantizedWeight, layer: Linear) -> Linear | str:
    """The projection with its weight as it came, or why not.

    Pieces of different forms become concatenated layers.
    """
    weights, dtype = codes.together(), layer.weight.dtype
    if len(weights) == 1:
        return _kept(weights[0], layer.bias, dtype)
    rows = [weight.shape[0] for weight in weights]
    biases = [None] * len(rows) if layer.bias is None else layer.bias.split(rows)
    kept = [_kept(weight, bias, dtype) for weight, bias in zip(weights, biases, strict=True)]
    why = next((piece for piece in kept if isinstance(piece, str)), None)
    return why or stacked([piece for piece in kept if isinstance(piece, Linear)], rows, layer.weight.shape[1], dtype)


def _kept(weight: QuantizedWeight | Tensor, bias: Tensor | None, dtype: torch.dtype) -> Linear | str:
    if isinstance(weight, Tensor):
        return Linear(weight.clone(), bias).seal()  # what it is a part of can go
    if weight.device.type == "cuda":
        return _on_gpu(weight, bias, dtype)
    if not cpu_kernels.can_compute(dtype, weight.device) or not cpu_kernels.kernels.INT4:
        return f"no kernel on {weight.device.type} multiplies {dtype_name(dtype)} with it"
    if _suits_int8(weight):
        codes = (weight.codes ^ MIDDLE).view(torch.int8)
        return Int8BlockedLinear(codes, _of_outputs(weight), bias, dtype)
    if (why := supports(weight)) is None:
        return blocked(weight, bias, dtype)
    return why if weight.table is None else cpu_float_linear.supports(weight) or FloatBlockedLinear(weight, bias, dtype)


def _on_gpu(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> Linear | str:
    """Float8 with a scale per output has hardware support; the rest is dequantized in registers."""
    if weight.is_float8 and isinstance(kept := _float8(weight, bias, dtype), Linear):
        return kept
    if importlib.util.find_spec("triton") is None:
        return "few bits on a GPU need triton: pip install 'sgl[cuda]'"
    if (why := packing_refusal(weight, dtype)) is not None:
        return why
    return (
        Int8ActivationLinear if weight.rounds_rows and Int8ActivationLinear.supports(weight) else GpuQuantizedLinear
    )(weight, bias, dtype)


def _suits_int8(weight: QuantizedWeight) -> bool:
    """Whether the product that rounds x to 15 bits supports it."""
    plain = weight.levels == 2 * MIDDLE and weight.table is None and weight.offset is None and weight.order is None
    around = not isinstance(weight.zero, Tensor) and weight.zero == MIDDLE
    return plain and around and weight.scale.shape[1] == 1 and weight.shape[1] % 2 == 0 and cpu_kernels.kernels.VNNI > 0


def _of_outputs(weight: QuantizedWeight) -> Tensor:
    """float32 [out], of a weight with one scale an output."""
    scale = weight.scale[:, 0].float()
    return (scale if weight.factor is None else scale * weight.factor).contiguous()


def _float8(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> Linear | str:
    if weight.scale.shape[1] != 1 or weight.offset is not None or weight.order is not None or weight.zero != 0.0:
        return "float8 has a kernel for one scale an output"
    if dtype != torch.bfloat16:
        return f"float8 goes with bfloat16, the model is in {dtype_name(dtype)}"
    bytes_ = weight.codes.view(FP8)
    if not Fp8Linear.supports(bytes_):
        return f"the device's float8 product takes sizes in steps of 16, here {list(weight.shape)}"
    if has_nan(weight.codes):
        return "NaN among its numbers"
    return Fp8Linear(bytes_.contiguous(), _of_outputs(weight), bias)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
