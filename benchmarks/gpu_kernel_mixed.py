"""Steps in which some sequences get more than one token, with random weights: eagerly and in pieces of CUDA graphs.

A quarter of the sequences (one at least) get 4 extra tokens a step, the others one. host: what `runner.forward` takes
of the host while the device is idle; step: wall time of steps run back to back; gpu: between events, of steps launched
after a sleep. The roofline is that of reading weights, keys and values once, and of the products.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_kernel_lab import Lab, Row
from gpu_shapes import write_model

import sgl
from sgl.runtime.cache import GrowableIntArray
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState, SequenceStatus

EXTRA, WARM, AFTER_SLEEP = 4, 4, 3  # tokens; steps; steps
SLEEP = 72_000_000  # clock cycles, as long as the host needs for three steps
FIRST_PLAIN_ID = 300


class Last(SequenceOp):
    """Wants the logits of each step's last token."""

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(hi - 1, hi)


class Drive:
    """Sequences by hand: random tokens, slots in order, no scheduler."""

    def __init__(self, runner: Any, batch: int, lab: Lab) -> None:
        self.runner, self.batch, self.lab, self.next = runner, batch, lab, 1 + batch * lab.sizes.context
        self.seqs = [self._sequence(index, np.random.default_rng(index)) for index in range(batch)]
        if hasattr(runner, "table"):
            runner.table.forget()

    def _sequence(self, index: int, draw: np.random.Generator) -> SequenceState:
        sizes, seq = self.lab.sizes, SequenceState(index)
        steps = 2 * sizes.steps + WARM + AFTER_SLEEP
        seq.status, seq.computed = SequenceStatus.RUNNING, sizes.context
        seq.tokens = GrowableIntArray(
            draw.integers(FIRST_PLAIN_ID, self.lab.shape.vocab, sizes.context + (1 + EXTRA) * steps)
        )
        seq.slots = GrowableIntArray(np.arange(1 + index * sizes.context, 1 + (index + 1) * sizes.context))
        seq.ops.append(Last())
        return seq

    def extended(self, mixed: bool) -> int:
        return max(1, self.batch // 4) if mixed else 0

    def step(self, mixed: bool) -> float:
        """Seconds of the host."""
        work = []
        for index, seq in enumerate(self.seqs):
            count = 1 + (EXTRA if index >= self.batch - self.extended(mixed) else 0)
            seq.slots.extend(np.arange(self.next, self.next + count))
            self.next += count
            work.append(ScheduledWork(seq, seq.computed, seq.computed + count))
            seq.computed += count
        started = time.perf_counter()
        self.runner.forward(work)
        return time.perf_counter() - started


def measure(lab: Lab) -> None:
    options: dict[str, Any] = {
        "context": lab.shape.context,
        "max_running": max(lab.sizes.mixed),
        "kv_tokens": _tokens(lab),
    }
    if lab.device.type != "cuda":
        options |= {"threads": 1, "dtype": "float32"}
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / lab.shape.name, lab.shape)
        engine = sgl.Engine(model, device=str(lab.device), dummy=True, **options)
    with engine:
        core, size = engine._core, engine.info()["memory"]["weights"]
        rows = core.call(lambda: [row for batch in lab.sizes.mixed for row in _rows(lab, core.runner, batch, size)])
    lab.show(
        f"steps of the model after {lab.sizes.context} tokens each: some sequences with {1 + EXTRA} tokens, or one "
        "each",
        rows,
    )


def _tokens(lab: Lab) -> int:
    sizes = lab.sizes
    return 1000 + max(sizes.mixed) * (sizes.context + (1 + EXTRA) * (2 * sizes.steps + WARM + AFTER_SLEEP))


def _rows(lab: Lab, runner: Any, batch: int, size: float) -> list[Row]:
    pieces = getattr(runner, "_mixed", None)
    ours = _timed(lab, Drive(runner, batch, lab), True)
    eager = {}
    if pieces is not None:
        runner._mixed = None
        try:
            eager = {f"eager {name}": seconds for name, seconds in _timed(lab, Drive(runner, batch, lab), True).items()}
        finally:
            runner._mixed = pieces
    decodes = _timed(lab, Drive(runner, batch, lab), False)
    return [_row(lab, "mixed", batch, ours, eager, size), _row(lab, "decode", batch, decodes, {}, size)]


def _row(lab: Lab, what: str, batch: int, ours: dict[str, float], peers: dict[str, float], size: float) -> Row:
    tokens = batch + (EXTRA * max(1, batch // 4) if what == "mixed" else 0)
    shape = lab.shape
    read = size - shape.vocab * shape.hidden * lab.dtype.itemsize  # the embedding is not read but for some rows
    moved = read + batch * lab.sizes.context * shape.kv_bytes
    return Row(
        what, f"{batch} sequences", ours, peers, moved, tokens * shape.flops + 2.0 * batch * shape.vocab * shape.hidden
    )


def _timed(lab: Lab, drive: Drive, mixed: bool) -> dict[str, float]:
    """Seconds by what is timed."""
    for _ in range(WARM):
        drive.step(mixed)
    lab.wait()
    host = []
    for _ in range(lab.sizes.steps):
        host.append(drive.step(mixed))
        lab.wait()
    started = time.perf_counter()
    for _ in range(lab.sizes.steps):
        drive.step(mixed)
    lab.wait()
    step = (time.perf_counter() - started) / lab.sizes.steps
    return {"gpu": _after_sleep(lab, drive, mixed, step), "step": step, "host": statistics.median(host)}


def _after_sleep(lab: Lab, drive: Drive, mixed: bool, otherwise: float) -> float:
    if lab.device.type != "cuda":
        return otherwise
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP)
    start.record()
    for _ in range(AFTER_SLEEP):
        drive.step(mixed)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / AFTER_SLEEP
