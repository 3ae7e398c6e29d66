"""How the gemv kernels are divided into programs, by shape of the weight."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton


class GemvLaunch(NamedTuple):
    """Powers of 2. rows: of the weight a program owns, 2 at least; block: columns a step; warps: of a program.

    registers: most that a thread may use, 0: the compiler's choice.
    """

    rows: int
    block: int
    warps: int
    registers: int = 0


class GemvCut(NamedTuple):
    """What the kernels of `gemv_kernels` are compiled for. rows: see `GemvLaunch`; scaled: outputs have scales.

    block: inputs a step, of 4-bit weights blocks; vector: numbers that a thread reads at once.
    """

    inputs: int
    rows: int
    block: int
    vector: int
    scaled: bool


# By (outputs, inputs) of the weight, measured on an H200 inside chains of launches that overlap.
TUNED: dict[tuple[int, int], GemvLaunch] = {
    (6144, 4096): GemvLaunch(8, 1024, 2),
    (4096, 4096): GemvLaunch(4, 2048, 8),
    (28672, 4096): GemvLaunch(2, 2048, 4),
    (4096, 14336): GemvLaunch(4, 2048, 8, 64),
    (128256, 4096): GemvLaunch(4, 2048, 8),
    (6144, 2560): GemvLaunch(8, 512, 2),
    (2560, 4096): GemvLaunch(2, 1024, 4),
    (19456, 2560): GemvLaunch(2, 512, 1),
    (2560, 9728): GemvLaunch(2, 2048, 8),
    (151936, 2560): GemvLaunch(4, 512, 1),
    (2048, 768): GemvLaunch(2, 1024, 2),
    (2048, 4096): GemvLaunch(4, 2048, 8),
    (5120, 2048): GemvLaunch(4, 512, 1),
    (151936, 2048): GemvLaunch(4, 512, 1),
    (2048, 2048): GemvLaunch(4, 1024, 2),
    (1280, 2048): GemvLaunch(4, 1024, 2, 128),
    (2048, 1024): GemvLaunch(4, 1024, 2),
    (1536, 4096): GemvLaunch(4, 2048, 4, 128),
    (4096, 1024): GemvLaunch(8, 512, 2),
    (7168, 4096): GemvLaunch(4, 1024, 2, 128),
    (4096, 3584): GemvLaunch(4, 2048, 8),
    (32064, 4096): GemvLaunch(2, 2048, 4),
    (3072, 4096): GemvLaunch(8, 1024, 4),
    (4096, 2048): GemvLaunch(4, 1024, 4),
    (14336, 4096): GemvLaunch(8, 512, 2),
    (4096, 7168): GemvLaunch(4, 2048, 4),
    (64128, 4096): GemvLaunch(4, 2048, 8, 64),
    (2560, 8192): GemvLaunch(4, 1024, 2),
    (8192, 2048): GemvLaunch(4, 512, 1),
    (14336, 8192): GemvLaunch(2, 1024, 2),
    (8192, 7168): GemvLaunch(4, 4096, 8),
    (32064, 8192): GemvLaunch(2, 1024, 2),
    (5120, 8192): GemvLaunch(4, 1024, 2),
    (8192, 4096): GemvLaunch(4, 2048, 8),
    (28672, 8192): GemvLaunch(2, 1024, 2),
    (8192, 14336): GemvLaunch(4, 4096, 8),
    (64128, 8192): GemvLaunch(4, 512, 1),
}


TUNED_FP8: dict[tuple[int, int], GemvLaunch] = {
    (6144, 4096): GemvLaunch(4, 2048, 4),
    (4096, 4096): GemvLaunch(4, 2048, 4),
    (28672, 4096): GemvLaunch(4, 4096, 4),
    (4096, 14336): GemvLaunch(4, 2048, 8),
}


def best_launch(outputs: int, inputs: int, weight_bytes: int = 2) -> GemvLaunch:
    """The measured launch of a weight [outputs, inputs] of so many bytes a number, or a sound default."""
    if weight_bytes == 1:
        return TUNED_FP8.get((outputs, inputs)) or _as_many_bytes(best_launch(outputs, inputs), inputs)
    return TUNED.get((outputs, inputs)) or _default_launch(outputs, inputs)


def _default_launch(outputs: int, inputs: int) -> GemvLaunch:
    if outputs > inputs:
        block = min(1024, block_of(inputs))
        return GemvLaunch(4, block, max(1, block // 512), 128)
    block = block_of(inputs)
    warps = min(8, max(1, block // 256))
    return GemvLaunch(4 if outputs >= 4096 else 2, block, warps, 64 if warps == 8 else 0)


def _as_many_bytes(launch: GemvLaunch, inputs: int) -> GemvLaunch:
    """The launch for numbers of half the size: twice as many columns a step if they divide and registers are not
    limited.
    """
    return launch if launch.registers or inputs % (2 * launch.block) else launch._replace(block=2 * launch.block)


def block_of(inputs: int) -> int:
    """Up to 2048 columns: a power of 2 that divides `inputs` if that is no less than 512."""
    divisor = min(2048, inputs & -inputs)
    return divisor if divisor >= 512 else min(1024, triton.next_power_of_2(inputs))


BITS_AT_ONCE = 2048  # inputs a step, of 4-bit weights
TUNED_BITS: dict[tuple[int, int], GemvLaunch] = {  # where the default is not the best
    (4096, 4096): GemvLaunch(16, 4096, 4),
    (128256, 4096): GemvLaunch(8, 2048, 2, 128),
}


def best_4bit_launch(outputs: int, inputs: int, block: int) -> GemvLaunch:
    """The same for a 4-bit weight in blocks of so many inputs; `GemvLaunch.block` counts inputs, whole blocks of
    them.
    """
    tuned = TUNED_BITS.get((outputs, inputs))
    if tuned is not None and tuned.block >= block:
        return tuned
    blocks = triton.cdiv(inputs, block)
    many = max(4, min(BITS_AT_ONCE // block, blocks & -blocks))
    return GemvLaunch(8 if outputs >= 4096 else 4, many * block, max(1, many * block // 1024))


class TensorCoreCut(NamedTuple):
    """What the kernels of `gemv_tensor_core_kernels` are compiled for. rows, warps: see `TensorCoreGemvLaunch`.

    half: see `tiles_of`.  ring: steps that fit in shared memory, one of them in use.  only_tile: no program has a
    further one.
    """

    rows: int
    warps: int
    half: int
    programs: int
    ring: int
    only_tile: bool


class TensorCoreGemvLaunch(NamedTuple):
    """Powers of 2.

    rows: outputs of a tile, 16 at least; warps: which split its inputs, 4 at least; full: programs a multiprocessor.
    registers: as in `GemvLaunch`.
    """

    rows: int
    warps: int
    full: int
    registers: int = 0

    def cut(self, outputs: int, half: int, inputs: int, pieces: int, processors: int) -> TensorCoreCut:
        """If a program has several tiles the steps of its ring divide those of one.  For the rest see
        `programs_and_depth`.
        """
        programs, depth = self.programs_and_depth(outputs, half, inputs, pieces, processors)
        steps, only = steps_of(inputs, self.warps), tiles_of(outputs, half, self.rows) <= programs
        ring = max(2, min(depth, steps)) if only else divisor(steps, depth)
        return TensorCoreCut(self.rows, self.warps, half, programs, ring, only)

    def programs_and_depth(self, outputs: int, half: int, inputs: int, pieces: int, processors: int) -> tuple[int, int]:
        """Programs, which have about equally many tiles each, and how many steps of one fit in shared memory at most.

        If the ring of steps would not divide evenly, it is a program for each tile.  half: see `tiles_of`.  pieces:
        groups in a block.
        """
        tiles, steps = tiles_of(outputs, half, self.rows), steps_of(inputs, self.warps)
        programs = triton.cdiv(tiles, triton.cdiv(tiles, self.full * processors))
        depth = self._depth(programs, steps, pieces, processors)
        return (programs, depth) if divisor(steps, depth) else (tiles, self._depth(tiles, steps, pieces, processors))

    def _depth(self, programs: int, steps: int, pieces: int, processors: int) -> int:
        """As many as the programs that share a multiprocessor have shared memory for."""
        beside = min(self.full, triton.cdiv(programs, processors))
        x = steps * self.warps * BLOCK_BYTES
        return max(
            2, min(DEEPEST, (SHARED // beside - SPARE - x) // (self.warps * self.rows * (WORDS_BYTES + 4 * pieces)))
        )


SHARED, SPARE = 227 * 1024, 6 * 1024  # bytes of a multiprocessor; what a program needs in addition to the figures below
BLOCK_BYTES, WORDS_BYTES = (
    128 * 2 + 4 * 4,
    64,
)  # of x in a block of 128 inputs with the sums of its quarters; of an output's words in it
DEEPEST = 8  # steps of a program in flight


@triton.constexpr_function
def tiles_of(outputs: int, half: int, rows: int) -> int:
    """Of `rows` outputs; half: if not 0, outputs are heads of twice that, and a tile has as many of each half."""
    return -(-outputs // rows) if not half else outputs // (2 * half) * -(-half // (rows // 2))


@triton.constexpr_function
def steps_of(inputs, warps):
    """In each step every warp has a block."""
    return -(-inputs // (128 * warps))


def divisor(steps, depth):
    """The largest up to `depth`, 2 at least; 0: there is none."""
    return next((count for count in range(depth, 1, -1) if steps % count == 0), 0)


def best_tensor_core_launch(inputs: int) -> TensorCoreGemvLaunch:
    """For a 4-bit weight that the tensor cores multiply.

    Measured on an H100 and an H200 in chains of layers of Llama-3.1-8B's and 70B's shape.
    """
    if inputs < 2048:
        return TensorCoreGemvLaunch(16, 4, 3)
    return TensorCoreGemvLaunch(
        32 if inputs < 8192 else 16, 8, 2
    )  # with many inputs, x takes the memory that as deep a ring of more outputs would need


@cache
def has_room(device: torch.device) -> bool:
    """Whether the device has the shared memory for `TensorCoreGemvLaunch`es (Hopper and later server GPUs)."""
    if device.type != "cuda":
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    return triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"] >= SHARED
