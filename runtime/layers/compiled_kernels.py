"""The compiled kernels (runtime/csrc) and what they can compute on this CPU. `cpu_kernels` calls them with tensors.

`kernels` is None if they are absent or switched off by SGL_CPU_KERNELS=0. Importing this does not import torch.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import Any

VERSION = 24  # of what the kernels are called with
AMX = os.environ.get("SGL_AMX") != "0"  # whether it is used where the CPU has it
KINDS = {"float32": 0, "bfloat16": 1}
WAYS = ("torch", "AVX2", "AVX-512", "AMX")  # of products, see csrc/gemm/dense_gemm.h
BY_AVX512, BY_AMX = 2, 3
ACTIVATIONS = {name: number for number, name in enumerate(("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"))}


def _load() -> ModuleType | None:
    if os.environ.get("SGL_CPU_KERNELS") == "0":
        return None
    try:
        from . import _cpu  # type: ignore[attr-defined]
    except ImportError as error:
        logging.getLogger(__name__).info("no compiled CPU kernels (%s): decoding runs on torch operations", error)
        return None
    if getattr(_cpu, "VERSION", 1) != VERSION:
        logging.getLogger(__name__).warning("the compiled CPU kernels were built from other sources: build sgl again")
        return None
    if _cpu.BFLOAT16 == BY_AMX and not AMX:
        _cpu.set_dense_way(KINDS["bfloat16"], BY_AVX512)
    return _cpu


kernels: Any = _load()


def limit(name: str) -> int:
    """A size up to which the kernels compute, by its name there; 0 without them."""
    return int(getattr(kernels, name)) if kernels is not None else 0


def multiplies(dtype: str) -> bool:
    """Whether products of float32 or bfloat16 are there, on a CPU with the instructions that make them fast."""
    return kernels is not None and dtype in KINDS and bool(_way(dtype))


def isa_variant(dtype: str) -> str:
    """The instruction set of products with float32 or bfloat16 weights."""
    return WAYS[_way(dtype) if AMX else min(_way(dtype), BY_AVX512)]


def supports_convolution(width: int, activation: str | None) -> bool:
    """Whether they have such a convolution."""
    return kernels is not None and width <= limit("MOST_SEEN") and (activation is None or activation in ACTIVATIONS)


def _way(dtype: str) -> int:
    return int(kernels.FLOAT32 if dtype == "float32" else kernels.BFLOAT16)
