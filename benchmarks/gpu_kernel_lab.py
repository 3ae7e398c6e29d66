"""What the kernels' measurements share: times inside CUDA graphs, weights that no cache holds, tables of figures.

On the CPU every time is that of one plain call: there it only shows that the benchmark runs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from gpu_kernel_sizes import Sizes
from gpu_report import text_table
from gpu_shapes import Shape

from sgl.runtime.kernels.launch.compile_ahead import KernelCompileJobs, compiling

Call = Callable[[Any], object]
REPLAYS, TRIES = 5, 3
THREADS = 14  # that compile
CALLS = 24  # of a graph of short calls, so that its launch does not count
AHEAD = 20_000_000  # clock cycles that the device sleeps while the host queues


@dataclass(frozen=True, slots=True)
class Roof:
    """copy: bytes/s, read and written; matmul: FLOP/s under a lasting load; card: its state then."""

    copy: float
    matmul: float
    card: str = ""

    def seconds(self, moved: float, flops: float) -> float:
        """The least that so much can take."""
        return max(moved / self.copy, flops / self.matmul)


@dataclass(slots=True)
class Row:
    """Seconds of a call by the way it is done.

    The rate and the share of the roofline are those of the first of ours.
    """

    what: str
    case: str
    ours: dict[str, float]
    peers: dict[str, float]
    moved: float = 0.0  # bytes that have to be read and written
    flops: float = 0.0

    def cells(self, roof: Roof) -> list[Any]:
        best = next(iter(self.ours.values()))
        theirs = min((s for s in self.peers.values() if s > 0), default=math.nan)
        busy = self.flops / roof.matmul > self.moved / roof.copy
        rate = f"{self.flops / best / 1e12:.0f} TFLOP/s" if busy else f"{self.moved / best / 1e12:.2f} TB/s"
        share = f"{100 * roof.seconds(self.moved, self.flops) / best:.0f}"
        return [rate, share, "-" if math.isnan(theirs) else f"{theirs / best:.2f}"]


@dataclass(slots=True)
class Lab:
    """Where, with which model's shape and at which sizes kernels are measured; keeps what was printed."""

    shape: Shape
    device: torch.device
    dtype: torch.dtype
    sizes: Sizes
    roof: Roof
    tune: bool = False
    attention: str = "auto"
    text: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.text.append(text)
        print(text, flush=True)

    def show(self, title: str, rows: Sequence[Row]) -> None:
        """One table, microseconds by way."""
        self.rows += rows
        ours, peers = (
            list(dict.fromkeys(way for row in rows for way in getattr(row, side))) for side in ("ours", "peers")
        )
        lines = []
        for row in rows:
            times = row.ours | row.peers
            lines.append([row.what, row.case, *(_us(times.get(way)) for way in (*ours, *peers)), *row.cells(self.roof)])
        head = [
            "",
            "",
            *(f"{way} us" for way in ours),
            *(f"[{way}] us" for way in peers),
            "rate",
            "% roof",
            "best peer / ours",
        ]
        self.say(f"\n== {title}\n" + text_table(head, lines))

    def random(self, *size: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*size, device=self.device) * scale).to(self.dtype)

    def weights(self, size: tuple[int, int], cold: float = 1.0) -> list[torch.Tensor]:
        """As many as are `cold` times what no cache holds, two at least."""
        count = max(2, math.ceil(cold * self.sizes.cold / (size[0] * size[1] * self.dtype.itemsize)))
        return [self.random(*size, scale=0.02) for _ in range(count)]

    def load_of(self, rows: int) -> float:
        """Products of many rows are timed under a lasting load: the clock falls within a fraction of a second."""
        return self.sizes.load if rows >= 256 else 0.0

    def seconds(self, call: Call, items: Iterable[Any], load: float = 0.0) -> float:
        """Of one call, in a graph that calls once for each item, or several times if they are few."""
        given = list(items)
        if self.device.type != "cuda":
            return _wall(lambda: call(given[0]))
        return _of_graph(call, given * (1 if load else max(1, CALLS // len(given))), load)

    def attempt(self, label: str, call: Call, items: Iterable[Any], load: float = 0.0) -> float:
        """`seconds`, or NaN and a line that says why not."""
        try:
            return self.seconds(call, items, load)
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            self.failures.append(label)
            self.say(f"  {label} FAILED: {type(error).__name__}: {first[:160]}")
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            return math.nan

    def queued(self, work: Callable[[], object], count: int = 10) -> float:
        """Seconds of the device for one call, not of its launches: the host runs ahead of a sleeping device."""
        if self.device.type != "cuda":
            return _wall(work)
        work()
        torch.cuda.synchronize()
        torch.cuda._sleep(AHEAD)
        return _between_events(lambda: [work() for _ in range(count)]) / count

    def host(self, work: Callable[[], object], count: int = 20) -> float:
        """Seconds of the host for one call while the device is idle."""
        times = []
        for _ in range(count if self.device.type == "cuda" else 1):
            self.wait()
            times.append(_wall(work))
        self.wait()
        return statistics.median(times)

    def compile_ahead(self, calls: Iterable[Callable[[], object]]) -> None:
        """Compile what these calls launch, several kernels at a time; one that does not compile is reported when it is
        measured.
        """
        if self.device.type != "cuda":
            return
        jobs = KernelCompileJobs(self.device, THREADS)
        with compiling(jobs):
            for call in calls:
                call()
        with suppress(Exception):
            jobs.wait()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else float(1e6 * seconds)


def _wall(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _of_graph(call: Call, items: list[Any], load: float) -> float:
    call(items[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for item in items:
            call(item)
    graph.replay()
    until = time.perf_counter() + load
    while load and time.perf_counter() < until:
        graph.replay()
        torch.cuda.synchronize()
    replays = REPLAYS * (4 if load else 1)
    took = [_between_events(lambda: [graph.replay() for _ in range(replays)]) for _ in range(TRIES)]
    return (statistics.median(took) if load else min(took)) / replays / len(items)


def _between_events(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
