"""Tensors of quantised modules, as files have them, through the readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgl.runtime.quantization.grouped import Grouped
from sgl.runtime.quantization.readers import Claim, Readers, Sibling
from sgl.runtime.quantization.readers.readers import NOTHING

NAME = "model.layers.0.self_attn.q_proj"
DTYPES = {
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0", torch.float32: "F32", torch.float64: "F64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.int64: "I64", torch.bool: "BOOL",
}  # fmt: skip

Tensors = dict[str, Tensor]
Config = dict[str, Any] | None


def headers(tensors: Tensors) -> dict[str, Sibling]:
    return {name: Sibling(DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


def claimed(config: Config, tensors: Tensors, name: str = NAME, told: Mapping[str, Any] = NOTHING) -> Claim:
    """told: what the file says beside its tensors."""
    found = Readers.of(config, "config.json").told(told).claim(name, headers(tensors))
    assert found is not None
    return found


def read(config: Config, tensors: Tensors, name: str = NAME, told: Mapping[str, Any] = NOTHING) -> Grouped:
    """What the claim reads of the tensors that it names, and of no other."""
    claim = claimed(config, tensors, name, told)
    found = claim.read({name: tensors[name] for name in claim.names})
    assert claim.shape in (found.shape, (1, found.codes.numel())) and not set(claim.names) & set(claim.unused)
    return found
