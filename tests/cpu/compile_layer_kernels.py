"""Compiles the layers' kernels for a GPU on a machine without one: the interpreter takes what the compiler may refuse."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sgl.runtime.kernels import (
    activation,
    embed,
    few_bits_assembly,
    few_bits_kernels,
    heads,
    join,
    logits,
    one_row_kernels,
)
from sgl.runtime.models.claims_gpu import ACTIVATIONS

INTEGERS = ("stride", "delta_stride", "other_stride", "table_stride", "size", "outputs")
NUMBERS = ("eps", "after_eps", "before_eps", "value_eps", "k_scale", "v_scale", "branch", "cap")
INDICES = ("positions", "slots", "token_ids", "token_rows", "last", "table")
FLOATS = ("after_weight", "after_bias", "before_bias", "norms", "biases", "scalar", "norm")


def check(kernel: Any, warps: int = 4, types: dict[str, str] | None = None, **constants: Any) -> None:
    """Its arguments have the types of `types`, or those that their names have in all kernels."""
    names = [parameter.name for parameter in kernel.params]
    kinds = dict.fromkeys(INTEGERS, "i32") | dict.fromkeys(NUMBERS, "fp32") | dict.fromkeys(INDICES, "*i32") | dict.fromkeys(FLOATS, "*fp32")
    kinds |= dict.fromkeys(constants, "constexpr") | (types or {})
    source = ASTSource(fn=kernel, signature={name: kinds.get(name, "*bf16") for name in names}, constexprs=constants)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    assert ".entry" in ptx


def joins() -> None:
    usual = {"DELTA": True, "DEPENDENT": False, "BLOCK": 1024}
    for after, before, of_sum in ((1, 1, False), (0, 2, False), (2, 0, True)):
        check(
            join._join, **usual | {"DEPENDENT": of_sum}, OTHER=not of_sum, BRANCH=not of_sum, OF_SUM=of_sum, SCALAR=of_sum,
            AFTER=after, AFTER_BIAS=after == 2, BEFORE=before, BEFORE_BIAS=before == 2,
        )  # fmt: skip


def all_heads() -> None:
    sizes = {"QUERIES": 8, "KEYS": 4, "HALF": 64, "HALF_BLOCK": 64, "TILE": 16, "MOST": 448.0}
    flags = ("TURN", "NORM", "LAYER", "WHOLE", "BIAS", "AFTER", "VALUE_NORM", "FP8", "APART")
    for on in ("TURN", "NORM LAYER BIAS APART", "TURN NORM WHOLE VALUE_NORM", "TURN NORM AFTER FP8"):
        set_flags = {flag: flag in on.split() for flag in flags}
        pools = {"keys": "*fp8e4nv", "values": "*fp8e4nv"} if set_flags["FP8"] else {}
        check(heads._rotate_and_store, 8, {"table": "*bf16", "scales": "*fp32"} | pools, **sizes, **set_flags)
    check(heads._whole_scales, 4, {"scales": "*fp32"}, QUERIES=8, KEYS=4, DIM=64, BLOCK=512)


def activations() -> None:
    rows = {"SIZE": 512, "ROWS": 4, "BLOCK": 512, "VECTOR": 8, "SCALED": False, "BIASED": False, "DEPENDENT": True}
    for name in ACTIVATIONS:
        check(activation._gated, NAME=name, BLOCK=1024)
        check(activation._alone, NAME=name, BLOCK=1024)
        check(one_row_kernels.gate_up, 2, {"norm": "*bf16"}, NORMED=name == "silu", NAME=name, **rows)
    check(one_row_kernels.heads, 2, QUERIES=8, KEYS=4, HALF=64, NORMED=False, **rows)


def few_bits() -> None:
    types = dict.fromkeys(("meta", "counters"), "*i32") | dict.fromkeys(("rows", "inputs", "y_stride", "first", "last"), "i32")
    types |= dict.fromkeys(("outer", "squares", "left_squares", "partial"), "*fp32")
    usual = {"ZERO": 8, "OUTER": False, "OUTPUTS": 64}
    shape = {"BIASED": False, "NORMED": False, "TILES": 1, "ADDED": False, "READY": False, "NAME": "", "ROWS": 16, "SPLIT": 2, "APART": True, "DEPENDENT": False}
    kinds = [(0, "*i16", 64, kind) for kind in ("plain", "scaled", "shifted", "zeros", "zeros, scaled")]
    kinds += [(1, "*i16", 32, "floats, scaled"), (2, "*i8", 128, "scaled"), (2, "*i8", 128, "shifted"), (2, "*fp8e4nv", 128, "plain")]
    for form, words, group, kind in kinds:
        texts = {f"TEXT{at}": few_bits_assembly.text(kind, torch.bfloat16, at, 8) for at in range(4)}
        constants = usual | texts | {"FORM": form, "WORDS": 32, "GROUP": group, "KIND": kind}
        check(few_bits_kernels.multiply, 4, types | {"words": words}, **constants, **shape)
        check(few_bits_kernels.restore, 4, types | {"words": words}, **constants)
    for name in ("", "silu"):
        folded = shape | {"NAME": name, "NORMED": True, "READY": not name, "DEPENDENT": True}
        check(few_bits_kernels.multiply, 4, types | {"words": "*i16"}, **constants | {"FORM": 0, "KIND": "zeros, scaled"}, **folded)


def main() -> None:
    few_bits()
    joins()
    all_heads()
    activations()
    for on in (False, True):
        check(embed._embed, SCALED=on, PAGE=16, BLOCK=1024, types={"scale": "fp32"})
        check(logits._adjust, CAPPED=on, BLOCK=1024, types={"scale": "fp32"})
    check(embed._pages, 1, PAGE=16)


if __name__ == "__main__":
    main()
