"""The selected experts' output of tokens: gathered products for small batches, sorted blocks for more.

The reference is models/reference/reference_routing.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..batch_invariant_matmul import can_multiply, capability, processors
from ..launch.programmatic_launch import launched
from ..rms_norm import block_of
from . import expert_gemm_kernels as kernels
from . import quantized_experts
from .expert_align_blocks import ExpertBlocks, sorted_blocks
from .expert_gemv import expert_gemv
from .expert_inputs import (
    ExpertSelection,
    ExpertWeights,
    PackedExpertWeights,
    SharedExpertOutput,
    StackedExpertWeights,
    shared_output_arguments,
    shared_output_flags,
)

FEW_ROWS = 8  # up to which weights are gathered: beyond, rows share experts
MOST_ROWS = 8192  # at a time, so that intermediate results stay small
GROUP = 8  # blocks that go through an expert's outputs together
COMBINED = 1024  # outputs that a program adds


@dataclass(frozen=True, slots=True)
class ExpertGemmTile:
    """rows x outputs of a program, `depth` inputs at a time; of a gate as many outputs again.

    described: the weight by descriptors.  resident: a program on each multiprocessor, which goes from tile to tile.
    """

    rows: int
    outputs: int
    depth: int
    stages: int
    warps: int
    described: bool = True
    resident: bool = False


SMALL = ExpertGemmTile(64, 64, 32, 3, 4, described=False)  # of any device
FIXED = ExpertGemmTile(64, 64, 64, 4, 4)
# by the rows that an expert has, measured on an H200: a block has room for most experts' rows, as each block reads
# the weight anew
TILES = {
    8: ExpertGemmTile(16, 64, 128, 3, 4),
    24: ExpertGemmTile(32, 128, 128, 3, 8),
    64: ExpertGemmTile(64, 128, 64, 4, 8),
}
MANY = ExpertGemmTile(128, 128, 64, 4, 8)
SECOND = {
    MANY: ExpertGemmTile(128, 256, 64, 4, 8, resident=True),
    TILES[24]: ExpertGemmTile(32, 64, 128, 3, 4),
}  # of the second product, where it is not that of the first
NARROW = {
    TILES[24]: ExpertGemmTile(32, 64, 128, 4, 4),
    TILES[64]: ExpertGemmTile(64, 64, 64, 4, 4),
}  # for outputs that would leave half of the last tile empty


def tile_for(
    pairs: int, experts: int, dtype: torch.dtype, device: tuple[int, int], fixed: bool = False
) -> ExpertGemmTile:
    """fixed: one for any number of pairs, so that a row's bits do not depend on it.  device: its capability."""
    if device[0] != 9 or dtype == torch.float32:
        return SMALL
    if fixed:
        return FIXED
    return next((tile for most, tile in TILES.items() if pairs <= most * experts), MANY)


def fitted(tile: ExpertGemmTile, outputs: int) -> ExpertGemmTile:
    """The same, or one of half the outputs if the last one would be half empty."""
    empty = -outputs % tile.outputs
    return NARROW.get(tile, tile) if 2 * empty >= tile.outputs else tile


