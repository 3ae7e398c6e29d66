"""Writes small GGUF files, value by value, so that a test can also write what no file should hold."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sgl.runtime.quantization.readers.gguf_blocks import BLOCKS

FLOATS = {"F32": 0, "F16": 1, "BF16": 30}
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FINITE = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}  # where float16 numbers lie


class Value(NamedTuple):
    """A value with its type as the file numbers it, where Python's type does not say enough."""

    kind: int
    value: Any


class Packed(NamedTuple):
    """A tensor as it lies in the file. shape: [out, in]."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def kind_of(value: Any) -> int:
    if isinstance(value, Value):
        return value.kind
    return {bool: 7, int: 4, float: 6, str: 8, bytes: 8, list: 9}[type(value)]


def value_bytes(value: Any) -> bytes:
    kind = kind_of(value)
    value = value.value if isinstance(value, Value) else value
    if kind == 8:
        return text(value)
    if kind == 9:
        inner = kind_of(value[0]) if value else 4
        return struct.pack("<IQ", inner, len(value)) + b"".join(value_bytes(Value(inner, getattr(item, "value", item))) for item in value)
    return struct.pack("<" + FORMATS[kind], value)


def packed(tensor: torch.Tensor, kind: str = "F32") -> Packed:
    """A float tensor as F32, F16, BF16 or Q8_0 (the nearest of its numbers)."""
    shape = tuple(tensor.shape)
    if kind == "Q8_0":
        return Packed(kind, shape, q8_0(tensor))
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    return Packed(kind, shape, tensor.to(dtype).contiguous().view(torch.uint8).numpy().tobytes())


def q8_0(tensor: torch.Tensor) -> bytes:
    blocks = tensor.float().reshape(-1, 32)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half()
    codes = (blocks / scale.float().clamp_min(1e-12)).round().clamp(-127, 127).to(torch.int8)
    return np.concatenate([scale.numpy().view(np.uint8), codes.numpy().view(np.uint8)], 1).tobytes()


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Packed], version: int = 3, alignment: int = 32) -> bytes:
    keys = b"".join(text(name) + struct.pack("<I", kind_of(value)) + value_bytes(value) for name, value in metadata.items())
    entries, data = b"", b""
    for name, tensor in tensors.items():
        number = FLOATS.get(tensor.kind, BLOCKS[tensor.kind].id if tensor.kind in BLOCKS else 0)
        entries += text(name) + struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape[::-1], number, len(data))
        data += tensor.data + bytes(-len(tensor.data) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + keys + entries
    return head + bytes(-len(head) % alignment) + data


def write_gguf(file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Packed], **options: Any) -> Path:
    file.write_bytes(gguf_bytes(metadata, tensors, **options))
    return file


def random_blocks(kind: str, outputs: int, count: int, seed: int) -> torch.Tensor:
    """uint8 [outputs, bytes of `count` blocks]: any codes, scales that are numbers."""
    rng, block = random.Random(seed), BLOCKS[kind]
    raw = bytearray(rng.randbytes(outputs * count * block.bytes))
    for start in range(0, len(raw), block.bytes):
        for place in () if kind.endswith("FP4") else FINITE.get(kind, (0,)):
            raw[start + place : start + place + 2] = struct.pack("<e", rng.choice([0.0, rng.uniform(-2, 2), rng.uniform(-1e-5, 1e-5)]))
        if kind == "MXFP4":
            raw[start] %= 250  # 255 is no number, and its neighbours overflow
        if kind == "NVFP4":
            raw[start : start + 4] = bytes(byte & 127 for byte in raw[start : start + 4])
    return torch.frombuffer(raw, dtype=torch.uint8).view(outputs, -1)
