"""The roofline of this run: how fast the GPU copies, and how fast it multiplies in a burst and under a lasting load.

GPUs are capped in power. An H200 multiplies at 790 TFLOP/s for some milliseconds; then its clock falls to about
1,450 MHz at 690 W, and 650 to 700 TFLOP/s are left. Longer computations get the latter rate only.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from gpu_kernel_lab import Roof
from gpu_kernel_sizes import Sizes
from gpu_report import text_table
from gpu_shapes import Shape

PAUSE = 0.5  # seconds in which the card recovers
BURST = 4  # layers
AT_A_TIME = 16  # layers queued before the host waits
PATIENCE = 3.0  # seconds, with nvidia-smi
LAYERS = 4  # of weights, 1.7 GB: no cache holds them


def roofline(shape: Shape, device: torch.device, dtype: torch.dtype, sizes: Sizes) -> tuple[Roof, str]:
    """The roofline, by the products of 4,096 rows (or the most measured), and a table by the number of rows."""
    layers = [[(torch.randn(size, device=device) * 0.02).to(dtype) for size in shape.linears] for _ in range(LAYERS)]
    lines, best = [], 0.0
    state = ""
    for rows in sizes.roof_rows:
        burst, steady, card = _products(layers, rows, device, dtype, sizes.roof_load)
        flops = rows * shape.flops / shape.layers
        if flops / steady > best:
            best, state = flops / steady, card
        per_second = rows / (steady * shape.layers)
        lines.append(
            [f"{rows} rows", card, float(flops / burst / 1e12), float(flops / steady / 1e12), float(per_second)]
        )
    del layers
    copy = copy_rate(device)
    head = (
        "products",
        "MHz, W, degrees under load",
        "burst TFLOP/s",
        f"after {sizes.roof_load:g} s",
        f"tokens/s, {shape.layers} layers",
    )
    text = f"== roofline: copies {copy / 1e12:.2f} TB/s (read and written)\n" + text_table(head, lines)
    return Roof(copy, best, state), text


def _products(
    layers: list[list[torch.Tensor]], rows: int, device: torch.device, dtype: torch.dtype, load: float
) -> tuple[float, float, str]:
    """Seconds of one layer's four products in a burst, then under load, and the card's state then."""
    inputs = [torch.randn(rows, weight.shape[1], device=device).to(dtype) for weight in layers[0]]

    def some(count: int) -> None:
        for number in range(count):
            for x, weight in zip(inputs, layers[number % len(layers)], strict=True):
                F.linear(x, weight)

    some(1)
    _wait(device)
    time.sleep(PAUSE if device.type == "cuda" else 0)
    return _timed(lambda: some(BURST), device) / BURST, *_under_load(some, device, load)


def _under_load(some: Callable[[int], None], device: torch.device, load: float) -> tuple[float, str]:
    started, done, asked = time.perf_counter(), 0, None
    while (spent := time.perf_counter() - started) < load or (_waiting(asked) and spent < load + PATIENCE):
        some(AT_A_TIME)
        done += AT_A_TIME
        if asked is None and device.type == "cuda" and spent > load / 2:
            asked = _ask(device)
        _wait(device)
    return (time.perf_counter() - started) / done, _answer(asked)


def _ask(device: torch.device) -> subprocess.Popen[str] | None:
    """nvidia-smi, started in parallel with the load."""
    card = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    query = [
        "nvidia-smi",
        "-i",
        card,
        "--query-gpu=clocks.sm,power.draw,temperature.gpu",
        "--format=csv,noheader,nounits",
    ]
    try:
        return subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None


def _waiting(asked: subprocess.Popen[str] | None) -> bool:
    return asked is not None and asked.poll() is None


def _answer(asked: subprocess.Popen[str] | None) -> str:
    if asked is None:
        return "not known"
    if asked.poll() is None:
        asked.kill()
    said = asked.communicate()[0].strip()
    return said if said and not asked.returncode else "not known"


@cache
def copy_rate(device: torch.device) -> float:
    """Bytes that large copies read and write in a second, one queued after the other: a single one in a graph is
    slower.
    """
    size = 2**30 if device.type == "cuda" else 2**20
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    _wait(device)
    turns = 64 if device.type == "cuda" else 1
    return 2 * size * turns / _timed(lambda: [target.copy_(source) for _ in range(turns)], device)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
