"""compressed-tensors' whole numbers of 2 to 8 bits in int32 words, in the packings of its versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .activation_order import order_of
from .bit_unpacking import WORD, apart, stream, words_of
from .compressed_tensors_schemes import CompressedTensorsScheme, matching
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader
from .weight_scales import ScaleBlock, reach_of

ZERO, ORDER = "weight_zero_point", "weight_g_idx"
SPARE = ("weight_shape",)

Unpack = Callable[[Tensor, int, int], Tensor]


class SchemeMatch(NamedTuple):
    """A scheme under which the headers make sense."""

    bits: int
    inputs: int
    group: int


def claim(module: QuantizedModule, schemes: Sequence[CompressedTensorsScheme]) -> WeightReader:
    """Codes run along the inputs; the zeros' along the outputs. All are stored with half of their range added."""
    out, words = module.matrix("weight_packed", ("I32",))
    module.expect("weight_scale", FLOATS)
    bits, inputs, group = _fit(module, words, schemes)
    weight, half = (out, inputs), float(2 ** (bits - 1))
    unpack, reach = _packing(words, bits, inputs), _reach(module, (out, inputs), group)
    zeros = _zeros(module, reach, weight, bits)
    names = ["weight_packed", "weight_scale", *(name for name in (ZERO, ORDER) if module.has(name))]
    if module.has(ORDER):
        module.expect(ORDER, ("I32", "I64"), (inputs,))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes, scale = unpack(tensors["weight_packed"], bits, inputs), reach.expanded(tensors["weight_scale"], weight)
        order = order_of(module, ORDER, tensors[ORDER], group) if ORDER in tensors else None
        zero = zeros(tensors[ZERO]) if ZERO in tensors else half
        codes = codes.contiguous() if order is None else codes[:, order]
        return QuantizedWeight(codes, scale, group, 16 if bits <= 4 else 256, zero, order=order)

    form = (
        f"compressed-tensors, {bits} bits, "
        f"{_described(group, inputs, reach)}{', ordered by activation' if module.has(ORDER) else ''}"
    )
    return module.claim(form, weight, names, read, SPARE)


def _described(group: int, inputs: int, reach: ScaleBlock) -> str:
    if group < inputs:
        return f"groups of {group}"
    return "a scale per output" if reach.rows == 1 else "one scale"


def _fit(module: QuantizedModule, words: int, schemes: Sequence[CompressedTensorsScheme]) -> SchemeMatch:
    """The one scheme that goes with the widths; where several do, the one whose targets name the module."""
    shape = module.siblings["weight_scale"].shape
    groups = shape[1] if len(shape) == 2 else 1
    known = module.siblings[ORDER].shape[0] if module.has(ORDER) and module.siblings[ORDER].shape else None
    found = {scheme: fit for scheme in schemes if (fit := _fits(scheme, words, groups, known))}
    if not found:
        listed = "; ".join(map(str, schemes)) or "none"
        raise module.wrong(
            "weight_packed",
            f"and weight_scale {list(shape)} fit no scheme of whole numbers in config_groups ({listed}); correct the "
            "file",
        )
    if len(set(found.values())) > 1:
        found = {scheme: found[scheme] for scheme in matching(module.name, list(found))}
    return next(iter(found.values()))


def _fits(scheme: CompressedTensorsScheme, words: int, groups: int, known: int | None) -> SchemeMatch | None:
    bits, widest = scheme.bits, words * WORD // scheme.bits
    if groups > 1 and not scheme.group:
        return None
    if scheme.group:
        sizes = [known or groups * scheme.group, widest]
        return next(
            (
                SchemeMatch(bits, size, min(scheme.group, size))
                for size in sizes
                if _wide(size, bits, words) and -(-size // scheme.group) == groups
            ),
            None,
        )
    if known is None and WORD % bits:
        return None  # two packings, and rows of several lengths, have this width
    size = known or widest
    return SchemeMatch(bits, size, size) if _wide(size, bits, words) else None


def _wide(inputs: int, bits: int, words: int) -> bool:
    return words in (words_of(inputs, bits), -(-inputs // (WORD // bits)))


def _packing(words: int, bits: int, count: int) -> Unpack:
    return stream if words == words_of(count, bits) else apart


def _reach(module: QuantizedModule, weight: tuple[int, int], group: int) -> ScaleBlock:
    if group == weight[1]:
        return reach_of(module, "weight_scale", weight, [])
    reach = ScaleBlock(1, group)
    module.expect("weight_scale", FLOATS, reach.grid(weight))
    return reach


def _zeros(
    module: QuantizedModule, reach: ScaleBlock, weight: tuple[int, int], bits: int
) -> Callable[[Tensor], Tensor]:
    """Packed zeros have half of the range added already; int8 ones have not."""
    if module.dtype(ZERO) == "I8":
        module.expect(ZERO, ("I8",), module.siblings["weight_scale"].shape)
        return lambda zero: reach.expanded(zero.short(), weight) + 2 ** (bits - 1)
    if module.has(ZERO):
        groups = reach.grid(weight)[1]
        words, _ = module.matrix(ZERO, ("I32",))
        if not _wide(weight[0], bits, words) or reach.rows > 1:
            raise module.wrong(ZERO, f"fits no {weight[0]} zeros of {bits} bits; convert the checkpoint again")
        module.expect(ZERO, ("I32",), (words, groups))
        return lambda zero: _packing(words, bits, weight[0])(zero.T, bits, weight[0]).T.contiguous()
    return lambda zero: zero
