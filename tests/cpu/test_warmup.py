"""Kernels that are compiled instead of launched, and steps of nobody."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from piecewise_checks import stored

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.executor import warmup as rehearsal
from sgl.runtime.executor.warmup import dummy_sequences
from sgl.runtime.kernels.launch.compile_ahead import KernelCompileJobs, compiling, entry, is_compiling

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=20, temperature=0)


class Kernel:
    def __init__(self) -> None:
        self.calls: list[tuple[bool, tuple[Any, ...], dict[str, Any]]] = []

    def run(self, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        self.calls.append((warmup, args, options))
        if options.get("BAD"):
            raise ValueError("no such register")


def test_each_kind_of_launch_is_compiled_once_and_not_run() -> None:
    kernel, x = Kernel(), torch.zeros(65)
    entry(kernel)
    launch: Any = kernel.run
    jobs = KernelCompileJobs(CPU, 2)
    with compiling(jobs):
        assert is_compiling()
        for count in (2, 3, 17, 16, 32, 1, 1):  # 1, multiples of 16 and the others are compiled apart
            launch(x, count, grid=(1,), warmup=False, BLOCK=64)
        launch(x[1:], 2, grid=(1,), warmup=False, BLOCK=64)  # its address is not a multiple of 16
        launch(x.half(), 2, grid=(1,), warmup=False, BLOCK=64)
        launch(x, 2, grid=(1,), warmup=False, BLOCK=128)
        launch(SimpleNamespace(base=x, block_shape=[2, 4]), 2, grid=(1,), warmup=False, BLOCK=64)
    assert not is_compiling()
    jobs.wait()
    assert len(jobs) == len(kernel.calls) == 7
    assert all(warmup for warmup, *_ in kernel.calls)
    launch(x, 2, grid=(1,), warmup=False, BLOCK=64)
    assert kernel.calls[-1][0] is False


def test_other_threads_launch_meanwhile() -> None:
    kernel = Kernel()
    launch: Any = entry(kernel).run
    with compiling(KernelCompileJobs(CPU, 1)):
        other = threading.Thread(target=launch, args=(1,), kwargs={"grid": (1,), "warmup": False})
        other.start()
        other.join()
    assert [warmup for warmup, *_ in kernel.calls] == [False]


def test_what_does_not_compile_is_told() -> None:
    launch: Any = entry(Kernel()).run
    jobs = KernelCompileJobs(CPU, 1)
    with compiling(jobs):
        launch(1, grid=(1,), warmup=False, BAD=True)
    with pytest.raises(ValueError, match="no such register"):
        jobs.wait()


def test_steps_of_nobody_touch_nothing(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True)
    with Engine(path, kv_tokens=300, poison_freed=True) as engine:
        core: Any = engine._core
        before = engine.generate("The quick brown", GREEDY).token_ids
        core.call(core.check)  # what was freed is overwritten by now
        before_them = _stored(core.runner.attention.pool)
        stats = _counts(engine)
        for work in (
            dummy_sequences(1, 1, 2),
            dummy_sequences(5, 1, 2),
            dummy_sequences(1, 0, 70),
            dummy_sequences(2, 1, 2) + dummy_sequences(1, 0, 9),
        ):
            logits = core.call(lambda work=work: core.runner.forward(work))
            assert len(logits) == len(work)
        now = _stored(core.runner.attention.pool)
        assert all(torch.equal(a, b) for a, b in zip(before_them, now, strict=True))
        assert _counts(engine) == stats
        core.call(core.check)
        assert engine.generate("The quick brown", GREEDY).token_ids == before


@pytest.mark.parametrize(("context", "longest"), [(5000, [(2049, 1), (2049, 2)]), (2049, [])])
def test_steps_that_choose_tokens_are_compiled_too(context: int, longest: list[tuple[int, int]]) -> None:
    """Decodes of more tokens than a layer attends to, one and several, where there may be as many."""
    layers = [SimpleNamespace(chosen=None), SimpleNamespace(chosen=2048)]
    model = SimpleNamespace(config=SimpleNamespace(attention=SimpleNamespace(attending=layers)))
    runner: Any = SimpleNamespace(decode_sizes=[1, 2], mixed_sizes=(), rows=4, context=context, model=model)
    steps = list(rehearsal._all(runner))
    assert [(work[0].hi, len(work)) for work in steps if len(work[0].seq.tokens) > 2048 and work[0].lo] == longest


def _counts(engine: Engine) -> tuple[int, ...]:
    stats = engine.stats()
    return stats.steps, stats.computed_tokens, stats.generated_tokens, stats.pages_free, stats.pages_cached


def _stored(pool: Any) -> list[torch.Tensor]:
    """Keys and values of all slots but the one of padding."""
    return [kept.movedim(kept.shape.index(pool.slots), 0)[1:].nan_to_num(9.0).clone() for kept in stored(pool)]


def test_no_step_is_longer_than_what_stages_make_room_for():
    """Those of nobody may have more tokens than the engine's steps."""
    for rows, context, step_tokens in ((1, 512, 16), (8, 512, 16), (3, 40, 4), (256, 4096, 8192)):
        runner = SimpleNamespace(context=context, rows=rows)
        lengths = [
            sum(item.hi - item.lo for item in rehearsal.warm_up_prompts(runner, tokens)) for tokens in rehearsal.FIRST
        ]
        assert max(lengths) <= rehearsal.longest_step(step_tokens, rows)
