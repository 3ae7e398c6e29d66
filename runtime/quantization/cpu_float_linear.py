"""Projections on the CPU whose codes are small floats: 16 of a table, as in NF4, or float8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers import cpu_kernels
from ..layers.linear_layers import BlockedLinear, Linear
from ..layers.weight_memory import LINE, empty_weight
from .cpu_int4_linear import CpuWeightBlocks, factor_of, packed
from .quantized_weight import QuantizedWeight, e4m3_values

KINDS = {torch.float32: 6, torch.bfloat16: 7}  # of the compiled product, by what is multiplied
RAISED = 2.0**8  # what a float8 is above a float16 with its bits
NAN = 127  # the byte of a float8, but for its sign


def supports(weight: QuantizedWeight) -> str | None:
    """Why the compiled product of floats does not support it, for people.

    None: it does, exactly except for float32's rounding.
    """
    if weight.table is None or (
        weight.levels == 256 and not torch.equal(weight.table.cpu().nan_to_num(0.0), e4m3_values().nan_to_num(0.0))
    ):
        return f"codes of {weight.levels} levels that are no floats of a table of 16, nor float8"
    if weight.offset is not None or isinstance(weight.zero, Tensor) or weight.zero != 0.0:
        return "floats with zeros or offsets"
    if weight.group % 2 and weight.group < weight.shape[1]:
        return f"groups of {weight.group} inputs; the compiled product of floats takes even ones, and whole rows"
    if weight.is_float8 and bool(((weight.codes & NAN) == NAN).any()):
        return "it holds numbers that are not there (NaN)"
    return None


class SmallFloatLayout(NamedTuple):
    """The contents of a weight's blocks.

    bits: of a code.  group: inputs that share a scale.  halves: scales are float16.
    """

    bits: int
    group: int
    halves: int

    def groups(self, inputs: int) -> int:
        return -(-inputs // self.group)

    def start(self, inputs: int) -> int:
        """Bytes of a block before its codes."""
        return -(-self.groups(inputs) * cpu_kernels.BLOCK * (2 if self.halves else 4) // LINE) * LINE

    def stride(self, inputs: int) -> int:
        """Bytes of a block."""
        return self.start(inputs) + (inputs + inputs % 2) * cpu_kernels.BLOCK * self.bits // 8

    def words(self, inputs: int) -> list[int]:
        """The struct Grouping after its pointers."""
        group = self.group if self.group < inputs else inputs + inputs % 2
        places = self.start(inputs), self.stride(inputs)
        return [self.bits, group, group, self.halves, 0, 0, 0, self.groups(inputs), 0, 0, 0, *places]


class FloatBlockedLinear(BlockedLinear):
    """y = x W^T + b by the compiled product (csrc/quantized/small_float_gemm.c): x as it is, float32 sums in one order.

    A row's bits are the same in any batch.
    """

    __slots__ = ("_grouping", "factor", "layout", "order", "table")

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        """weight: one that `supports`; dtype: of what is multiplied, and of bias [out]."""
        if (why := supports(weight)) is not None:
            raise ValueError(f"{why}: take GroupedLinear")
        scale = scales_of(weight)
        layout = SmallFloatLayout(8 if weight.is_float8 else 4, weight.group, int(scale.dtype == torch.float16))
        blocks = CpuWeightBlocks(
            _blocks(weight, scale, layout.start(weight.shape[1])),
            None if weight.order is None else weight.order.to(torch.int32),
            None if weight.is_float8 or weight.table is None else weight.table.float().contiguous(),
            factor_of(weight),
        )
        self._take(blocks, layout, weight.shape, bias, dtype)

    @classmethod
    def of_blocks(
        cls,
        blocks: CpuWeightBlocks,
        layout: SmallFloatLayout,
        shape: tuple[int, int],
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Self:
        """What a layer with shape [out, in] was made of."""
        layer = cls.__new__(cls)
        layer._take(blocks, layout, shape, bias, dtype)
        return layer

    def _take(
        self,
        blocks: CpuWeightBlocks,
        layout: SmallFloatLayout,
        shape: tuple[int, int],
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        Linear.__init__(self, blocks.blocks, None if bias is None else bias.contiguous())
        self.order, self.table, self.factor = blocks[1:]
        self.layout = layout
        places = [0 if part is None else part.data_ptr() for part in blocks[1:]]
        self._grouping = np.array([*places, *layout.words(shape[1])], np.int64)
        self._write_struct(KINDS[dtype], *shape, self._grouping.ctypes.data)

    def tensors(self) -> Iterator[Tensor]:
        yield from (part for part in (self.weight, self.bias, self.order, self.table, self.factor) if part is not None)


def scales_of(weight: QuantizedWeight) -> Tensor:
    """[out, groups], float16 if that holds them."""
    scale = weight.scale.float() * (RAISED if weight.is_float8 else 1)
    halves = scale.half()
    return halves if bool((halves.float() == scale).all()) else scale


def _blocks(weight: QuantizedWeight, scale: Tensor, start: int) -> Tensor:
    """uint8 [blocks, stride], codes from byte `start` on."""
    (outputs, inputs), codes = weight.shape, weight.codes
    codes = F.pad(codes, (0, inputs % 2)) if weight.is_float8 else packed(codes)
    stride = start + codes.shape[1] * cpu_kernels.BLOCK
    blocks = empty_weight((-(-outputs // cpu_kernels.BLOCK), stride), torch.uint8)
    cpu_kernels.pack_rows(scale, blocks.data_ptr(), stride, scale.itemsize)
    cpu_kernels.pack_rows(codes, blocks.data_ptr() + start, stride, 1)
    blocks[:, scale.shape[1] * scale.itemsize * cpu_kernels.BLOCK : start] = 0
    return blocks
