"""Quantized weights in the one form that all formats are read into: codes, and numbers for each group of inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layers import cpu_kernels
from ..layers.float8_reference import FP8
from .stored_codes import StoredCodes, joined, stored, taken

PART = 2**22  # codes that are restored at a time
SHORTEST = 16  # inputs of a group that is cut
FINE = ("fine_scale", "fine_offset")


class DoubleQuantized(NamedTuple):
    """Numbers of groups [out, groups] that are inner[o, g] * outer[o, g // each], exactly.

    inner: int8 [out, groups].  outer: float16 [out, groups / each], rounded up.  each: a power of two.
    """

    inner: Tensor
    outer: Tensor
    each: int

    def numbers(self) -> Tensor:
        """float32: eleven bits times eight at most."""
        return self.inner.float() * self.outer.float().repeat_interleave(self.each, 1)[:, : self.inner.shape[1]]

    def take(self, rows: slice | Tensor) -> DoubleQuantized:
        return DoubleQuantized(self.inner[rows], self.outer[rows], self.each)


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight [out, in]: w[o, order[i]] = (v(codes[o, i]) - zero[o, g]) * scale[o, g] * factor[o] + offset[o, g], g =
    i // group.

    stored: the codes, 0 to levels - 1: uint8 [out, in], one in a byte, or as the file has them; kernels pack them.
    levels: 16 or 256; formats of 2, 3, 5 and 6 bits take the next of them.
    scale: float16, bfloat16 or float32 [out, groups]; the last group may be shorter.
    zero: the same for all, or any dtype [out, groups].  offset: as scale; None: none.
    factor: float32 [out]; None: 1.
    table: float32 [levels], what the codes stand for; None: themselves.
    order: int64 [in], which input each column belongs to; None: its own.
    rounds_rows: it was made for rows of x that are rounded to int8, each with its own scale; the product may do so.
    fine_scale, fine_offset: the same numbers as scale and offset in fewer bits, for what keeps them so; None: there are
        none.
    """

    stored: Tensor | StoredCodes
    scale: Tensor
    group: int
    levels: int = 16
    zero: Tensor | float = 0.0
    offset: Tensor | None = None
    factor: Tensor | None = None
    table: Tensor | None = None
    order: Tensor | None = None
    fine_scale: DoubleQuantized | None = None
    fine_offset: DoubleQuantized | None = None
    rounds_rows: bool = False

    def __post_init__(self) -> None:
        outputs, inputs = self.shape
        expected = (outputs, -(-inputs // self.group))
        for name in ("scale", "zero", "offset"):
            found = getattr(self, name)
            if isinstance(found, Tensor) and found.shape != expected:
                raise ValueError(
                    f"{name} has shape {list(found.shape)}, {list(expected)} go with codes {[outputs, inputs]} in "
                    f"groups of {self.group}"
                )

    @classmethod
    def float8(cls, weight: Tensor, scale: Tensor, group: int, factor: Tensor | None = None) -> QuantizedWeight:
        """weight: float8_e4m3fn [out, in]; its bytes are the codes."""
        table = e4m3_values().to(weight.device)
        return cls(weight.view(torch.uint8), scale, group, 256, factor=factor, table=table)

    @property
    def codes(self) -> Tensor:
        """uint8 [out, in], one in a byte; made anew where the file has them in another form."""
        return self.stored if isinstance(self.stored, Tensor) else self.stored.unpacked()

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.stored.shape
        return outputs, inputs

    @property
    def device(self) -> torch.device:
        return self.stored.device

    @property
    def is_float8(self) -> bool:
        return self.table is not None and self.levels == 256

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [out, in]."""
        out = torch.empty(self.shape, dtype=dtype, device=self.device)
        self.restore(out)
        return out

    def restore(self, to: Tensor) -> None:
        """Write the weight to [out, in]: computed in float32, rounded once."""
        found = stored(self.stored) if self.order is None and to.is_contiguous() else None
        if found is not None and cpu_kernels.can_compute(to.dtype, to.device):
            self._restore_compiled(found, to)
        else:
            self.restore_by_torch(to)

    def restore_by_torch(self, to: Tensor) -> None:
        """The definition."""
        step = max(1, PART // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            rows = slice(start, start + step)
            found = self.take(rows)._restored()
            to[rows] = found if self.order is None else torch.empty_like(found).index_copy_(1, self.order, found)

    def _restore_compiled(self, codes: StoredCodes, to: Tensor) -> None:
        zero = self.zero if isinstance(self.zero, Tensor) else torch.tensor([[self.zero]])
        given = (self.scale, zero, self.offset, self.factor, self.table)
        parts = [None if part is None else part.float().contiguous() for part in given]
        places = [0 if part is None else part.data_ptr() for part in parts]
        rest = self.group, int(isinstance(self.zero, Tensor)), to.data_ptr(), cpu_kernels.KINDS[to.dtype]
        cpu_kernels.call(cpu_kernels.kernels.restore_weight, *codes.words(), *places, *rest)

    def take(self, rows: slice | Tensor) -> QuantizedWeight:
        """These rows, in this order."""
        parts = {name: getattr(self, name) for name in ("scale", "zero", "offset", "factor")}
        kept: dict[str, Any] = {name: part[rows] for name, part in parts.items() if isinstance(part, Tensor)}
        kept |= {name: part.take(rows) for name in FINE if (part := getattr(self, name)) is not None}
        return replace(self, stored=taken(self.stored, rows), **kept)

    def of_inputs(self, inputs: Tensor) -> QuantizedWeight:
        """Of these inputs alone, in runs that follow each other. inputs: int64, on the codes' device.

        Groups become as short as the runs ask, which changes no number. Raises ValueError where inputs are ordered, and
        for groups of less than 16.
        """
        if self.order is not None:
            raise ValueError(
                "its inputs are in the order of their activations (desc_act), in which no rank's are contiguous"
            )
        group = self._group_within(inputs)
        each = inputs[::group] // self.group
        parts = {name: getattr(self, name) for name in ("scale", "zero", "offset")}
        kept: dict[str, Any] = {
            name: part[:, each].contiguous() for name, part in parts.items() if isinstance(part, Tensor)
        }
        return replace(
            self, stored=self.codes[:, inputs].contiguous(), group=group, fine_scale=None, fine_offset=None, **kept
        )

    def _group_within(self, inputs: Tensor) -> int:
        """Groups within the kept inputs: each of their groups is within one of these."""
        size, borders = self.shape[1], (torch.diff(inputs) != 1).nonzero().flatten() + 1
        if self.group >= size:
            return len(inputs)
        starts = [int(inputs[0]), *inputs[borders].tolist()]
        lengths = torch.diff(borders, prepend=borders.new_zeros(1), append=borders.new_tensor([len(inputs)])).tolist()
        if int(inputs[-1]) == size - 1:
            lengths.pop()  # the last group may be shorter
        found = math.gcd(self.group, *starts, *lengths)
        if found < min(self.group, SHORTEST):
            raise ValueError(
                f"groups of {self.group} inputs cannot be shared out where parts begin at {starts} and have "
                f"{lengths} inputs"
            )
        return found

    def _restored(self) -> Tensor:
        inputs = self.shape[1]

        def per_input(part: Tensor) -> Tensor:
            return part.float().repeat_interleave(self.group, 1)[:, :inputs]

        values = self.codes.float() if self.table is None else self.table[self.codes.int()]
        values = values - (per_input(self.zero) if isinstance(self.zero, Tensor) else self.zero)
        values = values * per_input(self.scale)
        if self.factor is not None:
            values = values * self.factor[:, None]
        return values if self.offset is None else values + per_input(self.offset)


def stacked(pieces: list[QuantizedWeight]) -> QuantizedWeight | None:
    """One weight of the concatenated rows of all; None if they are not of one form."""
    first = pieces[0]
    if any(_form(piece) != _form(first) or not _same_order(piece, first) for piece in pieces[1:]):
        return None
    together: dict[str, Any] = {"stored": joined([piece.stored for piece in pieces])}
    for name in ("scale", "zero", "offset", "factor"):
        if isinstance(getattr(first, name), Tensor):
            together[name] = torch.cat([getattr(piece, name) for piece in pieces])
    together |= {name: _fine_together([getattr(piece, name) for piece in pieces]) for name in FINE}
    return replace(first, **together)


def _fine_together(parts: list[DoubleQuantized | None]) -> DoubleQuantized | None:
    there = [part for part in parts if part is not None]
    if len(there) < len(parts) or len({part.each for part in there}) > 1:
        return None
    return DoubleQuantized(
        torch.cat([part.inner for part in there]), torch.cat([part.outer for part in there]), there[0].each
    )


def _form(piece: QuantizedWeight) -> tuple[object, ...]:
    zero = "each" if isinstance(piece.zero, Tensor) else piece.zero
    table = None if piece.table is None else piece.table.cpu().numpy().tobytes()  # NaN and all
    there = tuple(getattr(piece, name) is None for name in ("offset", "factor"))
    return piece.group, piece.levels, piece.shape[1], piece.scale.dtype, zero, table, there


def _same_order(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    if one.order is None or other.order is None:
        return one.order is other.order
    return torch.equal(one.order, other.order)


@cache
def e4m3_values() -> Tensor:
    """float32 [256]: the number of each byte as float8_e4m3fn; NaN for two of them."""
    return torch.arange(256, dtype=torch.uint8).view(FP8).float()


E2M1 = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)  # of a four-bit float, by code
