"""Scales as files have them, as numbers of a dtype that holds them, laid out for `QuantizedWeight`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from .weight_reader_match import QuantizedModule, Shape

if TYPE_CHECKING:
    from torch import Tensor


class ScaleBlock(NamedTuple):
    """How many outputs and inputs of a weight share one scale; the last ones may be fewer."""

    rows: int
    inputs: int

    def grid(self, weight: tuple[int, int]) -> tuple[int, int]:
        return -(-weight[0] // self.rows), -(-weight[1] // self.inputs)

    def expanded(self, scale: Tensor, weight: tuple[int, int]) -> Tensor:
        """A scale of any rank -> [out, groups], a number of `QuantizedWeight`."""
        numbers = plain(scale).reshape(self.grid(weight))
        return numbers if self.rows == 1 else numbers.repeat_interleave(self.rows, 0)[: weight[0]].contiguous()


def reach_of(module: QuantizedModule, name: str, weight: tuple[int, int], blocks: list[ScaleBlock]) -> ScaleBlock:
    """What a scale's shape says: one for all, one an output, one a block of a known size, one a group of inputs."""
    found = module.siblings[name].shape
    known = [ScaleBlock(*weight), ScaleBlock(1, weight[1]), *blocks]
    if len(found) == 2 and found[0] == weight[0] and found[1] > 1 and weight[1] % found[1] == 0:
        known.append(ScaleBlock(1, weight[1] // found[1]))
    if weight[0] % 2 == 0:
        known.append(ScaleBlock(weight[0] // 2, weight[1]))  # gate and up in one matrix
    for alike in (_same, _same_but_ones):
        for reach in known:
            if alike(found, reach.grid(weight)):
                return reach
    expected = " or ".join(str(list(reach.grid(weight))) for reach in known[: 2 + len(blocks)])
    raise module.wrong(name, f"fits no weight {list(weight)}: expected {expected}; convert the checkpoint again")


def _same(found: Shape, grid: Shape) -> bool:
    return found == grid


def _same_but_ones(found: Shape, grid: Shape) -> bool:
    return [size for size in found if size != 1] == [size for size in grid if size != 1]


def plain(scale: Tensor) -> Tensor:
    """A scale in a dtype of `QuantizedWeight`, without rounding: exponents in bfloat16, e4m3 in float16, the others as
    they are.
    """
    import torch

    if scale.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return _powers().to(scale.device)[scale.view(torch.uint8).int()]
    return scale.half() if scale.dtype == torch.float8_e4m3fn else scale


@cache
def _powers() -> Tensor:
    """bfloat16 [256]: 2^(byte - 127); the last one is NaN. float16 ends at 2^15."""
    import torch

    return torch.tensor([*(2.0 ** (byte - 127) for byte in range(255)), float("nan")]).bfloat16()
