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
MOST_ROWS: int = kernels.MOST_ROWS if kernels else 0
MOST_DIM: int = kernels.MOST_DIM if kernels else 0
most_numbers: float = 2**21  # of a tensor up to which a kernel on one thread beats torch on all of them


def can_compute(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels are there for tensors of this kind."""
    return kernels is not None and device.type == "cpu" and dtype in KINDS


def can_multiply(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the product for few rows is there for this kind: bfloat16 on a CPU that multiplies it natively."""
    return dtype == torch.bfloat16 and can_compute(dtype, device) and bool(kernels.NATIVE_BFLOAT16)


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
