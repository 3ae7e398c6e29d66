"""Kernels compiled ahead of use, several at a time, and the seconds spent waiting for compilation."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

THREADS = 16  # that compile at once

_here = threading.local()  # .jobs: of the thread that rehearses; .waited: seconds that the thread has compiled
_all_threads: list[None] = []  # one for each kernel that was compiled


def entry(kernel: Any) -> Any:
    """Marks a Triton kernel that the host launches: within `compiling`, a launch has it compiled and does not run
    it."""
    launch = kernel.run

    def run(*args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        jobs: KernelCompileJobs | None = getattr(_here, "jobs", None)
        if jobs is None:
            return launch(*args, grid=grid, warmup=warmup, **options)
        return jobs.add(launch, args, options)

    kernel.run = run
    return kernel


class KernelCompileJobs:
    """Kernels that are being compiled, each kind of launch once."""

    def __init__(self, device: torch.device, threads: int) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(threads, "sgl-compiler")
        self._seen: dict[Any, Future[None]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, launch: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        key = (launch, *map(_kind, args), *((name, _kind(value), _plain(value)) for name, value in options.items()))
        if key not in self._seen:
            self._seen[key] = self._pool.submit(self._compile, launch, args, options)

    def _compile(self, launch: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            launch(*args, grid=(1,), warmup=True, **options)

    def wait(self) -> None:
        """Raises what a compilation raised."""
        try:
            for job in self._seen.values():
                job.result()
        finally:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def compiling(jobs: KernelCompileJobs) -> Iterator[None]:
    """Within, the kernels that this thread launches are compiled by `jobs` and do not run: their outputs are
    undefined.
    """
    _here.jobs = jobs
    try:
        yield
    finally:
        _here.jobs = None


@contextmanager
def compiled_in_parallel(device: torch.device) -> Iterator[KernelCompileJobs]:
    """As `compiling`, by threads; at the end all is compiled. Raises what a compilation raised."""
    jobs = KernelCompileJobs(device, min(THREADS, os.cpu_count() or 1))
    with compiling(jobs):
        yield jobs
    jobs.wait()


def is_compiling() -> bool:
    """Whether this thread is within `compiling`."""
    return getattr(_here, "jobs", None) is not None


def seconds_waited() -> float:
    """Seconds that this thread has spent compiling kernels, or loading them from Triton's cache."""
    return getattr(_here, "waited", 0.0)


def kernels_compiled() -> int:
    """Kernels that this process has compiled, or loaded from Triton's cache, since `listen`."""
    return len(_all_threads)


def listen() -> None:
    """Begin to count for `seconds_waited`, in addition to other listeners of Triton."""
    from triton import knobs

    if getattr(knobs.compilation.listener, "counts", False):
        return
    before = knobs.compilation.listener

    def on_compiled(**about: Any) -> None:
        _all_threads.append(None)
        _here.waited = seconds_waited() + about["times"].total / 1e6  # microseconds
        if before is not None:
            before(**about)

    on_compiled.counts = True  # type: ignore[attr-defined]
    knobs.compilation.listener = on_compiled


def _kind(value: Any) -> Any:
    """The specialization key of a kernel argument: one for all values that Triton compiles alike."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and not isinstance(value, bool):
        return int, value == 1, value % 16 == 0, -(2**31) <= value < 2**31
    if hasattr(value, "block_shape"):
        return value.base.dtype, tuple(value.block_shape)
    return type(value)


def _plain(value: Any) -> Any:
    """A constant is specialised on its value."""
    return value if isinstance(value, bool | int | float | str | tuple | None) else None
