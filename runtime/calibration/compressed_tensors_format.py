"""Codes in words, and the configuration of a checkpoint, as compressed-tensors has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WORD = 32  # bits


def packed_in_int32(codes: Tensor, bits: int) -> Tensor:
    """uint8 [rows, count] -> int32 [rows, words], the first code in the lowest bits. bits: 4 or 8."""
    codes = F.pad(codes, (0, -codes.shape[1] % (WORD // bits)))
    filled = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    return (
        filled.reshape(-1).view(torch.int32).view(len(filled), -1)
    )  # of one row contiguous() leaves strides that view refuses


def configuration(
    form: str, weights: Mapping[str, Any], activations: Mapping[str, Any] | None, ignored: Sequence[str]
) -> dict[str, Any]:
    """`quantization_config` of config.json. ignored: linear modules that stay as they are."""
    of_all = {
        "targets": ["Linear"],
        "weights": dict(weights),
        "input_activations": activations and dict(activations),
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": of_all},
        "ignore": list(ignored),
        "kv_cache_scheme": None,
    }
