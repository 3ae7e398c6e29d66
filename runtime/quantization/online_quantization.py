"""Loaded projections in the form that `weights` names, computed by what multiplies it on their device."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..errors import ConfigError
from ..layers.linear import Linear
from .codes import Coded, Codes
from .few_bits import FewBitsLinear, FixedFewBitsLinear
from .few_bits_pack import refusal
from .gptq import gptq
from .grouped import Grouped
from .int4 import GroupedLinear
from .keeping import in_few_bits
from .rounding import eight_bits, hqq, nearest
from .seen import Hessian, Seen
from .small_floats import float8_blocks, mxfp4, nvfp4

FP8_BLOCK = "fp8_block"
ROUNDINGS: dict[str, Callable[[Tensor], Grouped]] = {
    "int8": eight_bits, "int4": nearest, "int4_hqq": hqq, "mxfp4": mxfp4, "nvfp4": nvfp4, FP8_BLOCK: float8_blocks,
}  # fmt: skip
CALIBRATED = ("int4_gptq",)
FORMS = (*ROUNDINGS, *CALIBRATED)
FOUR_BITS = tuple(form for form in FORMS if form not in ("int8", FP8_BLOCK))


def rounded(form: str, weight: Tensor, seen: Seen | None = None) -> Grouped:
    """weight [out, in] in one of FORMS. seen: a Hessian, for those that are CALIBRATED."""
    if form not in CALIBRATED:
        return ROUNDINGS[form](weight)
    assert isinstance(seen, Hessian)
    return gptq(weight, seen.sums, ordered=True)


def in_form(form: str, layer: Linear, seen: Seen | None = None, fixed: bool = False) -> Linear:
    """On a CPU torch multiplies what no kernel does; on a GPU that is a ConfigError.

    fixed: on a GPU, with bits of a row that do not depend on the other rows.
    """
    weight = rounded(form, layer.weight, seen)
    if layer.weight.device.type != "cpu":
        return _on_gpu(form, weight, layer, fixed)
    found = in_few_bits(Codes([Coded(0, form, weight)]), layer)
    return found if isinstance(found, Linear) else GroupedLinear(weight, layer.bias)


def _on_gpu(form: str, weight: Grouped, layer: Linear, fixed: bool) -> Linear:
    dtype = layer.weight.dtype
    if (why := refusal(weight, dtype)) is not None:
        raise ConfigError(f"Engine(weights={form!r}): {why}; set dtype='bfloat16', or weights='auto'")
    return (FixedFewBitsLinear if fixed else FewBitsLinear)(weight, layer.bias, dtype)