class UnreducedExpertOutput(NamedTuple):
    """A mixture's output, not reduced yet. each: of the pairs, [T * k, hidden]; the others as of `fused_moe`."""

    each: Tensor
    choice: ExpertSelection
    shared_output: SharedExpertOutput
    overlap: bool

    def total(self) -> Tensor:
        """[T, hidden]"""
        out = self.each.new_empty(len(self.choice.experts), self.each.shape[1])
        combine_experts(self.each, self.choice, self.shared_output, out, 0, self.overlap)
        return out

    def join(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, hidden] += the total, in place; returns the RMS norm of x, [T, hidden] contiguous."""
        rows, outputs = x.shape
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        block, warps = block_of(outputs)
        flags = shared_output_flags(self.shared_output)
        kernels.combine_norm[(rows,)](
            self.each,
            self.choice.weights,
            *shared_output_arguments(self.shared_output, self.each)[:2],
            x,
            weight,
            y,
            outputs,
            x.stride(0),
            eps,
            TOP=self.choice.top_k,
            BLOCK=block,
            WEIGHED=not self.choice.of_input,
            SHARED=flags["SHARED"],
            SWITCHED=flags["SWITCHED"],
            **launched(self.overlap),
            num_warps=warps,
        )
        return y


def unreduced_experts(
    x: Tensor,
    stacks: StackedExpertWeights,
    choice: ExpertSelection,
    shared_output: SharedExpertOutput,
    *,
    fixed: bool = False,
    overlap: bool = False,
) -> UnreducedExpertOutput | None:
    """`fused_moe` without its sums, to be added to something.

    None: there are so few or so many rows that another way is used.
    """
    packed = isinstance(stacks.gate_up, PackedExpertWeights)
    if not 0 < len(x) <= MOST_ROWS or (len(x) <= FEW_ROWS and not fixed and not packed):
        return None
    each = _quantized(x, stacks, choice, fixed, overlap) if packed else _sorted(x, stacks, choice, fixed, overlap)
    return UnreducedExpertOutput(each, choice, shared_output, overlap)


def fused_moe(
    x: Tensor,
    stacks: StackedExpertWeights,
    choice: ExpertSelection,
    shared_output: SharedExpertOutput | None = None,
    *,
    fixed: bool = False,
    overlap: bool = False,
) -> Tensor:
    """x [T, hidden] -> [T, hidden]: the sum of each row's expert outputs, in the order of choice, and `shared_output`.

    fixed: a row's bits do not depend on the other rows.  overlap: see `overlap`.
    """
    shared_output = shared_output or SharedExpertOutput()
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if shared_output.x is None else shared_output.x
    packed = isinstance(stacks.gate_up, PackedExpertWeights)
    if len(x) <= FEW_ROWS and not fixed and not packed:
        return expert_gemv(x, stacks, choice, shared_output, out, overlap) if len(x) else out
    for start in range(0, len(x), MOST_ROWS):
        part = slice(start, start + MOST_ROWS)
        own = replace(choice, experts=choice.experts[part], weights=choice.weights[part])
        each = (
            _quantized(x[part], stacks, own, fixed, overlap)
            if packed
            else _sorted(x[part], stacks, own, fixed, overlap)
        )
        combine_experts(
            each,
            own,
            SharedExpertOutput(*(None if given is None else given[part] for given in shared_output)),
            out[part],
            stacks.count,
            overlap,
        )
    return out


def _sorted(x: Tensor, stacks: StackedExpertWeights, choice: ExpertSelection, fixed: bool, overlap: bool) -> Tensor:
    """The output of each pair, [T * k, hidden]."""
    tile = tile_for(choice.experts.numel(), choice.places or stacks.count, x.dtype, capability(x.device), fixed)
    blocks = sorted_blocks(choice.experts, stacks.count, tile.rows, overlap)
    inner = grouped_up(x, stacks, choice, blocks, fitted(tile, stacks.inner), overlap)
    return grouped_down(inner, stacks, choice, blocks, SECOND.get(tile) or fitted(tile, x.shape[1]), overlap)


def _quantized(x: Tensor, stacks: StackedExpertWeights, choice: ExpertSelection, fixed: bool, overlap: bool) -> Tensor:
    """The same; small batches are not sorted."""
    assert isinstance(stacks.gate_up, PackedExpertWeights) and isinstance(stacks.down, PackedExpertWeights)
    top, single = choice.top_k, len(x) <= FEW_ROWS and not fixed
    if choice.of_input:
        x, top = (x[:, None] * choice.weights[:, :, None].to(x.dtype)).flatten(0, 1), 1
    tile = quantized_experts.tile_for(choice.experts.numel(), choice.places or stacks.count, single, fixed)
    blocks = None if single else sorted_blocks(choice.experts, stacks.count, tile.rows)
    inner = quantized_experts.product(
        x, stacks.gate_up, choice, blocks, tile, top, stacks.name, stacks.limit, overlap=overlap
    )
    return quantized_experts.product(inner, stacks.down, choice, blocks, tile, overlap=overlap)


def grouped_up(
    x: Tensor,
    stacks: StackedExpertWeights,
    choice: ExpertSelection,
    blocks: ExpertBlocks,
    tile: ExpertGemmTile,
    overlap: bool = False,
) -> Tensor:
    """activation(gate) * up of every pair, in the order of the blocks: [blocks.most * tile.rows, inner]."""
    out = x.new_empty(blocks.most * tile.rows, stacks.inner)
    assert isinstance(stacks.gate_up, ExpertWeights)
    _grouped(x, stacks.gate_up, choice, blocks, out, tile, stacks.name, stacks.limit, overlap)
    return out


def grouped_down(
    inner: Tensor,
    stacks: StackedExpertWeights,
    choice: ExpertSelection,
    blocks: ExpertBlocks,
    tile: ExpertGemmTile,
    overlap: bool = False,
) -> Tensor:
    """The output of each pair, from the result of `grouped_up`: [T * k, hidden]."""
    out = inner.new_empty(choice.experts.numel(), stacks.down.shape[1])
    assert isinstance(stacks.down, ExpertWeights)
    _grouped(inner, stacks.down, choice, blocks, out, tile, overlap=overlap)
    return out


def _grouped(
    x: Tensor,
    weights: ExpertWeights,
    choice: ExpertSelection,
    blocks: ExpertBlocks,
    out: Tensor,
    tile: ExpertGemmTile,
    name: str = "",
    limit: float | None = None,
    overlap: bool = False,
) -> None:
    (weight, bias), inputs, outputs = weights, x.shape[1], out.shape[1]
    described = tile.described and can_multiply(inputs, x.dtype)
    taken: list[Tensor | TensorDescriptor] = [x, weight]
    if described:
        flat = TensorDescriptor.from_tensor(weight.flatten(0, 1), [tile.outputs, tile.depth])
        taken = [x if name else TensorDescriptor.from_tensor(x, [tile.rows, tile.depth]), flat]
    most = blocks.most * triton.cdiv(outputs, tile.outputs)
    kernels.grouped[(min(most, processors(x.device)) if tile.resident else most,)](
        *taken,
        x if bias is None else bias,
        choice.weights,
        out,
        *blocks[:3],
        choice.experts.numel(),
        outputs,
        inputs,
        x.stride(0),
        limit or 0.0,
        TOP=choice.top_k,
        NAME=name,
        LIMITED=limit is not None,
        BIASED=bias is not None,
        WEIGHED=choice.of_input and bool(name),
        DESCRIBED=described,
        EVEN=inputs % tile.depth == 0,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        DEPTH=tile.depth,
        GROUP=GROUP,
        FLATTEN=tile.resident,
        **launched(overlap),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def combine_experts(
    each: Tensor,
    choice: ExpertSelection,
    shared_output: SharedExpertOutput,
    out: Tensor,
    experts: int,
    overlap: bool = False,
) -> None:
    """out [T, hidden] = the sums of the outputs of pairs, `each` [T * k, hidden].

    experts: that are here, if the selection is partial.
    """
    rows, outputs = out.shape
    block = min(COMBINED, triton.next_power_of_2(outputs))
    kernels.combine[rows, triton.cdiv(outputs, block)](
        each,
        choice.experts,
        choice.weights,
        *shared_output_arguments(shared_output, each),
        out,
        outputs,
        experts,
        TOP=choice.top_k,
        BLOCK=block,
        WEIGHED=not choice.of_input,
        PARTIAL=choice.partial,
        **shared_output_flags(shared_output),
        **launched(overlap),
        num_warps=4,
    )


__all__ = [
    "ExpertGemmTile",
    "ExpertSelection",
    "ExpertWeights",
    "PackedExpertWeights",
    "SharedExpertOutput",
    "StackedExpertWeights",
    "UnreducedExpertOutput",
    "combine_experts",
    "fused_moe",
    "grouped_down",
    "grouped_up",
    "tile_for",
    "unreduced_experts",
]
