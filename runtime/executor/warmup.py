"""Steps of no request, so that the first requests find what they need: kernels compiled, graphs captured.

Such a step computes token 0 in the padding slot, which is never read, and its logits go nowhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from ..adapters.batch_adapters import BatchAdaptersBySlot
from ..kernels.launch.compile_ahead import KernelCompileJobs, compiled_in_parallel
from ..sequences.sequence_options import SequenceOptions
from ..sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState, SequenceStatus
from ..step.adapter_rows import NONE, AdapterRows
from .runner_protocol import GraphRunner

if TYPE_CHECKING:
    from ..adapters.gpu_adapter_products import GpuAdapterProducts

log = logging.getLogger("sgl.runtime")

LIKELY = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # decoding sequences whose graphs are captured first
ALL = 256  # up to here those of all other sizes are captured too, when all else is
LONG = (600, 1024, 4096)  # tokens of prompts that are bound by the device
ADAPTED, SOME = (1, 2, 16, 32, 64), 8  # decoding sequences with adapters, and how many of these
ADAPTED_PROMPTS = (17, 300, 600, 4096)
FIRST = (17, 300, 600)  # tokens of prompts, after which a first request finds its libraries loaded


class _LastTokenLogits(SequenceOp):
    """Wants the logits of the last token, like a generation: of a prompt that is cut, only the last part has them."""

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(hi - 1, hi) if hi == len(seq.tokens) else range(hi, hi)


def longest_step(step_tokens: int, rows: int) -> int:
    """Tokens of the longest step that a runner of so many rows runs: real, of so many tokens at most, or a warm-up."""
    return max(step_tokens, rows, rows + max(FIRST))


def dummy_sequences(count: int, lo: int, hi: int, adapters: int = 0) -> list[ScheduledWork]:
    """A step of `count` sequences that compute their tokens lo to hi, by so many adapters in turn."""
    return [ScheduledWork(_sequence(hi, str(index % adapters) if adapters else ""), lo, hi) for index in range(count)]


def _sequence(length: int, adapter: str) -> SequenceState:
    # its row of the page table is the first to be given to others
    seq = SequenceState(0, SequenceOptions(adapter=adapter), SequenceStatus.CLOSED)
    seq.tokens.extend(np.zeros(length, np.int32))
    seq.slots.extend(np.zeros(length, np.int32))
    seq.ops.append(_LastTokenLogits())
    return seq


def compile_ahead(runner: GraphRunner, sampler: Callable[[], None]) -> None:
    """Have everything compiled that steps will launch, several kernels at a time, then run a few of them.

    sampler: launches the kernels that choose tokens. Logs what it took.
    """
    started = time.perf_counter()
    with runner.on_device():
        jobs = compile_all(runner, sampler)
        if runner.team is not None:
            runner.team.compile()
        sampler()
        for tokens in FIRST:
            runner.forward(warm_up_prompts(runner, tokens))
        runner.forward(dummy_sequences(1, 1, 2))
    log.info(
        "%d kernels are ready after %.1f s; graphs are captured while no request waits",
        len(jobs),
        time.perf_counter() - started,
    )


def compile_all(runner: GraphRunner, sampler: Callable[[], None]) -> KernelCompileJobs:
    """Have every kernel compiled; none runs."""
    with compiled_in_parallel(runner.device) as jobs:
        for work in _all(runner):
            runner.forward(work)
        with _slots_by_number(runner):
            for work in _adapted(runner):
                runner.forward(work)
        sampler()
    return jobs


def compile_step(device: torch.device, step: Callable[[], object]) -> None:
    """Have the kernels that a step launches compiled, several at a time; none runs."""
    with compiled_in_parallel(device):
        step()


def _all(runner: GraphRunner) -> Iterator[list[ScheduledWork]]:
    """Steps of every size that is compiled apart: by the number of rows, and with long and short parts."""
    for size in runner.decode_sizes:
        yield dummy_sequences(size, 1, 2)
    for tokens in (*runner.mixed_sizes, *LONG):
        yield warm_up_prompts(runner, tokens)
    if runner.rows > 1:
        yield dummy_sequences(1, 1, 2) + warm_up_prompts(runner, 64)
    for chosen in {layer.chosen for layer in runner.model.config.attention.attending if layer.chosen is not None}:
        if chosen + 1 < runner.context:
            yield from (dummy_sequences(count, chosen, chosen + 1) for count in range(1, 1 + min(2, runner.rows)))


class _WarmupAdapters(BatchAdaptersBySlot):
    """Nothing has to be in the slots: they are never read."""

    def captures(self, slots: Sequence[int]) -> bool:
        return self.adapted_model.products.capturable

    def rows(self, digests: Iterable[str], lengths: Sequence[int], wanted: Sequence[int]) -> AdapterRows | None:
        rows = super().rows(digests, lengths, wanted)
        if rows is None:
            return None
        unasked = AdapterRows(np.full_like(rows.tokens, NONE), np.full_like(rows.wanted, NONE))
        unasked.device = cast("GpuAdapterProducts", self.adapted_model.products).blocks_of(rows)
        return unasked


@contextmanager
def _slots_by_number(runner: GraphRunner) -> Iterator[None]:
    theirs = runner.adapters
    runner.adapters = None if theirs is None else _WarmupAdapters(theirs.slots, theirs.adapted_model)
    try:
        yield
    finally:
        runner.adapters = theirs


def _adapted(runner: GraphRunner) -> Iterator[list[ScheduledWork]]:
    """Steps with adapters, where kernels compute them: of one, of some, and of as many as there are slots."""
    slots = (
        len(runner.adapters.slots.slots)
        if runner.adapters is not None and runner.adapters.adapted_model.products.capturable
        else 0
    )
    for size in runner.decode_sizes if slots else ():
        if size in ADAPTED or size == runner.decode_sizes[-1]:
            yield from (
                dummy_sequences(size, 1, 2, count) for count in sorted({1, min(size, slots, SOME), min(size, slots)})
            )
    for tokens in ADAPTED_PROMPTS if slots else ():
        yield warm_up_prompts(runner, tokens, 1)


def warm_up_prompts(runner: GraphRunner, tokens: int, adapters: int = 0) -> list[ScheduledWork]:
    """A step of about so many new tokens, in as many sequences as that takes, shorter where they have no room."""
    longest = max(1, runner.context - 1)
    count = min(-(-tokens // longest), max(1, runner.rows - 1))
    return dummy_sequences(count, 0, min(longest, -(-tokens // count)), adapters)


def warm_up_graphs(runner: GraphRunner) -> Iterator[None]:
    """Captures what is likely to be replayed, one graph between two items."""
    yield from _decodes(runner, [size for size in runner.decode_sizes if size in LIKELY])
    yield from runner.capture_mixed()
    yield from _decodes(runner, [size for size in runner.decode_sizes if size <= ALL and size not in LIKELY])


def _decodes(runner: GraphRunner, sizes: list[int]) -> Iterator[None]:
    for size in sizes:
        for _ in range(2):
            runner.forward(dummy_sequences(size, 1, 2))
            yield
