"""Writes small GGUF files, value by value, so that a test can also write what no file should hold."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sgl.grammars.tokens.packed_arrays import PackedNumbers, PackedTexts
from sgl.runtime.quantization.readers.gguf_block_kinds import BLOCKS

FLOATS = {"F32": 0, "F16": 1, "BF16": 30}
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FINITE = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}  # where float16 numbers lie


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
    return {bool: 7, int: 4, float: 6, str: 8, bytes: 8, list: 9, PackedNumbers: 9, PackedTexts: 9}[type(value)]


def value_bytes(value: Any) -> bytes:
    kind = kind_of(value)
    value = value.value if isinstance(value, Value) else value
    if kind == 8:
        return text(value)
    if kind == 9:
        inner = kind_of(value[0]) if value else 4
        return struct.pack("<IQ", inner, len(value)) + b"".join(
            value_bytes(Value(inner, getattr(item, "value", item))) for item in value
        )
    return struct.pack("<" + FORMATS[kind], value)


def packed(tensor: torch.Tensor, kind: str = "F32") -> Packed:
    """A float tensor as F32, F16, BF16, Q8_0 (the nearest of its numbers), Q4_K or Q6_K (near ones)."""
    shape = tuple(tensor.shape)
    if kind in QUANTISERS:
        return Packed(kind, shape, QUANTISERS[kind](tensor))
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    return Packed(kind, shape, tensor.to(dtype).contiguous().view(torch.uint8).numpy().tobytes())


def q8_0(tensor: torch.Tensor) -> bytes:
    blocks = tensor.float().reshape(-1, 32)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half()
    codes = (blocks / scale.float().clamp_min(1e-12)).round().clamp(-127, 127).to(torch.int8)
    return np.concatenate([scale.numpy().view(np.uint8), codes.numpy().view(np.uint8)], 1).tobytes()


def q4_k(tensor: torch.Tensor) -> bytes:
    """Eight groups of 32 in a block, with scales and minimums of six bits."""
    groups = tensor.float().reshape(-1, 8, 32)
    low = groups.amin(2).clamp_max(0)
    d, scales = _steps((groups.amax(2).clamp_min(0) - low) / 15)
    least, minimums = _steps(-low)
    codes = (
        ((groups + (least * minimums)[..., None]) / (d * scales).clamp_min(1e-12)[..., None])
        .round()
        .clamp(0, 15)
        .byte()
    )
    s, m = scales.byte(), minimums.byte()
    both = [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4]
    return _together(_bytes(d), _bytes(least), *both, (codes[:, ::2] | codes[:, 1::2] << 4).flatten(1))


def q6_k(tensor: torch.Tensor) -> bytes:
    """Sixteen groups of 16 in a block, around 32, with scales of eight bits."""
    groups = tensor.float().reshape(-1, 16, 16)
    d, scales = _steps(groups.abs().amax(2) / 31, 127)
    codes = ((groups / (d * scales).clamp_min(1e-12)[..., None]).round() + 32).clamp(0, 63).byte().reshape(-1, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    lows = torch.cat((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), 2)
    highs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return _together(lows.flatten(1), highs.flatten(1), scales.byte(), _bytes(d))


def _steps(numbers: torch.Tensor, most: int = 63) -> tuple[torch.Tensor, torch.Tensor]:
    """A step for each row [rows, 1], a number of float16, and how many of them make the others."""
    step = (numbers.amax(1, keepdim=True) / most).clamp_min(1e-7).half().float()
    return step, (numbers / step).round().clamp(0, most)


def _bytes(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.half().view(torch.uint8)


def _together(*parts: torch.Tensor) -> bytes:
    return torch.cat(parts, 1).numpy().tobytes()


QUANTISERS = {"Q8_0": q8_0, "Q4_K": q4_k, "Q6_K": q6_k}


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, Packed], version: int = 3, alignment: int = 32
) -> bytes:
    keys = b"".join(
        text(name) + struct.pack("<I", kind_of(value)) + value_bytes(value) for name, value in metadata.items()
    )
    entries, data = b"", b""
    for name, tensor in tensors.items():
        number = FLOATS.get(tensor.kind, BLOCKS[tensor.kind].id if tensor.kind in BLOCKS else 0)
        entries += text(name) + struct.pack(
            f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape[::-1], number, len(data)
        )
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
            raw[start + place : start + place + 2] = struct.pack(
                "<e", rng.choice([0.0, rng.uniform(-2, 2), rng.uniform(-1e-5, 1e-5)])
            )
        if kind == "MXFP4":
            raw[start] %= 250  # 255 is no number, and its neighbours overflow
        if kind == "NVFP4":
            raw[start : start + 4] = bytes(byte & 127 for byte in raw[start : start + 4])
    return torch.frombuffer(raw, dtype=torch.uint8).view(outputs, -1)
