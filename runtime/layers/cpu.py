"""Compiled kernels for few rows on a CPU (cpu.c), where a compiler was at hand when the package was built.

`kernels` is None where they are absent or switched off by SGL_CPU_KERNELS=0; every caller then uses torch's
own operations, which compute the same up to rounding.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

KINDS = {torch.float32: 0, torch.bfloat16: 1}


def _load() -> ModuleType | None:
    if os.environ.get("SGL_CPU_KERNELS") == "0":
        return None
    try:
        from . import _cpu  # type: ignore[attr-defined]
    except ImportError as error:
        logging.getLogger(__name__).info(
            "no compiled CPU kernels (%s): decoding runs on torch operations", error
        )
        return None
    _cpu.set_threads(torch.get_num_threads())
    return _cpu


kernels: Any = _load()
MOST_DIM: int = kernels.MOST_DIM if kernels else 0
BLOCK: int = kernels.BLOCK if kernels else 0
HUGE_PAGE = 2 * 2**20  # bytes, of x86
AMX_FROM = 33  # rows of bfloat16 from which oneDNN on tiles is left to do what ours could (measured on Sapphire Rapids)
most_numbers: float = 2**21  # of a tensor up to which a kernel on one thread beats torch on all of them


def can_compute(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels are there for tensors of this kind."""
    return kernels is not None and device.type == "cpu" and dtype in KINDS


def can_multiply(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of this kind are there, on a CPU with the instructions that make them fast."""
    if not can_compute(dtype, device):
        return False
    return bool(kernels.AVX512 if dtype == torch.float32 else kernels.NATIVE_BFLOAT16)


def most_rows(dtype: torch.dtype) -> int | None:
    """Of the compiled product, where torch's is faster for more; None where it never is."""
    return AMX_FROM - 1 if dtype == torch.bfloat16 and kernels.AMX else None


def huge_space(size: int) -> Tensor:
    """uint8 [size], not yet written, on huge pages where the system gives them."""
    space = torch.empty(size + HUGE_PAGE, dtype=torch.uint8)
    kernels.use_huge_pages(space.data_ptr(), size + HUGE_PAGE)
    start = -space.data_ptr() % HUGE_PAGE
    return space[start : start + size]


def suits(x: Tensor) -> bool:
    """Whether the row by row kernels, which use one thread, are to be taken for x: where they are the fastest."""
    return kernels is not None and x.dtype in KINDS and x.numel() <= most_numbers and x.device.type == "cpu"


def take_every_size() -> None:
    """From here on `suits` holds whatever the size, in the whole process: the bits of a row do not depend on it."""
    global most_numbers
    most_numbers = float("inf")


def set_threads(threads: int) -> None:
    if kernels is not None:
        kernels.set_threads(threads)
