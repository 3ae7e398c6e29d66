"""Packs 4-bit and 8-bit weights into the form that the GPU kernels read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.packed.packed_weight import ABOVE, BYTES, DTYPES, FLOATS, MOST_TILES, NIBBLES, TABLE, PackedWeight
from ..layers.float8_reference import FP8
from .quantized_weight import E2M1, QuantizedWeight

ENDLESS = 2**30  # a group that no row is longer than
WHOLE_BLOCK = 128  # inputs that a program takes at a time, of such a group
NAN_PART = 2**26  # codes that are looked through at a time
MIDDLE = {16: 8, 256: 128}  # the code of 0 where shifts compensate the rest, by levels


def packing_refusal(weight: QuantizedWeight, dtype: torch.dtype) -> str | None:
    """Why the kernels do not support a weight for activations in `dtype`, for people; None: they do."""
    if dtype not in DTYPES:
        return (
            "the GPU's few-bit kernels go with bfloat16 and float16, the model is in "
            f"{str(dtype).removeprefix('torch.')}"
        )
    if weight.is_float8 and has_nan(weight.codes):
        return "NaN among its numbers"
    form = _form(weight)
    if form is None:
        return "no GPU kernel looks codes up in such a table with zeros or offsets"
    if _block(form, weight.group, weight.shape[1]) is None:
        return f"groups of {weight.group} inputs; the GPU's kernels take 16, 32, and multiples of 64 up to whole rows"
    if dtype == torch.float16 and weight.scale.shape[1] > 1 and not _in_float16(weight.scale.float()):
        return "scales beyond the range of float16; dtype='bfloat16' has it"
    return None


def pack_for_gpu(weight: QuantizedWeight, dtype: torch.dtype) -> PackedWeight:
    """weight: one that is not refused for `dtype`."""
    form, (outputs, inputs) = _form(weight), weight.shape
    assert form is not None
    block = _block(form, weight.group, inputs)
    assert block is not None
    zero, zeros, shift = _zeros_and_shift(form, weight)
    scale, outer = weight.scale.float(), weight.factor
    if outer is not None and shift is not None:
        scale, shift, outer = scale * outer[:, None], _scaled_shift(shift, weight), None
    grouped = scale.shape[1] > 1 or shift is not None
    if not grouped:
        outer = scale[:, 0] if outer is None else scale[:, 0] * outer
    kind = "shifted" if shift is not None else ("scaled" if grouped else "plain")
    if form == TABLE:
        kind = "table" if kind == "plain" else "table, scaled"
    elif form == FLOATS:
        kind = "floats" if kind == "plain" else "floats, scaled"
    elif zeros is not None:
        kind = "zeros, scaled" if grouped else "zeros"
    second = zeros if shift is None else shift
    if zeros is not None:
        second = -(zeros + ABOVE[dtype])
    meta = None if kind in ("plain", "floats", "table") else _meta(scale, second, dtype)
    if meta is not None and scale.shape[1] > 1:
        groups = -(-inputs // block) * max(1, block // weight.group)
        meta = F.pad(meta, (0, 0, 0, max(0, groups - len(meta))))
    return PackedWeight(
        form,
        kind,
        _words(form, weight, block),
        outputs,
        inputs,
        weight.group if scale.shape[1] > 1 else ENDLESS,
        block,
        zero,
        meta,
        None if outer is None else outer.contiguous(),
        weight.order,
        torch.zeros(MOST_TILES, dtype=torch.int32, device=weight.codes.device),
        dtype,
        _numbers(weight, dtype) if form == TABLE else (),
    )


def of_float8(words: Tensor, scale: Tensor, counters: Tensor) -> PackedWeight:
    """words: float8_e4m3fn [out, in] without NaN, a scale for each output [out]; for bfloat16 activations.

    They are not copied. counters: zeros [MOST_TILES].
    """
    outputs, inputs = words.shape
    return PackedWeight(
        BYTES, "plain", words, outputs, inputs, ENDLESS, WHOLE_BLOCK, 0, None, scale, None, counters, torch.bfloat16
    )


def _meta(scale: Tensor, second: Tensor | None, dtype: torch.dtype) -> Tensor:
    """int32 [groups, out]"""
    second = torch.zeros_like(scale) if second is None else second.expand_as(scale)
    halves = torch.stack((scale.to(dtype), second.to(dtype)), -1).transpose(0, 1).contiguous()
    return halves.view(torch.int32).squeeze(-1)


def _numbers(weight: QuantizedWeight, dtype: torch.dtype) -> tuple[float, ...]:
    """The numbers of its table, in the type of the activations."""
    assert weight.table is not None
    return tuple(weight.table.to(dtype).tolist())


def has_nan(codes: Tensor) -> bool:
    """codes: bytes of e4m3. The kernels have no NaN of it."""
    return any(bool(((part & 127) == 127).any()) for part in codes.view(-1).split(NAN_PART))


def _in_float16(scale: Tensor) -> bool:
    return bool((scale.abs() <= 65504).all()) and bool(((scale.half() != 0) | (scale == 0)).all())


def _form(weight: QuantizedWeight) -> int | None:
    if weight.is_float8 or (weight.levels == 256 and weight.table is None):
        return BYTES
    if weight.table is None:
        return NIBBLES
    table = weight.table.tolist()
    if weight.levels == 16 and not isinstance(weight.zero, Tensor) and weight.zero == 0 and weight.offset is None:
        return FLOATS if table == list(E2M1) else TABLE
    return BYTES if all(float(entry).is_integer() and -128 <= entry <= 127 for entry in table) else None


def _block(form: int, group: int, inputs: int) -> int | None:
    """Inputs that a program takes at a time."""
    if group >= inputs:
        return WHOLE_BLOCK
    if form == BYTES:
        return next((block for block in (128, 64, 32, 16) if group % block == 0), None)
    if group in (32, 64) or group % 128 == 0:
        return 128
    return 64 if group == 16 or group % 64 == 0 else None


def _zeros_and_shift(form: int, weight: QuantizedWeight) -> tuple[int, Tensor | None, Tensor | None]:
    """What is subtracted from the stored values, an integer for all or float32 per group; and the addend after the
    scale.
    """
    zero, offset, scale = weight.zero, weight.offset, weight.scale.float()
    if form == NIBBLES and offset is None:
        if not isinstance(zero, Tensor) and float(zero).is_integer() and 0 <= zero < 16:
            return int(zero), None, None
        if isinstance(zero, Tensor) and bool(
            ((zero.float() == zero.float().round()) & (zero.float() >= 0) & (zero.float() < 16)).all()
        ):
            return 0, zero.float(), None
    middle = MIDDLE[weight.levels] if weight.table is None else 0
    if offset is None and not isinstance(zero, Tensor) and zero == middle:
        return (middle if form == NIBBLES else 0), None, None
    zero = zero.float() if isinstance(zero, Tensor) else float(zero)
    shift = (middle - zero) * scale
    return middle, None, (shift if offset is None else shift + offset.float()).expand_as(scale)


def _scaled_shift(shift: Tensor, weight: QuantizedWeight) -> Tensor:
    """The factor belongs to what a zero shifts, not to an offset."""
    assert weight.factor is not None
    zeros = shift if weight.offset is None else shift - weight.offset.float()
    scaled = zeros * weight.factor[:, None]
    return scaled if weight.offset is None else scaled + weight.offset.float()


def _words(form: int, weight: QuantizedWeight, block: int) -> Tensor:
    codes = weight.codes
    if weight.is_float8:
        return codes.contiguous().view(FP8)
    if form == BYTES:
        if weight.table is not None:
            return weight.table.to(torch.int8)[codes.int()]
        return (codes ^ 128).view(torch.int8)
    codes = F.pad(codes, (0, -codes.shape[1] % block)).unflatten(1, (-1, 4, block // 4))  # [out, blocks, 4, words]
    low, high = codes[:, :, 0] | codes[:, :, 1] << 4, codes[:, :, 2] | codes[:, :, 3] << 4
    return torch.stack((low, high), -1).transpose(0, 1).contiguous().view(torch.int16).squeeze(-1)
