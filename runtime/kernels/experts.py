"""What the chosen experts of tokens give: gathered products for few rows, sorted blocks for more. See models/experts.py, the law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from . import expert_few_bits
from . import expert_kernels as kernels
from .expert_blocks import Blocks, sorted_blocks
from .expert_parts import Besides, Choice, PackedWeights, Stacks, Weights
from .matmul import can_multiply, capability
from .one_row_launch import Launch, best_launch
from .routing import launched

FEW_ROWS = 8  # up to which weights are gathered: from there on rows share experts
MOST_ROWS = 8192  # at a time, so that what lies between the products stays small
GROUP = 8  # blocks that go through an expert's outputs together
COMBINED = 1024  # outputs that a program adds


@dataclass(frozen=True, slots=True)
class Tile:
    """rows x outputs of a program, `depth` inputs at a time; of a gate as many outputs again.  described: the weight by descriptors."""

    rows: int
    outputs: int
    depth: int
    stages: int
    warps: int
    described: bool = True


SMALL = Tile(64, 64, 32, 3, 4, described=False)  # of any device
FIXED = Tile(64, 64, 64, 4, 4)
TILES = {  # by the rows that an expert has, of a Hopper GPU: a block has room for most experts' rows, as each block reads the weight anew
    4: Tile(16, 64, 128, 3, 4),
    12: Tile(32, 64, 128, 3, 4),
    48: Tile(64, 64, 64, 4, 4),
}
MANY = Tile(128, 128, 64, 4, 8)


def tile_for(pairs: int, experts: int, dtype: torch.dtype, device: tuple[int, int], fixed: bool = False) -> Tile:
    """fixed: one for any number of pairs, so that a row's bits do not depend on it.  device: its capability."""
    if device[0] != 9 or dtype == torch.float32:
        return SMALL
    if fixed:
        return FIXED
    return next((tile for most, tile in TILES.items() if pairs <= most * experts), MANY)


def mixture(
    x: Tensor, stacks: Stacks, choice: Choice, besides: Besides | None = None, *, fixed: bool = False, overlap: bool = False
) -> Tensor:
    """x [T, hidden] -> [T, hidden]: the sum of what each row's experts give, in the order of choice, and of `besides`.

    fixed: a row's bits do not depend on the other rows.  overlap: see `one_row`.
    """
    besides = besides or Besides()
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if besides.x is None else besides.x
    packed = isinstance(stacks.gate_up, PackedWeights)
    if len(x) <= FEW_ROWS and not fixed and not packed:
        return _gathered(x, stacks, choice, besides, out, overlap) if len(x) else out
    for start in range(0, len(x), MOST_ROWS):
        part = slice(start, start + MOST_ROWS)
        own = Choice(choice.experts[part], choice.weights[part], choice.of_input)
        each = _in_few_bits(x[part], stacks, own, fixed, overlap) if packed else _sorted(x[part], stacks, own, fixed)
        add_up(each, own, Besides(*(None if given is None else given[part] for given in besides)), out[part])
    return out


def _gathered(x: Tensor, stacks: Stacks, choice: Choice, besides: Besides, out: Tensor, overlap: bool) -> Tensor:
    inner = gather_up(x, stacks, choice, overlap=overlap)
    return gather_down(inner, stacks, choice, besides, out, overlap=overlap)


def gather_up(x: Tensor, stacks: Stacks, choice: Choice, launch: Launch | None = None, overlap: bool = False) -> Tensor:
    """activation(gate) * up of every pair [T * k, inner], each by programs of its own."""
    assert isinstance(stacks.gate_up, Weights)
    (weight, bias), inner, pairs = stacks.gate_up, stacks.inner, choice.experts.numel()
    out = x.new_empty(pairs, inner)
    launch = launch or best_launch(2 * inner, x.shape[1])
    kernels.gather_up[triton.cdiv(2 * inner, launch.rows), pairs](
        x, weight, x if bias is None else bias, choice.experts, choice.weights, out, x.stride(0), inner, stacks.limit or 0.0,
        TOP=choice.top_k, NAME=stacks.name, LIMITED=stacks.limit is not None, BIASED=bias is not None, WEIGHED=choice.of_input,
        **_cut(weight, launch, overlap),
    )  # fmt: skip
    return out


def gather_down(
    inner: Tensor, stacks: Stacks, choice: Choice, besides: Besides, out: Tensor, launch: Launch | None = None, overlap: bool = False
) -> Tensor:
    """Of what `gather_up` gives the sums [T, hidden], in `out`."""
    assert isinstance(stacks.down, Weights)
    (weight, bias), (rows, outputs) = stacks.down, out.shape
    launch = launch or best_launch(outputs, stacks.inner)
    kernels.gather_down[triton.cdiv(outputs, launch.rows), rows](
        inner, weight, inner if bias is None else bias, choice.experts, choice.weights, *_besides(besides, inner), out, outputs,
        TOP=choice.top_k, BIASED=bias is not None, WEIGHED=not choice.of_input, **_flags(besides), **_cut(weight, launch, overlap),
    )  # fmt: skip
    return out


