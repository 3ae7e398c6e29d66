"""bitsandbytes' four bits: a table of 16 numbers, and a scale for each block of the flattened weight."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .bit_unpacking import nibbles
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

BYTES = {"U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4}  # of the dtypes that the codes may be stored under
LONGEST_STATE = 4096  # bytes of JSON
LEAST = 8  # inputs in a group; blocks that cross rows make smaller ones
ABSMAX, TABLE = "weight.absmax", "weight.quant_map"
NESTED = "weight.nested_absmax", "weight.nested_quant_map"


def claim(module: QuantizedModule, state: str) -> WeightReader:
    """w = table[q] * absmax[block]. The sizes and the length of a block are in JSON, in a tensor."""
    count = 2 * math.prod(module.expect("weight", tuple(BYTES))) * BYTES[module.dtype("weight")]
    blocks = module.vector(ABSMAX, ("U8", *FLOATS))
    module.expect(TABLE, FLOATS, (16,))
    length = module.vector(state, ("U8",))
    if length > LONGEST_STATE or not 0 < blocks <= count:
        raise module.wrong(
            state if length > LONGEST_STATE else ABSMAX,
            f"goes with no weight of {count} numbers; convert the checkpoint again",
        )
    nested = module.dtype(ABSMAX) == "U8"
    if nested:
        module.vector(NESTED[0], FLOATS)
        module.expect(NESTED[1], FLOATS, (256,))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        quant_state = BitsAndBytesState(module, state, tensors[state])
        codes = nibbles(tensors["weight"].contiguous().view(-1).view(torch.uint8), high_first=True)
        absmax = _restored(quant_state, tensors) if nested else tensors[ABSMAX]
        shape = quant_state.shape(count)
        group, scale = _by_rows(quant_state, absmax, shape)
        return QuantizedWeight(codes.view(shape), scale, group, table=tensors[TABLE].float())

    names = ("weight", ABSMAX, TABLE, state, *(NESTED if nested else ()))
    return module.claim(
        f"bitsandbytes, {state.rpartition('__')[2]}{', nested scales' if nested else ''}", (1, count), names, read
    )


class BitsAndBytesState:
    """The JSON of a weight."""

    def __init__(self, module: QuantizedModule, name: str, content: Tensor) -> None:
        self.module, self.name = module, name
        try:
            self.keys = json.loads(bytes(content.tolist()))
        except (ValueError, RecursionError) as error:
            raise module.wrong(name, f"is no JSON ({error!r:.60}); convert the checkpoint again") from None
        if not isinstance(self.keys, dict):
            raise self.wrong("", self.keys)

    def wrong(self, key: str, value: object) -> Exception:
        return self.module.wrong(self.name, f"says {key} {value!r:.60}, which cannot be; convert the checkpoint again")

    def size(self, key: str, blocks: int, count: int) -> int:
        """The length of the blocks that so many numbers are cut in."""
        value = self.keys.get(key)
        if not isinstance(value, int) or value < 1 or -(-count // value) != blocks:
            raise self.wrong(key, value)
        return value

    def shape(self, count: int) -> tuple[int, int]:
        value: Any = self.keys.get("shape")
        whole = (
            isinstance(value, list) and len(value) == 2 and all(isinstance(size, int) and size > 0 for size in value)
        )
        if not whole or value[0] * value[1] != count:
            raise self.wrong("shape", value)
        return value[0], value[1]

    def offset(self) -> float:
        value = self.keys.get("nested_offset")
        if not isinstance(value, int | float):
            raise self.wrong("nested_offset", value)
        return float(value)


def _restored(quant_state: BitsAndBytesState, tensors: Mapping[str, Tensor]) -> Tensor:
    """Scales that are codes under a separate table, with a scale for each block of them."""
    codes, outer = tensors[ABSMAX], tensors[NESTED[0]].float()
    length = quant_state.size("nested_blocksize", len(outer), len(codes))
    each = outer.repeat_interleave(length)[: len(codes)]
    return tensors[NESTED[1]].float()[codes.int()] * each + quant_state.offset()


def _by_rows(quant_state: BitsAndBytesState, absmax: Tensor, shape: tuple[int, int]) -> tuple[int, Tensor]:
    """Blocks run over the ends of rows: the group size divides both."""
    out, inputs = shape
    length = quant_state.size("blocksize", len(absmax), out * inputs)
    group = math.gcd(inputs, length)
    if group < LEAST:
        raise quant_state.module.wrong(
            "weight",
            f"has rows of {inputs} in blocks of {length}, which cut them in groups of {group}: too small; take "
            "another checkpoint",
        )
    starts = torch.arange(0, out * inputs, group, device=absmax.device)
    return group, absmax[starts // length].view(out, -1)
