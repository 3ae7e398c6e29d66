"""Which layers the compiled attention supports on a CPU, and what attends on one: known without a pool."""

from __future__ import annotations

from typing import NamedTuple

from ...layers import compiled_kernels
from ..attention_layout import AttentionLayout, AttentionShape

FLOAT8 = "float8_e4m3fn"
CPU, TORCH = "cpu", "torch_native"


class ExpectedAttention(NamedTuple):
    """name: of the backend.  why: why no faster one attends; None: there is none."""

    name: str
    why: str | None


def expected_attention(
    name: str, layout: AttentionLayout, dtype: str, stored: str, deterministic: bool
) -> list[ExpectedAttention | None] | None:
    """For each layer, what `attention_backend` would choose on a CPU; None for one that does not attend.

    name: as it is asked for.  dtype, stored: of queries, and of keys and values, by their names in torch.
    None: the backends themselves must be asked: they refuse this, or choose tokens.
    """
    found = [_expected(name, shape, dtype, stored, deterministic) for shape in layout.groups]
    if any(each is None for each in found):
        return None
    return [found[layout.places[index][0]] if index in layout.places else None for index in range(len(layout.layers))]


def _expected(
    name: str, shape: AttentionShape, dtype: str, stored: str, deterministic: bool
) -> ExpectedAttention | None:
    why = missing(shape, dtype, stored, there=compiled_kernels.kernels is not None)
    if shape.chosen is not None or name not in ("auto", CPU, TORCH) or (deterministic and (why or name == TORCH)):
        return None
    if name == TORCH:
        return ExpectedAttention(TORCH, f"attention={name!r} was asked for")
    if why is None:
        return ExpectedAttention(CPU, None)
    return ExpectedAttention(TORCH, f"no {CPU}: {refusal(why)}") if name == "auto" else None


def refusal(missing: str) -> str:
    """What the error of the compiled attention says."""
    return f"attention={CPU!r} needs {missing}; use attention={TORCH!r}"


def missing(shape: AttentionShape, dtype: str, stored: str, device: str = CPU, there: bool = True) -> str | None:
    """What the kernels would need; None: they attend. dtype, stored: see `expected_attention`.  there: are they."""
    known = there and device == CPU and dtype in compiled_kernels.KINDS
    if not known or stored not in (dtype, FLOAT8):
        absent = "" if there else ", and the compiled kernels are not there"
        queries = "" if dtype == stored else f" with queries of torch.{dtype}"
        return f"the compiled kernels on a CPU and float32 or bfloat16; here: {device}, torch.{stored}{queries}{absent}"
    row, most = compiled_kernels.limit("MOST_ROW"), compiled_kernels.limit("MOST_DIM")
    if shape.latent:
        fits = shape.head_dim <= row and shape.value_dim <= most
        numbers = f"{shape.head_dim} and {shape.value_dim}"
        return None if fits else f"rows of at most {row} numbers, {most} of them values, not {numbers}"
    if shape.head_dim > most:
        return f"head_dim <= {most}, not {shape.head_dim}"
    if shape.value_dim != shape.head_dim:
        return f"values as wide as keys, not {shape.value_dim} and {shape.head_dim}"
    return "a model without ALiBi" if shape.alibi else None
