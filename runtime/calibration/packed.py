"""Weights as compressed-tensors keeps them: what `quantization.readers.packed` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..quantization.grouped import Grouped

WORD = 32  # bits


def tensors_of(name: str, weight: Grouped) -> dict[str, Tensor]:
    """The tensors of module `name`, on the CPU. weight: codes of 4 bits with whole zeros, or of 8 around 128 with a scale an output."""
    bits = bits_of(weight)
    found = {
        "weight_packed": in_words(weight.codes, bits),
        "weight_scale": weight.scale.contiguous(),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if isinstance(weight.zero, Tensor):
        found["weight_zero_point"] = in_words(weight.zero.to(torch.uint8).t(), bits).t().contiguous()
    return {f"{name}.{suffix}": tensor.cpu() for suffix, tensor in found.items()}


def bits_of(weight: Grouped) -> int:
    return 4 if weight.levels == 16 else 8


def in_words(codes: Tensor, bits: int) -> Tensor:
    """uint8 [rows, count] -> int32 [rows, words], the first code in the lowest bits. bits: 4 or 8."""
    codes = F.pad(codes, (0, -codes.shape[1] % (WORD // bits)))
    filled = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    return filled.contiguous().view(torch.int32)


def configuration(bits: int, group: int | None, zeros: bool, ignored: Sequence[str]) -> dict[str, Any]:
    """`quantization_config` of config.json. group: None: a scale for each output.  ignored: linear modules that stay as they are."""
    weights = {
        "num_bits": bits, "type": "int", "symmetric": not zeros, "strategy": "group" if group else "channel", "group_size": group,
        "dynamic": False,
    }  # fmt: skip
    of_all = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": of_all}, "ignore": list(ignored), "kv_cache_scheme": None,
    }  # fmt: skip
