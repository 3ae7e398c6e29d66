"""Compiled kernels for small batches on a CPU (runtime/csrc), if a compiler was available when the package was built.

`kernels` is None if they are absent or switched off by SGL_CPU_KERNELS=0; every caller then uses torch's own
operations, which compute the same up to rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import compiled_kernels
from .compiled_kernels import ACTIVATIONS as ACTIVATIONS

KINDS = {torch.float32: 0, torch.bfloat16: 1}
NORMS = {"rms": 1, "layer": 2}
NORM = np.dtype([("weight", "i8"), ("bias", "i8"), ("kind", "i8"), ("eps", "f8")])  # the struct Norm

kernels: Any = compiled_kernels.kernels
if kernels is not None:
    kernels.set_threads(torch.get_num_threads())
MOST_DIM, MOST_ROW, BLOCK = map(compiled_kernels.limit, ("MOST_DIM", "MOST_ROW", "BLOCK"))
STEP_ROWS = compiled_kernels.limit("STEP_ROWS")  # of a compiled step that are computed at a time
HUGE_PAGE = 2 * 2**20  # bytes, of x86
most_numbers: float = 2**21  # of a tensor up to which a kernel on one thread beats torch on all of them


def can_compute(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels are there for tensors of this kind."""
    return kernels is not None and device.type == "cpu" and dtype in KINDS


def can_multiply(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of this kind are available, on a CPU with the instructions that make them fast."""
    if not can_compute(dtype, device):
        return False
    return bool(kernels.FLOAT32 if dtype == torch.float32 else kernels.BFLOAT16)


def isa_variant(dtype: torch.dtype) -> str:
    """The instruction set of products with float32 or bfloat16 weights."""
    return compiled_kernels.isa_variant(str(dtype).removeprefix("torch."))


def has_tiles(dtype: torch.dtype) -> bool:
    """Whether attention takes tiles of queries, by AVX-512."""
    return kernels is not None and bool(kernels.AVX512 if dtype == torch.float32 else kernels.NATIVE_BFLOAT16)


def supports_many_queries(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the compiled attention is used for extends of any length: with tiles of queries, where torch is no
    faster.
    """
    return has_tiles(dtype) and head_dim % kernels.CHUNK == 0


def huge_page_bytes(size: int) -> Tensor:
    """uint8 [size], not yet written, on huge pages where the system gives them."""
    space = torch.empty(size + HUGE_PAGE, dtype=torch.uint8)
    kernels.use_huge_pages(space.data_ptr(), size + HUGE_PAGE)
    start = -space.data_ptr() % HUGE_PAGE
    return space[start : start + size]


def row_addresses(part: Tensor) -> np.ndarray:
    """int64 [rows], where the rows of a tensor in main memory begin."""
    return part.data_ptr() + np.arange(len(part)) * (part.stride(0) * part.itemsize)


def call(kernel: Any, *words: int) -> None:
    """kernel: one that takes a struct of whole numbers and addresses."""
    kernel(np.array(words, np.int64).tobytes())


def pack_rows(part: Tensor, to: int, stride: int, unit: int) -> None:
    """part [out, ...] into blocks of outputs: the next unit of all of a block's rows, then the one after it.

    to: the address in the first block.  stride: bytes from block to block.  unit: bytes.
    """
    flat = part.contiguous().flatten(1)
    rows, units = row_addresses(flat), flat.shape[1] * flat.itemsize // unit
    call(kernels.pack_rows, rows.ctypes.data, to, stride, len(rows), units, unit)


def norm_struct(kind: str, weight: Tensor, bias: Tensor | None, eps: float) -> np.ndarray:
    """The struct Norm of the current tensors. weight, bias: float32."""
    return np.array((weight.data_ptr(), 0 if bias is None else bias.data_ptr(), NORMS[kind], eps), NORM)


def supports(x: Tensor) -> bool:
    """Whether the row by row kernels, which use one thread, are used for x: if they are the fastest."""
    return kernels is not None and x.dtype in KINDS and x.numel() <= most_numbers and x.device.type == "cpu"


def cover_all_sizes() -> None:
    """From here on `supports` holds whatever the size, in the whole process: the bits of a row do not depend on it."""
    global most_numbers
    most_numbers = float("inf")


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Torch's operations that this thread calls use no other thread: where the cores are busy with the kernels or with
    reading, torch's threads wait for each other many times as long as one of them computes.
    """
    threads = torch.get_num_threads()  # of this thread; the last number that was set is also that of new threads
    torch.set_num_threads(1)
    setting = threading.Thread(target=torch.set_num_threads, args=(threads,), name="sgl-torch-threads")
    setting.start()
    setting.join()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def set_threads(threads: int) -> None:
    if kernels is not None:
        kernels.set_threads(threads)
