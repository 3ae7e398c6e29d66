"""The output of the selected experts for small batches, weights read in place: tile sizes of two kernels, and
launches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
from torch import Tensor

from ..gemv.gemv_launch import block_of
from ..launch.programmatic_launch import launched
from . import expert_gemv_kernels as kernels
from .expert_inputs import (
    ExpertSelection,
    ExpertWeights,
    SharedExpertOutput,
    StackedExpertWeights,
    shared_output_arguments,
    shared_output_flags,
)

ROWS_AT_ONCE = 8  # that a program of the second product reads, of all experts together


class ExpertGemvLaunch(NamedTuple):
    """Powers of 2 except groups. rows: of each weight that a program reads at once; block: columns a step.

    warps: of a program.  groups: of rows, one after the other.  registers: most that a thread may use, 0: the
    compiler's choice.
    """

    rows: int
    block: int
    warps: int
    groups: int = 1
    registers: int = 0


# By (outputs, inputs, top_k), measured on an H200 inside chains of whole layers.
TUNED_UP: dict[tuple[int, int, int], ExpertGemvLaunch] = {(1536, 2048, 8): ExpertGemvLaunch(4, 2048, 8, registers=64)}
REGISTERS = 128  # of a thread, in tiles that were not measured: so many programs fit on a multiprocessor


def gate_up_launch(outputs: int, inputs: int, top_k: int) -> ExpertGemvLaunch:
    """The measured launch of gate and up [outputs, inputs] of so many experts for a batch of one, or a sound
    default.
    """
    block = block_of(inputs)
    return TUNED_UP.get((outputs, inputs, top_k)) or ExpertGemvLaunch(
        4, block, max(1, block // 512), registers=REGISTERS
    )


def down_launch(inputs: int, top_k: int) -> ExpertGemvLaunch:
    """The same for the second product, of which a program reads the rows of all experts at once."""
    rows = max(1, ROWS_AT_ONCE // triton.next_power_of_2(top_k))
    return ExpertGemvLaunch(rows, min(256, triton.next_power_of_2(inputs)), 1, registers=REGISTERS)


def expert_gemv(
    x: Tensor,
    stacks: StackedExpertWeights,
    choice: ExpertSelection,
    shared_output: SharedExpertOutput,
    out: Tensor,
    overlap: bool,
) -> Tensor:
    """`out` [T, hidden], of a small batch: the sum of each row's expert outputs, and of `shared_output`."""
    inner = gemv_gate_up(x, stacks, choice, overlap=overlap)
    return gemv_down(inner, stacks, choice, shared_output, out, overlap=overlap)


def gemv_gate_up(
    x: Tensor,
    stacks: StackedExpertWeights,
    choice: ExpertSelection,
    cut: ExpertGemvLaunch | None = None,
    overlap: bool = False,
) -> Tensor:
    """activation(gate) * up of every pair [T * k, inner], each by separate programs."""
    assert isinstance(stacks.gate_up, ExpertWeights)
    (weight, bias), inner, pairs = stacks.gate_up, stacks.inner, choice.experts.numel()
    out = x.new_empty(pairs, inner)
    cut = cut or gate_up_launch(2 * inner, x.shape[1], choice.top_k)
    kernels.gemv_gate_up[triton.cdiv(2 * inner, cut.rows * cut.groups), pairs](
        x,
        weight,
        x if bias is None else bias,
        choice.experts,
        choice.weights,
        out,
        x.stride(0),
        inner,
        stacks.count,
        stacks.limit or 0.0,
        TOP=choice.top_k,
        GROUPS=cut.groups,
        NAME=stacks.name,
        LIMITED=stacks.limit is not None,
        BIASED=bias is not None,
        WEIGHED=choice.of_input,
        PARTIAL=choice.partial,
        **_constants(weight, cut, overlap),
    )
    return out


def gemv_down(
    inner: Tensor,
    stacks: StackedExpertWeights,
    choice: ExpertSelection,
    shared_output: SharedExpertOutput,
    out: Tensor,
    cut: ExpertGemvLaunch | None = None,
    overlap: bool = False,
) -> Tensor:
    """The sums [T, hidden] of the second product over the result of `gemv_gate_up`, in `out`."""
    assert isinstance(stacks.down, ExpertWeights)
    (weight, bias), (rows, outputs) = stacks.down, out.shape
    cut = cut or down_launch(stacks.inner, choice.top_k)
    kernels.gemv_down[triton.cdiv(outputs, cut.rows), rows](
        inner,
        weight,
        inner if bias is None else bias,
        choice.experts,
        choice.weights,
        *shared_output_arguments(shared_output, inner),
        out,
        outputs,
        stacks.count,
        TOP=choice.top_k,
        LANES=triton.next_power_of_2(choice.top_k),
        BIASED=bias is not None,
        WEIGHED=not choice.of_input,
        PARTIAL=choice.partial,
        **shared_output_flags(shared_output),
        **_constants(weight, cut, overlap),
    )
    return out


def _constants(weight: Tensor, cut: ExpertGemvLaunch, overlap: bool) -> dict[str, Any]:
    """The keywords of both kernels."""
    size = weight.shape[2]
    block = min(cut.block, triton.next_power_of_2(size))
    told = {"SIZE": size, "ROWS": cut.rows, "BLOCK": block, "VECTOR": min(16 // weight.element_size(), block)}
    told |= {"num_warps": cut.warps} | ({"maxnreg": cut.registers} if cut.registers else {})
    return told | launched(overlap)