def _cut(weight: Tensor, launch: Launch, overlap: bool) -> dict[str, Any]:
    """The keywords that the gathering kernels take."""
    size = weight.shape[2]
    block = min(launch.block, triton.next_power_of_2(size))
    cut = {"SIZE": size, "ROWS": launch.rows, "BLOCK": block, "VECTOR": min(16 // weight.element_size(), block), "DEPENDENT": overlap}
    cut |= {"num_warps": launch.warps} | ({"maxnreg": launch.registers} if launch.registers else {})
    return cut | launched(overlap)


def _sorted(x: Tensor, stacks: Stacks, choice: Choice, fixed: bool) -> Tensor:
    """What each pair gives, [T * k, hidden]."""
    assert isinstance(stacks.gate_up, Weights) and isinstance(stacks.down, Weights)
    tile = tile_for(choice.experts.numel(), stacks.count, x.dtype, capability(x.device), fixed)
    blocks = sorted_blocks(choice.experts, stacks.count, tile.rows)
    inner = grouped(x, stacks.gate_up, choice, blocks, tile, choice.top_k, stacks.name, stacks.limit)
    return grouped(inner, stacks.down, choice, blocks, tile)


def _in_few_bits(x: Tensor, stacks: Stacks, choice: Choice, fixed: bool, overlap: bool) -> Tensor:
    """The same; few rows are not sorted."""
    assert isinstance(stacks.gate_up, PackedWeights) and isinstance(stacks.down, PackedWeights)
    top, single = choice.top_k, len(x) <= FEW_ROWS and not fixed
    if choice.of_input:
        x, top = (x[:, None] * choice.weights[:, :, None].to(x.dtype)).flatten(0, 1), 1
    tile = expert_few_bits.tile_for(choice.experts.numel(), stacks.count, single, fixed)
    blocks = None if single else sorted_blocks(choice.experts, stacks.count, tile.rows)
    inner = expert_few_bits.product(x, stacks.gate_up, choice, blocks, tile, top, stacks.name, stacks.limit, overlap=overlap)
    return expert_few_bits.product(inner, stacks.down, choice, blocks, tile, overlap=overlap)


def grouped(
    x: Tensor, weights: Weights, choice: Choice, blocks: Blocks, tile: Tile, top: int = 1, name: str = "", limit: float | None = None
) -> Tensor:
    """Of every pair of the blocks x[pair / top] times its expert's weight, [pairs, outputs].

    name: of an activation: the weight holds gate above up, and activation(gate) * up is given, [pairs, outputs / 2].
    """
    (weight, bias), count, inputs = weights, choice.experts.numel(), x.shape[1]
    outputs = weight.shape[1] // 2 if name else weight.shape[1]
    out = x.new_empty(count, outputs)
    described = tile.described and can_multiply(inputs, x.dtype)
    flat = TensorDescriptor.from_tensor(weight.flatten(0, 1), [tile.outputs, tile.depth]) if described else weight
    kernels.grouped[(blocks.most * triton.cdiv(outputs, tile.outputs),)](
        x, flat, x if bias is None else bias, choice.weights, out, *blocks[:3], count, outputs, inputs, x.stride(0), limit or 0.0,
        TOP=top, NAME=name, LIMITED=limit is not None, BIASED=bias is not None, WEIGHED=choice.of_input and bool(name), DESCRIBED=described,
        EVEN=inputs % tile.depth == 0, ROWS=tile.rows, OUTPUTS=tile.outputs, DEPTH=tile.depth, GROUP=GROUP,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def add_up(each: Tensor, choice: Choice, besides: Besides, out: Tensor) -> None:
    """out [T, hidden] = the sums of what the pairs `each` [T * k, hidden] give."""
    rows, outputs = out.shape
    block = min(COMBINED, triton.next_power_of_2(outputs))
    kernels.combine[rows, triton.cdiv(outputs, block)](
        each, choice.weights, *_besides(besides, each), out, outputs,
        TOP=choice.top_k, BLOCK=block, WEIGHED=not choice.of_input, **_flags(besides), num_warps=4,
    )  # fmt: skip


def _besides(besides: Besides, none: Tensor) -> list[Tensor]:
    return [none if each is None else each for each in besides]


def _flags(besides: Besides) -> dict[str, bool]:
    return {"SHARED": besides.every is not None, "SWITCHED": besides.switch is not None, "ADDED": besides.x is not None}


__all__ = ["Besides", "Choice", "PackedWeights", "Stacks", "Tile", "Weights", "add_up", "gather_down", "gather_up", "grouped", "mixture", "tile_for"]
