"""Projections on the CPU with 4-bit or 8-bit weights and scales of groups.

Four bits are an eighth of float32's bytes to read and to store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers import cpu_kernels
from ..layers.linear_layers import BlockedLinear, Linear
from ..layers.weight_memory import LINE, empty_weight
from .quantized_weight import DoubleQuantized, QuantizedWeight
from .stored_codes import stored

KINDS = {torch.float32: 4, torch.bfloat16: 5}  # of the compiled product, by what is multiplied
LEVELS, LEVELS_OF_BYTES = 16, 256
MIDDLE = 128  # the offset of unsigned bytes to signed ones
STEP, MOST_CHUNK = 16, 64  # inputs of x that share a scale: a multiple of STEP
WIDE, HALVES, TWOFOLD = range(3)  # forms of scales
NO_SHIFT, ZERO_BYTES, ZERO_HALVES, SHIFTS, HALF_SHIFTS, TWOFOLD_SHIFTS = range(6)
BYTES_OF_SCALES, BYTES_OF_SHIFTS = (4, 2, None), (0, 1, 2, 4, 2, None)  # None: double-quantized
LARGEST = 127  # of a table's integers, either sign
PART = 2**22  # numbers of a weight that are packed, or dequantized for a product, at a time


def int4_linear(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> Linear:
    """The layer for the product that this CPU has. dtype: of what is multiplied, and of bias [out]."""
    compiled = (
        cpu_kernels.can_compute(dtype, weight.device) and cpu_kernels.kernels.INT4 > 0 and supports(weight) is None
    )
    return blocked(weight, bias, dtype) if compiled else GroupedLinear(weight, bias)


def supports(weight: QuantizedWeight) -> str | None:
    """Why the compiled product does not support it, for people.

    None: it does, exactly except for float32's rounding of the scales.
    """
    if weight.levels not in (LEVELS, LEVELS_OF_BYTES):
        return f"codes of {weight.levels} levels; the compiled product takes {LEVELS} and {LEVELS_OF_BYTES}"
    if weight.group % STEP and weight.group < weight.shape[1]:
        return f"groups of {weight.group} inputs; the compiled product takes multiples of {STEP}, and whole rows"
    if weight.table is not None and (weight.levels != LEVELS or _whole_table(weight.table) is None):
        return (
            "a table whose entries are no whole numbers, nor halves; rounding them to 8 bits would change the weights"
        )
    return None


def _whole_table(table: Tensor) -> tuple[Tensor, int] | None:
    """The entries as integers, and how many of them make one of the table; None if there are none."""
    for times in (1, 2):
        found = (table.float() * times).round()
        if bool((found == table * times).all()) and float(found.abs().max()) <= LARGEST:
            return found, times
    return None


def blocked(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> GroupedBlockedLinear:
    """weight: one that `supports`."""
    return (Int4BlockedLinear if weight.levels == LEVELS else Int8GroupedLinear)(weight, bias, dtype)


class GroupedBlockedLinear(BlockedLinear):
    """y = x W^T + b by the compiled product of codes in groups (cpu_int4.h).

    A row of x is rounded to 8 bits for each 64 inputs, or each group where that is smaller; sums within these are exact
    and added in one order: a row's bits are the same in any batch.
    """

    __slots__ = ("_grouping", "factor", "inputs", "layout", "order", "table")

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        """weight: one that `supports`; dtype: of what is multiplied, and of bias [out]."""
        if (why := supports(weight)) is not None:
            raise ValueError(f"{why}: take GroupedLinear")
        packing = _CpuBlockPacker(weight)
        order = None if weight.order is None else weight.order.to(torch.int32)
        self._take(
            CpuWeightBlocks(packing.blocks(), order, packing.table, packing.factor),
            packing.layout,
            weight.shape,
            bias,
            dtype,
        )

    @classmethod
    def of_blocks(
        cls,
        blocks: CpuWeightBlocks,
        layout: CpuBlockLayout,
        shape: tuple[int, int],
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Self:
        """The inverse of a layer's `blocks` and `layout`, with shape [out, in]."""
        layer = cls.__new__(cls)
        layer._take(blocks, layout, shape, bias, dtype)
        return layer

    def _take(
        self,
        blocks: CpuWeightBlocks,
        layout: CpuBlockLayout,
        shape: tuple[int, int],
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        Linear.__init__(self, blocks.blocks, None if bias is None else bias.contiguous())
        self.order, self.table, self.factor = blocks[1:]
        self.layout, self.inputs = layout, shape[1]
        places = [0 if part is None else part.data_ptr() for part in blocks[1:]]
        self._grouping = np.array([*places, *layout.words(self.inputs)], np.int64)
        self._write_struct(KINDS[dtype], *shape, self._grouping.ctypes.data)

    @property
    def blocks(self) -> CpuWeightBlocks:
        return CpuWeightBlocks(self.weight, self.order, self.table, self.factor)

    def tensors(self) -> Iterator[Tensor]:
        yield from (part for part in (self.weight, self.bias, self.order, self.table, self.factor) if part is not None)


class Int4BlockedLinear(GroupedBlockedLinear):
    """Of four bits."""

    __slots__ = ()


class Int8GroupedLinear(GroupedBlockedLinear):
    """Of eight bits, which also holds formats of five and six."""

    __slots__ = ()


class CpuWeightBlocks(NamedTuple):
    """A weight as the kernel reads it.

    blocks: uint8 [blocks, stride].  The others as the struct Grouping says; None: there are none.
    """

    blocks: Tensor
    order: Tensor | None
    table: Tensor | None
    factor: Tensor | None


class CpuBlockLayout(NamedTuple):
    """The contents of a weight's blocks.

    bits: of a code, 4 or 8.  group: inputs that share a scale.  scales, shifts: their forms.  centre, above: as in the
        struct Grouping.  fold: 2^fold groups share the outer number of double-quantized ones.
    """

    bits: int
    group: int
    scales: int
    shifts: int
    centre: int
    above: int
    fold: int

    def words(self, inputs: int) -> list[int]:
        """The struct Grouping after its pointers."""
        groups, chunk, padded = self._groups(inputs), self._chunk(inputs), self.padded(inputs)
        spread, after = padded if groups == 1 else self.group, self._bytes(inputs, BYTES_OF_SCALES[self.scales])
        kinds = self.scales, self.shifts, self.centre, self.above
        return [
            self.bits,
            spread,
            chunk,
            *kinds,
            groups,
            padded // chunk,
            after,
            self.fold,
            self.codes(inputs),
            self.stride(inputs),
        ]

    def _groups(self, inputs: int) -> int:
        return -(-inputs // self.group)

    def _chunk(self, inputs: int) -> int:
        return MOST_CHUNK if self.group >= inputs else next(size for size in (64, 32, 16) if self.group % size == 0)

    def _bytes(self, inputs: int, each: int | None) -> int:
        """Of a number of each group in a block. each: of one."""
        groups = self._groups(inputs)
        return cpu_kernels.BLOCK * (groups * each if each is not None else groups + 2 * -(-groups // 2**self.fold))

    def padded(self, inputs: int) -> int:
        """Inputs that a block has codes of."""
        chunk = self._chunk(inputs)
        return -(-inputs // chunk) * chunk

    def codes(self, inputs: int) -> int:
        """Bytes of a block before its codes."""
        size = self._bytes(inputs, BYTES_OF_SCALES[self.scales]) + self._bytes(inputs, BYTES_OF_SHIFTS[self.shifts])
        return -(-size // LINE) * LINE

    def stride(self, inputs: int) -> int:
        """Bytes of a block."""
        return self.codes(inputs) + self.padded(inputs) * cpu_kernels.BLOCK * self.bits // 8


class _CpuBlockPacker:
    """A weight's parts as the blocks of csrc/quantized/quantized_groups.h."""

    def __init__(self, weight: QuantizedWeight) -> None:
        self.weight, inputs = weight, weight.shape[1]
        self.table, times, above = _table_of(weight)
        self.scale, self.factor = weight.scale if times == 1 else weight.scale.float() / times, factor_of(weight)
        melted = weight.factor if self.factor is None else None
        if melted is not None:
            self.scale = self.scale.float() * melted[:, None]
        fine = weight.fine_scale if melted is None and times == 1 else None
        scales, scale_parts = self._scales(fine)
        centre, shifts, shift_parts = self._shifts(times, fine)
        self.parts = [*scale_parts, *shift_parts]
        bits = 4 if weight.levels == LEVELS else 8
        above = above if bits == 4 else MIDDLE
        centre += above if bits == 4 else 0  # entries of a table have an offset
        group = min(weight.group, -(-inputs // STEP) * STEP)
        self.layout = CpuBlockLayout(
            bits, group, scales, shifts, centre, above, 0 if fine is None else fine.each.bit_length() - 1
        )
        self.inputs, self.codes, self.stride = (
            self.layout.padded(inputs),
            self.layout.codes(inputs),
            self.layout.stride(inputs),
        )

    def _scales(self, fine: DoubleQuantized | None) -> tuple[int, list[Tensor]]:
        """In the fewest bytes that hold them: their form, and their bytes in a block."""
        if fine is not None:
            return TWOFOLD, [fine.inner, fine.outer]
        halves = _halves(self.scale)
        return (WIDE, [self.scale.float()]) if halves is None else (HALVES, [halves])

    def _shifts(self, times: int, fine: DoubleQuantized | None) -> tuple[int, int, list[Tensor]]:
        """One integer zero for all, and the others: zeros in bytes or float16 if these hold them, else offset - zero *
        scale.
        """
        zero, offset = self.weight.zero, self.weight.offset
        zero = zero.float() * times if isinstance(zero, Tensor) else float(zero) * times
        if offset is None and isinstance(zero, Tensor):
            kinds = ((ZERO_BYTES, torch.uint8), (ZERO_HALVES, torch.float16))
            return next(
                ((0, kind, [zero.to(dtype)]) for kind, dtype in kinds if _fits(zero, dtype)),
                (0, SHIFTS, [-zero * self.scale.float()]),
            )
        if offset is None and float(zero).is_integer():
            return int(zero), NO_SHIFT, []
        own = self.weight.fine_offset
        if (
            fine is not None
            and own is not None
            and own.each == fine.each
            and not isinstance(zero, Tensor)
            and zero == 0
        ):
            return 0, TWOFOLD_SHIFTS, [own.inner, own.outer]
        shift = self._shift(zero)
        halves = _halves(shift)
        return (0, SHIFTS, [shift.float()]) if halves is None else (0, HALF_SHIFTS, [halves])

    def _shift(self, zero: Tensor | float) -> Tensor:
        offset = self.weight.offset
        if offset is None:
            return -zero * self.scale.float()
        return offset.float() - zero * self.scale.float() if isinstance(zero, Tensor) or zero else offset

    def blocks(self) -> Tensor:
        """uint8 [blocks, stride]"""
        outputs, at = self.weight.shape[0], 0
        packed = empty_weight((-(-outputs // cpu_kernels.BLOCK), self.stride), torch.uint8)
        for part in self.parts:
            cpu_kernels.pack_rows(part, packed.data_ptr() + at, self.stride, part.itemsize)
            at += part.shape[1] * part.itemsize * cpu_kernels.BLOCK
        codes = stored(self.weight.stored)
        assert codes is not None  # `supports` asks for a CPU
        to = packed.data_ptr() + self.codes, self.stride, self.inputs, self.layout.bits
        cpu_kernels.call(cpu_kernels.kernels.pack_codes, *codes.words(), *to)
        packed[:, at : self.codes] = 0
        return packed


def factor_of(weight: QuantizedWeight) -> Tensor | None:
    """float32 [out], the factor of integer sums; None: nothing, or only a part of them, the scales."""
    return None if weight.factor is None or weight.offset is not None else weight.factor.float().contiguous()


def _table_of(weight: QuantizedWeight) -> tuple[Tensor | None, int, int]:
    """The table as bytes, how many of its integers make one of the weight's, and their offset."""
    found = None if weight.table is None else _whole_table(weight.table)
    if found is None:
        return None, 1, 0
    above = max(0, -int(found[0].min()))
    return (found[0] + above).to(torch.uint8), found[1], above


def _halves(numbers: Tensor) -> Tensor | None:
    """As float16; None: it does not hold them."""
    if numbers.dtype == torch.float16:
        return numbers
    return numbers.half() if _fits(numbers, torch.float16) else None


def _fits(numbers: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(numbers.to(dtype).float(), numbers.float())


class GroupedLinear(Linear):
    """y = x W^T + b by torch, which dequantizes the weight in parts: for weights that no compiled product supports.

    weight: uint8, two 4-bit codes in a byte; the rest as in `QuantizedWeight`.
    """

    __slots__ = ("_rest", "_step")

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        """bias: [out], in the dtype of what is multiplied."""
        codes = weight.codes
        super().__init__(packed(codes) if weight.levels == LEVELS else codes.contiguous(), bias)
        self._rest = replace(weight, stored=codes.new_zeros(1).expand(weight.shape))  # a byte that stands for all
        self._step = max(1, PART // weight.shape[1])

    def __call__(self, x: Tensor) -> Tensor:
        outputs = len(self.weight)
        parts = [
            F.linear(x, self._part(slice(start, start + self._step), x.dtype))
            for start in range(0, outputs, self._step)
        ]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return y if self.bias is None else y.add_(self.bias)

    def _part(self, rows: slice, dtype: torch.dtype) -> Tensor:
        part = self._rest.take(rows)
        codes = unpacked(self.weight[rows], part.shape[1]) if part.levels == LEVELS else self.weight[rows]
        return replace(part, stored=codes).dense(dtype)

    def tensors(self) -> Iterator[Tensor]:
        rest = self._rest
        parts = (self.weight, self.bias, rest.scale, rest.zero, rest.offset, rest.factor, rest.table, rest.order)
        yield from (part for part in parts if isinstance(part, Tensor))


def packed(codes: Tensor) -> Tensor:
    """uint8 [out, in], codes up to 15 -> uint8 [out, (in + 1) / 2], the first of two in the low half."""
    codes = F.pad(codes, (0, codes.shape[1] % 2))
    return codes[:, ::2] | codes[:, 1::2] << 4


def unpacked(pairs: Tensor, inputs: int) -> Tensor:
    """The inverse of `packed`."""
    return torch.stack((pairs & 15, pairs >> 4), 2).flatten(1)[:, :inputs]


__all__ = [
    "CpuBlockLayout",
    "CpuWeightBlocks",
    "GroupedBlockedLinear",
    "GroupedLinear",
    "Int4BlockedLinear",
    "Int8GroupedLinear",
    "blocked",
    "int4_linear",
    "supports",
]
