"""The kinds of weights that `sgl quantize` writes: how each is rounded, and how compressed-tensors keeps it.

What is written is what `quantization.readers` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..layers.float8_reference import FP8, quantize_weight
from ..quantization.calibration_statistics import InputHessian
from ..quantization.cpu_int4_linear import packed
from ..quantization.fp4_fp8_rounding import BLOCK, float8_blocks, mxfp4, nvfp4
from ..quantization.gptq_rounding import gptq
from ..quantization.quantized_weight import QuantizedWeight
from ..quantization.weight_forms import MX_GROUP, NV_GROUP
from ..quantization.weight_rounding import nearest, round_to_int8
from .compressed_tensors_format import WORD, packed_in_int32

Rounded = Callable[[Tensor, InputHessian | None, torch.dtype], QuantizedWeight]


@dataclass(frozen=True)
class QuantizedLayout:
    """format, weights, activations: as `config_groups` has them.  multiple: of inputs, that a weight has to have.

    rounded: (weight [out, in], what was seen, dtype for scales where any will do) -> what is kept.
    tensors: of that, by what follows the module's name.  by_tensor: rows that are kept together have to be rounded so.
    """

    format: str
    weights: Mapping[str, Any]
    activations: Mapping[str, Any] | None
    multiple: int
    rounded: Rounded
    tensors: Callable[[QuantizedWeight], dict[str, Tensor]]
    calibrated: bool = False
    by_tensor: bool = False


KINDS = ("int4", "int4_gptq", "int8", "fp8", "fp8_block", "nvfp4", "mxfp4")
ROWS_OWN = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
GROUPS_OWN = {
    "num_bits": 8,
    "type": "float",
    "symmetric": True,
    "strategy": "group",
    "group_size": BLOCK,
    "dynamic": True,
}


def quantized_layout_for(kind: str, group: int) -> QuantizedLayout:
    """group: inputs that share a scale, for "int4" and "int4_gptq". Raises ConfigError for kinds that cannot be
    written.
    """
    require_kind(kind)
    made: dict[str, Callable[[], QuantizedLayout]] = {
        "int4": partial(_int4, _nearest, group),
        "int4_gptq": partial(_int4, _gptq, group, calibrated=True),
        "int8": _int8,
        "fp8": _fp8,
        "fp8_block": _fp8_blocks,
        "nvfp4": _nvfp4,
        "mxfp4": _mxfp4,
    }
    return made[kind]()


def require_kind(kind: str) -> None:
    """Raises ConfigError for weights that cannot be written."""
    if kind == "int4_hqq":
        raise ConfigError(
            "weights 'int4_hqq' have zeros that are no whole numbers, compressed-tensors keeps no others; take "
            "'int4_gptq', which loses less"
        )
    if kind not in KINDS:
        raise ConfigError(f"weights {kind!r} cannot be written; take one of {', '.join(KINDS)}")


def _int4(rounding: Callable[..., QuantizedWeight], group: int, calibrated: bool = False) -> QuantizedLayout:
    if group % (WORD // 4):
        raise ConfigError(f"groups of {group} inputs fill no whole words of eight codes; take 32, 64 or 128")
    weights = _weights(4, "int", "group", symmetric=False, group_size=group)
    return QuantizedLayout(
        "pack-quantized", weights, None, group, partial(rounding, group), partial(_words, 4), calibrated
    )


def _nearest(group: int, weight: Tensor, seen: InputHessian | None, scales: torch.dtype) -> QuantizedWeight:
    return nearest(weight, group, scales)


def _gptq(group: int, weight: Tensor, seen: InputHessian | None, scales: torch.dtype) -> QuantizedWeight:
    assert seen is not None
    return gptq(weight, seen.sums, group, ordered=True, scales=scales)


def _int8() -> QuantizedLayout:
    weights = _weights(8, "int", "channel")
    return QuantizedLayout(
        "pack-quantized",
        weights,
        None,
        WORD // 8,
        lambda weight, seen, scales: round_to_int8(weight, scales),
        partial(_words, 8),
    )


def _fp8() -> QuantizedLayout:
    def rounded(weight: Tensor, seen: InputHessian | None, scales: torch.dtype) -> QuantizedWeight:
        codes, scale = quantize_weight(weight)
        return QuantizedWeight.float8(codes, scale[:, None], weight.shape[1])

    return QuantizedLayout("float-quantized", _weights(8, "float", "channel"), ROWS_OWN, 1, rounded, _floats)


def _fp8_blocks() -> QuantizedLayout:
    def tensors(weight: QuantizedWeight) -> dict[str, Tensor]:
        return {**_floats(weight), "weight_scale": weight.scale[::BLOCK].contiguous()}

    weights = _weights(8, "float", "block", block_structure=[BLOCK, BLOCK])
    return QuantizedLayout(
        "float-quantized",
        weights,
        GROUPS_OWN,
        1,
        lambda weight, seen, scales: float8_blocks(weight),
        tensors,
        by_tensor=True,
    )


def _nvfp4() -> QuantizedLayout:
    def tensors(weight: QuantizedWeight) -> dict[str, Tensor]:
        assert weight.factor is not None
        return {
            "weight_packed": packed(weight.codes),
            "weight_scale": weight.scale.to(FP8),
            "weight_global_scale": 1 / weight.factor[:1],
        }

    weights = _weights(4, "float", "tensor_group", group_size=NV_GROUP)
    return QuantizedLayout(
        "nvfp4-pack-quantized", weights, None, NV_GROUP, lambda weight, seen, scales: nvfp4(weight), tensors
    )


def _mxfp4() -> QuantizedLayout:
    def tensors(weight: QuantizedWeight) -> dict[str, Tensor]:
        exponents = weight.scale.float().log2().round_() + 127
        return {"weight_packed": packed(weight.codes), "weight_scale": exponents.to(torch.uint8)}

    weights = _weights(4, "float", "group", group_size=MX_GROUP)
    return QuantizedLayout(
        "mxfp4-pack-quantized", weights, None, MX_GROUP, lambda weight, seen, scales: mxfp4(weight), tensors
    )


def _words(bits: int, weight: QuantizedWeight) -> dict[str, Tensor]:
    """weight: codes of 4 bits with whole zeros, or of 8 around 128 with a scale an output."""
    found = {
        "weight_packed": packed_in_int32(weight.codes, bits),
        "weight_scale": weight.scale.contiguous(),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if isinstance(weight.zero, Tensor):
        found["weight_zero_point"] = packed_in_int32(weight.zero.to(torch.uint8).t(), bits).t().contiguous()
    return found


def _floats(weight: QuantizedWeight) -> dict[str, Tensor]:
    return {"weight": weight.codes.view(FP8).contiguous(), "weight_scale": weight.scale.contiguous()}


def _weights(bits: int, kind: str, strategy: str, *, symmetric: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": None,
        "dynamic": False,
        **more,
    }
