"""Which device, dtype and thread count to run with, found out by looking and measuring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ..errors import ConfigError
from ..layers import cpu_kernels
from ..layers.linear_layers import Linear, can_pack_bfloat16
from ..layers.number_formats import FLOATS
from . import cpu_flags

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in FLOATS}
WORTH_ROUNDING = 0.8  # bfloat16 takes half the memory: at this part of the speed of float32 it is still chosen
PASSES = 8  # over the products that are measured, of which the best one counts
WORTH_THREADS = 1.5  # several threads this much slower than one are not used
CGROUP = Path("/sys/fs/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What the engine runs with; `reasons` says why, a line each."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def is_gpu_device(device: str) -> bool:
    """Whether an engine with this option would run on a GPU."""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def gpu_device_choice(device: torch.device) -> AbstractContextManager[object]:
    """Kernels that this thread launches find the tensors of this device, whichever GPU is the current one."""
    return torch.cuda.device(device) if device.type == "cuda" and device.index is not None else nullcontext()


def apply_threads(threads: int) -> None:
    """Give torch's operations `threads` threads. The only place that touches this process-wide setting."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    cpu_kernels.set_threads(threads)


def choose_device(device: str = "auto", dtype: str = "auto", threads: int | None = None) -> DeviceChoice:
    """Settle what is "auto" or None; on the CPU this times a few products (some ms).

    Raises ConfigError for a device that is not there or a dtype that is unknown.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype!r} is unknown; use auto, {', '.join(DTYPES)}")
    chosen, why_device = _device(device)
    before = torch.get_num_threads()
    if dtype != "auto":
        kind, why_dtype = DTYPES[dtype], f"dtype {dtype}: as asked"
    elif chosen.type == "cpu":
        kind, why_dtype = _cpu_dtype()
    else:
        kind, why_dtype = _accelerator_dtype(chosen)
    count, why_threads = _threads(threads, chosen, kind)
    apply_threads(before)
    return DeviceChoice(chosen, kind, count, (why_device, why_threads, why_dtype))


def named_device(name: str) -> torch.device:
    """Raises ConfigError for a name that torch does not know, and for a GPU that is not there."""
    return _device(name)[0]


def _device(name: str) -> tuple[torch.device, str]:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device()), f"device cuda: {torch.cuda.get_device_name()}"
        return torch.device("cpu"), "device cpu: torch sees no CUDA device"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is not a device name; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={name!r}: torch sees {torch.cuda.device_count()} CUDA devices; use another or 'cpu'")
    return device, f"device {name}: as asked"


def _accelerator_dtype(device: torch.device) -> tuple[torch.dtype, str]:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16, "dtype bfloat16: native on this GPU"
    return torch.float16, "dtype float16: this device computes no bfloat16 natively"


def _threads(requested: int | None, device: torch.device, dtype: torch.dtype) -> tuple[int, str]:
    if requested is not None:
        return requested, f"threads {requested}: as asked"
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = physical_cores(allowed)
    quota = cpu_quota()
    threads = max(1, cores if quota is None else min(cores, int(quota)))
    if device.type == "cpu" and threads > 1 and (slowdown := _slowdown(dtype, threads)) > WORTH_THREADS:
        return 1, f"threads 1: {threads} measured {slowdown:.1f}x slower, other work holds the cores"
    limit = "no quota" if quota is None else f"a quota of {quota:g} CPUs"
    return threads, f"threads {threads}: {len(allowed)} usable CPUs on {cores} physical cores, {limit}"


def physical_cores(cpus: list[int] | range) -> int:
    """How many cores the logical CPUs `cpus` sit on; hyper-threads of one core count once."""
    siblings = set()
    for number in cpus:
        path = TOPOLOGY / f"cpu{number}/topology/thread_siblings_list"
        siblings.add(_read(path) or str(number))
    return len(siblings)


def cpu_quota(root: Path = CGROUP) -> float | None:
    """CPUs' worth of time that the control group (v2, then v1) grants, None without a limit."""
    pairs = [(_read(root / "cpu.max") or "").split()]
    pairs.append([_read(root / f"cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")])
    for pair in pairs:
        if len(pair) == 2 and pair[0].isdigit() and pair[1].isdigit() and int(pair[1]):
            return int(pair[0]) / int(pair[1])
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _slowdown(dtype: torch.dtype, threads: int) -> float:
    """How many times longer a product takes on `threads` threads than on one: far above 1 on a busy machine.

    The first pass on all threads that is fast enough is the last one.
    """
    pass_time = _timed_products(dtype, 32)
    apply_threads(1)
    alone = min(pass_time() for _ in range(PASSES))
    apply_threads(threads)
    best = float("inf")
    for _ in range(PASSES):
        best = min(best, pass_time())
        if best <= WORTH_THREADS * alone:
            break
    return best / alone


def _cpu_dtype() -> tuple[torch.dtype, str]:
    native = cpu_flags.bfloat16_flags()
    if not native or not can_pack_bfloat16():
        return torch.float32, "dtype float32: this CPU has no bfloat16 instructions"
    flags = ", ".join(native)
    if cpu_kernels.can_multiply(torch.bfloat16, torch.device("cpu")):
        by = cpu_kernels.isa_variant(torch.bfloat16)
        return torch.bfloat16, f"dtype bfloat16: half the bytes of float32, compiled products by {by} ({flags})"
    one, many = _gains()
    name = "bfloat16" if (one * many) ** 0.5 > WORTH_ROUNDING else "float32"
    why = f"bfloat16 measured {one:.1f}x as fast as float32 for 1 row, {many:.1f}x for 32 rows ({flags})"
    return DTYPES[name], f"dtype {name}: {why}"


@cache
def _gains() -> tuple[float, float]:
    """How many times as fast torch multiplies bfloat16 as float32, for 1 row and for 32.

    Measured once, so that all engines of a process choose alike.
    """
    apply_threads(1)  # a ratio is wanted, which other work on the cores must not disturb
    one, many = (_seconds(torch.float32, rows) / _seconds(torch.bfloat16, rows) for rows in (1, 32))
    return one, many


def _seconds(dtype: torch.dtype, rows: int) -> float:
    """Best time of one pass over the products."""
    pass_time = _timed_products(dtype, rows)
    return min(pass_time() for _ in range(PASSES))


def _timed_products(dtype: torch.dtype, rows: int) -> Callable[[], float]:
    """Gives the seconds of one pass over three of a small model's largest products."""
    layers = [_filled(dtype) for _ in range(3)]
    x = torch.ones(rows, 512, dtype=dtype)

    @torch.inference_mode()
    def pass_time() -> float:
        started = time.perf_counter()
        for layer in layers:
            layer(x)
        return time.perf_counter() - started

    return pass_time


@torch.inference_mode()
def _filled(dtype: torch.dtype) -> Linear:
    layer = Linear.empty(1536, 512, False, dtype, torch.device("cpu"))
    layer.weight.fill_(0.5)
    return layer.seal()
