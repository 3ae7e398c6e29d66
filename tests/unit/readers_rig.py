"""Tensors of quantised modules, as files have them, through the readers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sgl.runtime.errors import CheckpointError
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.readers import TensorHeader, WeightReader, WeightReaders
from sgl.runtime.quantization.readers.weight_readers import NOTHING

NAME = "model.layers.0.self_attn.q_proj"
DTYPES = {
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
}

Tensors = dict[str, Tensor]
Config = dict[str, Any] | None


def headers(tensors: Tensors) -> dict[str, TensorHeader]:
    return {name: TensorHeader(DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


def claimed(config: Config, tensors: Tensors, name: str = NAME, told: Mapping[str, Any] = NOTHING) -> WeightReader:
    """told: what the file says beside its tensors."""
    found = WeightReaders.of(config, "config.json").with_metadata(told).claim(name, headers(tensors))
    assert found is not None
    return found


def read(config: Config, tensors: Tensors, name: str = NAME, told: Mapping[str, Any] = NOTHING) -> QuantizedWeight:
    """What the claim reads of the tensors that it names, and of no other."""
    claim = claimed(config, tensors, name, told)
    found = claim.read({name: tensors[name] for name in claim.names})
    assert claim.shape in (found.shape, (1, found.codes.numel())) and not set(claim.names) & set(claim.unused)
    return found


def damaged(rng: random.Random, tensors: Tensors) -> Tensors:
    """One or two tensors of another shape, dtype or content, missing, or too many."""
    found = dict(tensors)
    for _ in range(rng.randint(1, 2)):
        name = rng.choice(list(found) or ["weight"])
        kind = rng.randrange(5)
        if kind == 0:
            found.pop(name, None)
        elif kind == 1:
            found[rng.choice(["weight", "weight_scale", "qzeros", "g_idx", "extra", "weight.absmax"])] = torch.ones(
                rng.randint(0, 3), 4
            )
        elif kind == 2 and name in found:
            shape = [max(0, size + rng.choice([-1, 0, 1, size])) for size in found[name].shape] + [1] * rng.choice(
                [0, 0, 1]
            )
            found[name] = torch.zeros(shape[: rng.randint(0, 3)]).to(found[name].dtype)
        elif kind == 3 and name in found:
            found[name] = found[name].float().to(rng.choice(list(DTYPES)))
        elif name in found and found[name].numel():
            raw = found[name].flatten().contiguous().view(torch.uint8).clone()
            raw[rng.randrange(len(raw))] = rng.randrange(256)
            found[name] = raw.view(found[name].dtype).view(found[name].shape)
    return found


def read_or_refused(rng: random.Random, samples: Iterable[tuple[WeightReaders, Tensors]]) -> None:
    """Good modules, each damaged: some are read all the same, to codes that can be;
    the others are refused by the tensor's name.
    """
    count = 0
    for readers, good in samples:
        tensors = damaged(rng, good)
        try:
            claim = readers.claim(NAME, headers(tensors))
            found = None if claim is None else claim.read({name: tensors[name] for name in claim.names})
        except CheckpointError as error:
            assert str(error).startswith(NAME + ".") and len(str(error)) < 500
            continue
        if found is not None and claim is not None:
            count += 1
            assert claim.shape in (found.shape, (1, found.codes.numel())) and found.dense().shape == found.shape
            assert int(found.codes.max()) < found.levels or found.table is None
    assert count > 10
