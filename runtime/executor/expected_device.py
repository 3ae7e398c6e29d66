"""The device and dtype that an engine would run with, for who only describes: where that is plain, without torch."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path
from typing import NamedTuple

from ..layers import compiled_kernels
from ..layers.number_formats import FLOATS
from .cpu_flags import bfloat16_flags

DRIVER = "libcuda.so.1"
NO_GPU = re.compile(r"^(cuda|hip)\b[^=\n]*= *None\b", re.MULTILINE)  # in torch/version.py


class ExpectedDevice(NamedTuple):
    """name: of the device.  dtype: both as torch writes them."""

    name: str
    dtype: str

    @property
    def type(self) -> str:
        return self.name.partition(":")[0]


def expected_device(device: str = "auto", dtype: str = "auto") -> ExpectedDevice:
    """What `choose_device` chooses. Raises ConfigError as it does."""
    on_cpu = device == "cpu" or (device == "auto" and "torch" not in sys.modules and torch_sees_no_gpu())
    kind = (dtype if dtype in FLOATS else _plain_dtype() if dtype == "auto" else None) if on_cpu else None
    if kind is not None:
        return ExpectedDevice("cpu", kind)
    from .device_choice import choose_device

    choice = choose_device(device, dtype, threads=1)
    return ExpectedDevice(str(choice.device), str(choice.dtype).removeprefix("torch."))


def _plain_dtype() -> str | None:
    """Of a CPU; None: torch must be asked, or products measured."""
    if not bfloat16_flags():
        return "float32"
    fast = compiled_kernels.multiplies("bfloat16") and compiled_kernels.isa_variant("bfloat16") in ("AVX-512", "AMX")
    return "bfloat16" if fast else None


def torch_sees_no_gpu() -> bool:
    """Whether `torch.cuda.is_available()` must say no: torch was built without GPUs, or no driver is there."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        built = {found[1] for found in NO_GPU.finditer(Path(spec.origin).with_name("version.py").read_text())}
    except OSError:
        built = set()
    return built == {"cuda", "hip"} or ("hip" in built and not _has_driver())


def _has_driver() -> bool:
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return not sys.platform.startswith("linux")
    return True
