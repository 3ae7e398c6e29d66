"""What the device does in steady decoding: idle share between steps, time by kernel; torch.profiler over some steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from gpu_gaps import Busy, Kernel, busy, by_name, within
from gpu_report import text_table
from gpu_work import opened, prompts

import sgl
from sgl.runtime.sampling.sampling_params import SamplingParams

STEPS = 30
LONG = 3000  # tokens; no sequence ends while the profiler starts and stops
TOP = 15


@dataclass(slots=True)
class Profile:
    """step_ms: wall time of a step without the profiler; busy and kernels: of the profiled window of `steps` steps."""

    batch: int
    step_ms: float
    steps: int
    busy: Busy
    kernels: list[Kernel]

    def text(self) -> str:
        if not self.kernels:
            return f"batch {self.batch}: {self.step_ms:.2f} ms a step; no kernel was recorded\n"
        head = (
            f"batch {self.batch}: {self.step_ms:.3f} ms a step unprofiled; profiled: "
            f"{self.busy.window / 1e6 / self.steps:.3f} ms a step, "
            f"kernels {self.busy.busy / 1e6 / self.steps:.3f} ms, {len(self.kernels) / self.steps:.0f} launches; idle "
            f"{100 * self.busy.idle_share:.2f}% in all gaps, {100 * self.busy.share_of_gaps():.2f}% in gaps over 5 "
            "us (between steps)\n"
        )
        rows = [
            (
                f"{100 * ns / self.busy.window:.1f}%",
                name[:90],
                f"{n / self.steps:.1f}",
                f"{ns / 1e3 / self.steps:.1f}",
                f"{ns / 1e3 / n:.2f}",
            )
            for name, n, ns in by_name(self.kernels, TOP)
        ]
        return head + text_table(("share", "kernel", "a step", "us a step", "us each"), rows)


def profile(engine: sgl.Engine, batch: int, vocab: int, length: int = 512, steps: int = STEPS) -> Profile:
    """Profile `steps` steps while `batch` sequences decode greedily after `length` tokens each."""
    _captured(engine)
    _record(lambda: None)  # the tracing library's own start-up
    with decoding(engine, batch, vocab, length):
        step = step_seconds(engine, steps)
        marks: list[tuple[int, int]] = []

        def window() -> None:
            marks.append((time.time_ns(), engine.stats().steps))
            time.sleep(steps * step)
            marks.append((time.time_ns(), engine.stats().steps))

        kernels = _record(window)
    inside = within(kernels, marks[0][0], marks[1][0])
    trimmed = inside if 2 * len(inside) > len(kernels) else kernels  # else: the clocks are not the same
    return Profile(batch, 1e3 * step, max(1, marks[1][1] - marks[0][1]), busy(trimmed), trimmed)


def _captured(engine: sgl.Engine, most: float = 120.0) -> None:
    """Waits until the graphs of the rehearsal are there: the profiler waits for the device, which ends a capture."""
    core: Any = engine._core
    end = time.monotonic() + most
    while getattr(core.runner, "_ahead", None) is not None and time.monotonic() < end:
        time.sleep(0.05)


@contextmanager
def decoding(engine: sgl.Engine, batch: int, vocab: int, length: int) -> Iterator[None]:
    """All sequences have had text: every step is a decode step."""
    engine.flush_cache()
    room = min(LONG, engine.info()["context"] - length - 1)
    params = SamplingParams(max_tokens=room, temperature=0, ignore_eos=True)
    seen: set[int] = set()
    everyone = threading.Event()

    def mark(index: int) -> None:
        seen.add(index)
        if len(seen) == batch:
            everyone.set()

    with opened(engine, prompts(batch, length, vocab, seed=7)) as sequences:
        futures = [s.generate(params, None, lambda chunk, i=i: mark(i)) for i, s in enumerate(sequences)]
        try:
            if not everyone.wait(120):
                raise RuntimeError(f"after 120 s {len(seen)} of {batch} sequences have text")
            yield
        finally:
            for sequence in sequences:
                sequence.abort()
            for future in futures:
                future.exception(60)


def step_seconds(engine: sgl.Engine, steps: int) -> float:
    """Wall time of a step, over enough of them."""
    first, started = engine.stats().steps, time.perf_counter()
    seconds = 0.0
    while (done := engine.stats().steps - first) < steps or seconds < 0.2:
        time.sleep(0.1)
        seconds = time.perf_counter() - started
        if seconds > 60:
            raise RuntimeError(f"{done} steps in 60 s")
    done = engine.stats().steps - first
    return (time.perf_counter() - started) / done


def _record(work: Any) -> list[Kernel]:
    if not torch.cuda.is_available():
        work()
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as traced:
        work()
    return kernels_of(traced, torch.autograd.DeviceType.CUDA)


def kernels_of(traced: Any, device: Any) -> list[Kernel]:
    """What ran on a kind of device, without copies; times in ns since 1970, as `time.time_ns` has them."""
    return [
        Kernel(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in traced.profiler.kineto_results.events()
        if e.device_type() == device and not e.name().startswith(("Memcpy", "Memset"))
    ]
