"""The instruction sets of the CPU, as the system lists them."""

from __future__ import annotations

from pathlib import Path

BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # x86, x86, Arm
CPU_INFO = Path("/proc/cpuinfo")


def bfloat16_flags() -> list[str]:
    """The instructions for bfloat16 that the CPU has."""
    there = cpu_flags()
    return [flag for flag in BFLOAT16_FLAGS if flag in there]


def cpu_flags() -> frozenset[str]:
    """Instruction set flags of the first CPU, where the system tells them."""
    try:
        with CPU_INFO.open() as lines:  # a part for each CPU: the first one is enough
            named = (line.partition(":") for line in lines)
            return next(
                (frozenset(flags.split()) for name, _, flags in named if name.strip() in ("flags", "Features")),
                frozenset(),
            )
    except OSError:
        return frozenset()
