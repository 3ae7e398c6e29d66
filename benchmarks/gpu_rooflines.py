"""What the card can do, measured in the same run: copying, products of the model's shapes, a step's linear layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpu_shapes import Shape

ROWS = 4096  # of a prefill's products
SAMPLE_LAYERS = 8  # enough weights to overflow any cache; their time is scaled to all layers


@dataclass(slots=True)
class Rooflines:
    """copy: bytes/s read and written; matmul: FLOP/s of products of 4096 rows;
    linears: seconds of a step by its rows.
    """

    copy: float
    matmul: float
    linears: dict[int, float]

    def step(self, rows: int) -> float:
        """Seconds of the linear layers of a decode step, from the measured size at or above `rows`."""
        return self.linears[min((r for r in self.linears if r >= rows), default=max(self.linears))]


def measure(
    shape: Shape, device: torch.device, seconds: float = 1.0, batches: tuple[int, ...] = (1, 8, 64, 128, 256)
) -> Rooflines:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    matmul = _matmul(shape, device, dtype, seconds)  # first: it lets the clocks settle
    return Rooflines(_copy(device), matmul, _steps(shape, batches, device, dtype))


def _sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sustained(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds of one call, in a row of calls that lasts about `seconds` (clocks and power have settled by then)."""
    _several(work, 1, device)
    once = _several(work, 2, device) / 2
    at_a_time = max(1, int(0.05 / once))  # waiting for the device costs little against 50 ms
    done, spent = 0, 0.0
    while spent < seconds:
        spent += _several(work, at_a_time, device)
        done += at_a_time
    return spent / done


def _several(work: Callable[[], object], times: int, device: torch.device) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    _sync(device)
    return time.perf_counter() - started


def _copy(device: torch.device) -> float:
    size = 2**31 if device.type == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / sustained(lambda: target.copy_(source), device, 0.3)


def _matmul(shape: Shape, device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    weights = [torch.randn(size, device=device, dtype=dtype) * 0.02 for size in shape.linears]
    inputs = [torch.randn(ROWS, columns, device=device, dtype=dtype) for _, columns in shape.linears]

    flops = 2 * ROWS * sum(rows * columns for rows, columns in shape.linears)
    return flops / sustained(lambda: _products(inputs, [weights]), device, seconds)


def _steps(shape: Shape, batches: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> dict[int, float]:
    """Seconds of all layers' products and the head's by the number of rows, in one CUDA graph where there is CUDA."""
    layers = min(shape.layers, SAMPLE_LAYERS)
    weights = [[torch.randn(size, device=device, dtype=dtype) for size in shape.linears] for _ in range(layers)]
    head = torch.randn(shape.vocab, shape.hidden, device=device, dtype=dtype)
    found = {}
    for rows in batches:
        inputs = [torch.randn(rows, columns, device=device, dtype=dtype) for _, columns in shape.linears]
        body = sustained(_captured(lambda x=inputs: _products(x, weights), device), device, 0.15)
        last = sustained(_captured(lambda x=inputs: _products(x[:1], [[head]]), device), device, 0.05)
        found[rows] = body * shape.layers / layers + last
    return found


def _products(inputs: list[torch.Tensor], layers: list[list[torch.Tensor]]) -> None:
    for layer in layers:
        for x, weight in zip(inputs, layer, strict=True):
            torch.nn.functional.linear(x, weight)


def _captured(work: Callable[[], None], device: torch.device) -> Callable[[], object]:
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
