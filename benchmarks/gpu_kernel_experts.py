"""The products of a layer's experts alone, captured in CUDA graphs: over tiles and cuts,
against what copies move and torch's grouped product.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import cycle, islice

import gpu_kernel_roof as roof
import torch
from gpu_shapes import Shape

from sgl.runtime.kernels.experts import fused_moe
from sgl.runtime.kernels.experts.expert_align_blocks import ExpertBlocks, sorted_blocks
from sgl.runtime.kernels.experts.expert_gemv import ExpertGemvLaunch, gemv_down, gemv_gate_up
from sgl.runtime.kernels.experts.expert_routing import FEW_ROWS, RouterWeights, route
from sgl.runtime.kernels.experts.fused_moe import (
    ExpertGemmTile,
    ExpertSelection,
    ExpertWeights,
    SharedExpertOutput,
    StackedExpertWeights,
)
from sgl.runtime.kernels.launch.compile_ahead import KernelCompileJobs, compiling

CALLS, THREADS = 8, 14
TILES = (
    ExpertGemmTile(16, 64, 128, 3, 4),
    ExpertGemmTile(16, 64, 128, 5, 4),
    ExpertGemmTile(16, 128, 64, 4, 4),
    ExpertGemmTile(16, 64, 256, 3, 4),
    ExpertGemmTile(32, 64, 128, 3, 4),
    ExpertGemmTile(32, 64, 64, 4, 4),
    ExpertGemmTile(32, 128, 64, 4, 8),
    ExpertGemmTile(32, 128, 128, 3, 8),
    ExpertGemmTile(64, 64, 64, 4, 4),
    ExpertGemmTile(64, 64, 128, 3, 4),
    ExpertGemmTile(64, 128, 64, 4, 8),
    ExpertGemmTile(64, 128, 64, 4, 8, resident=True),
    ExpertGemmTile(64, 256, 64, 4, 8),
    ExpertGemmTile(64, 256, 64, 4, 8, resident=True),
    ExpertGemmTile(128, 64, 64, 4, 4),
    ExpertGemmTile(128, 128, 64, 4, 8),
    ExpertGemmTile(128, 128, 64, 4, 8, resident=True),
    ExpertGemmTile(128, 128, 64, 3, 8, described=False),
    ExpertGemmTile(128, 256, 64, 3, 8),
    ExpertGemmTile(128, 256, 64, 4, 8),
    ExpertGemmTile(128, 256, 64, 4, 8, resident=True),
    ExpertGemmTile(256, 64, 64, 4, 8),
    ExpertGemmTile(256, 128, 64, 4, 8),
)
MOST_UP = 128 * 128  # rows x outputs of a gate: as many sums again for what it is multiplied with
UPS = tuple(
    ExpertGemvLaunch(rows, block, warps, groups, registers)
    for rows, groups in ((2, 1), (2, 4), (2, 12), (4, 1), (4, 3), (4, 6), (8, 3))
    for block, warps in ((2048, 8), (2048, 4), (1024, 2), (512, 1))
    for registers in ((0, 128) if rows * block // warps > 1024 else (0,))
)
DOWNS = tuple(
    ExpertGemvLaunch(rows, block, warps, 1, registers)
    for rows in (1, 2, 4)
    for block, warps in ((1024, 8), (1024, 4), (512, 4), (512, 2), (256, 4), (256, 2), (256, 1))
    for registers in (0, 128)
)
MOST_GATHERED = 16


def measure(shape: Shape, counts: list[int]) -> None:
    keys = shape.keys
    experts_, top_k = keys.get("num_experts") or keys["num_local_experts"], keys["num_experts_per_tok"]
    inner = keys.get("moe_intermediate_size", shape.inner)
    stacks = _stacks(experts_, shape.hidden, inner, keys.get("swiglu_limit"))
    print(f"{torch.cuda.get_device_name()}: copies move {copy_rate() / 1e12:.2f} TB/s")
    print(
        f"{shape.name}: {experts_} experts, {top_k} of them, [{2 * inner}, {shape.hidden}] and [{shape.hidden}, "
        f"{inner}] each, bfloat16"
    )
    for rows in counts:
        x = torch.randn(rows, shape.hidden, dtype=torch.bfloat16, device="cuda")
        choices = [_choice(rows, experts_, top_k) for _ in range(CALLS)]
        distinct = sum(len(choice.experts.unique()) for choice in choices) / CALLS
        _report(
            x,
            stacks,
            choices,
            distinct * 2 * stacks.gate_up.weight[0].numel(),
            distinct * 2 * stacks.down.weight[0].numel(),
        )


def _stacks(count: int, hidden: int, inner: int, limit: float | None) -> StackedExpertWeights:
    def random(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)

    biases = (random(count, 2 * inner), random(count, hidden)) if limit else (None, None)
    return StackedExpertWeights(
        ExpertWeights(random(count, 2 * inner, hidden), biases[0]),
        ExpertWeights(random(count, hidden, inner), biases[1]),
        "silu",
        limit,
    )


def _choice(rows: int, count: int, top_k: int) -> ExpertSelection:
    chosen, weights = torch.rand(rows, count, device="cuda").topk(top_k)[::-1]
    return ExpertSelection(chosen.int(), weights.softmax(1))


def _report(
    x: torch.Tensor, stacks: StackedExpertWeights, choices: list[ExpertSelection], up_bytes: float, down_bytes: float
) -> None:
    """up_bytes, down_bytes: of the weights of the chosen experts."""
    rows = len(x)
    whole = _seconds(lambda choice: fused_moe.fused_moe(x, stacks, choice, overlap=True), choices)
    shown = [f"mixture {_describe(whole, up_bytes + down_bytes)}"]
    counters = torch.zeros(FEW_ROWS, dtype=torch.int32, device="cuda")
    router = RouterWeights(
        torch.randn(stacks.count, x.shape[1], device="cuda"),
        None,
        None,
        choices[0].top_k,
        {"normalise": True},
        None,
        counters,
    )
    shown.append(f"router {1e6 * _seconds(lambda choice: route(x, router, overlap=True), choices):.1f} us")
    shown.append(
        f"sort {1e6 * _seconds(lambda choice: sorted_blocks(choice.experts, stacks.count, 32), choices):.1f} us"
    )
    with suppress(Exception):
        shown.append(
            f"torch's grouped_mm, products alone {_describe(_library(x, stacks, choices), up_bytes + down_bytes)}"
        )
    print(f"{rows} rows: {'; '.join(shown)}", flush=True)
    found = _gathered(x, stacks, choices) if rows <= MOST_GATHERED else []
    found += _tiles(x, stacks, choices) if rows > 1 else []
    for part, name, size in (("up", "gate and up", up_bytes), ("down", "down", down_bytes)):
        best = sorted((seconds, what) for seconds, where, what in found if where == part)
        for seconds, what in best[:6]:
            print(f"    {name}: {_describe(seconds, size)} {what}", flush=True)


def _describe(seconds: float, size: float) -> str:
    return f"{1e6 * seconds:.1f} us ({size / copy_rate() / seconds:.0%} of copies)"


def copy_rate() -> float:
    """Bytes that a large copy reads and writes in a second."""
    return roof.copy_rate(torch.device("cuda", torch.cuda.current_device()))


def _gathered(
    x: torch.Tensor, stacks: StackedExpertWeights, choices: list[ExpertSelection]
) -> list[tuple[float, str, str]]:
    inner = x.new_zeros(choices[0].experts.numel(), stacks.inner)
    out = torch.empty_like(x)

    def up(cut: ExpertGemvLaunch) -> Callable[[ExpertSelection], object]:
        return lambda choice: gemv_gate_up(x, stacks, choice, cut, overlap=True)

    def down(cut: ExpertGemvLaunch) -> Callable[[ExpertSelection], object]:
        return lambda choice: gemv_down(inner, stacks, choice, SharedExpertOutput(), out, cut, overlap=True)

    work = {("up", f"gathered {cut}"): up(cut) for cut in UPS} | {
        ("down", f"gathered {cut}"): down(cut) for cut in DOWNS
    }
    return _all(work, choices)


def _tiles(
    x: torch.Tensor, stacks: StackedExpertWeights, choices: list[ExpertSelection]
) -> list[tuple[float, str, str]]:
    """Of tiles whose blocks are not far too large or too small."""
    each = choices[0].experts.numel() / stacks.count
    sizes = {tile.rows for tile in TILES}
    blocks = {
        rows: {id(choice): sorted_blocks(choice.experts, stacks.count, rows) for choice in choices} for rows in sizes
    }
    inner = {
        rows: x.new_zeros(max(own.most for own in found.values()) * rows, stacks.inner)
        for rows, found in blocks.items()
    }

    def up(tile: ExpertGemmTile) -> Callable[[ExpertSelection], object]:
        return lambda choice: fused_moe.grouped_up(x, stacks, choice, _of(blocks, tile, choice), tile, overlap=True)

    def down(tile: ExpertGemmTile) -> Callable[[ExpertSelection], object]:
        return lambda choice: fused_moe.grouped_down(
            inner[tile.rows], stacks, choice, _of(blocks, tile, choice), tile, overlap=True
        )

    suited = [tile for tile in TILES if each / 4 <= tile.rows <= max(32, 8 * each)]
    work = {("up", str(tile)): up(tile) for tile in suited if tile.rows * tile.outputs <= MOST_UP}
    return _all(work | {("down", str(tile)): down(tile) for tile in suited}, choices)


def _of(blocks: dict[int, dict[int, ExpertBlocks]], tile: ExpertGemmTile, choice: ExpertSelection) -> ExpertBlocks:
    return blocks[tile.rows][id(choice)]


def _all(
    work: dict[tuple[str, str], Callable[[ExpertSelection], object]], choices: list[ExpertSelection]
) -> list[tuple[float, str, str]]:
    """Seconds of each; what does not compile is left out."""
    jobs = KernelCompileJobs(torch.device("cuda"), THREADS)
    with compiling(jobs):
        for call in work.values():
            call(choices[0])
    with suppress(Exception):
        jobs.wait()
    found = []
    for (part, what), call in work.items():
        try:
            found.append((_seconds(call, choices), part, what))
        except Exception as error:
            print(f"    {what}: {str(error).splitlines()[0][:100]}")
    return found


def _library(x: torch.Tensor, stacks: StackedExpertWeights, choices: list[ExpertSelection]) -> float:
    """Both products of rows that are sorted already, without activation, bias and sums."""
    pairs = choices[0].experts.numel()
    taken, inner = x.new_zeros(pairs, x.shape[1]), x.new_zeros(pairs, stacks.inner)
    up, down = stacks.gate_up.weight.transpose(1, 2), stacks.down.weight.transpose(1, 2)
    ends = {
        id(choice): torch.bincount(choice.experts.flatten(), minlength=stacks.count).cumsum(0).int()
        for choice in choices
    }
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm

    def both(choice: ExpertSelection) -> None:
        grouped(taken, up, offs=ends[id(choice)])
        grouped(inner, down, offs=ends[id(choice)])

    return _seconds(both, choices)


def _seconds(work: Callable[[ExpertSelection], object], choices: list[ExpertSelection], least: float = 0.02) -> float:
    """Of one call, the choices one after the other."""
    return graph_seconds([partial(work, choice) for choice in islice(cycle(choices), CALLS)], least)


def graph_seconds(calls: list[Callable[[], object]], least: float) -> float:
    """Of one of the calls, all in a graph that is replayed until `least` seconds are over."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = 3
    while True:
        began.record()
        for _ in range(times):
            graph.replay()
        ended.record()
        ended.synchronize()
        seconds = began.elapsed_time(ended) / 1e3
        if seconds >= least:
            return seconds / times / len(calls)
        times = max(2 * times, int(times * 1.2 * least / max(seconds, 1e-6)))
