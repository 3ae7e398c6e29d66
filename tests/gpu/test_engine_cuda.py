"""The same engine on a CUDA device gives the same texts as on the CPU, whatever its steps are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint
from test_engine_machine import EngineMachine

from sgl import grammars
from sgl.runtime import Engine, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROMPTS = ["The quick brown fox", "The quick", "1 + 1 =", '{"name": "Zoë"'] * 3
KINDS: list[dict[str, Any]] = [
    {},
    {"graphs": False},
    {"run_ahead": False},
    {"attention": "torch_native"},
    {"attention": "triton", "page_size": 16},
    {"attention": "triton", "page_size": 4, "step_tokens": 7},
    {"max_running": 3, "kv_tokens": 300},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


def texts(tiny: Path, device: str, **options: Any) -> list[list[int]]:
    options = {"dtype": "float32", "kv_tokens": 4096, "step_tokens": 16, "poison_freed": True} | options
    with Engine(tiny, device=device, **options) as engine:
        engine._core.after_step = engine._core.check
        grammar = grammars.compile_regex("[a-z]{3,9} [0-9]{2}", engine.vocabulary)
        free = engine.generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
        seeded = engine.generate(PROMPTS, SamplingParams(max_tokens=20, seed=5, top_p=0.9, ignore_eos=True))
        bound = engine.generate(PROMPTS, SamplingParams(max_tokens=30, temperature=0), grammar=grammar)
        stopped = engine.generate(PROMPTS, SamplingParams(max_tokens=40, temperature=0, stop=("e", "a")))
        engine.check()
        return [done.token_ids for done in [*free, *seeded, *bound, *stopped]]


@pytest.fixture(scope="module")
def on_the_cpu(tiny) -> list[list[int]]:
    return texts(tiny, "cpu")


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_cuda_equals_cpu(tiny, on_the_cpu, options):
    assert texts(tiny, "cuda", **options) == on_the_cpu


def test_scores_and_forks(tiny):
    def found(device: str) -> list[Any]:
        with Engine(tiny, device=device, dtype="float32", kv_tokens=4096, step_tokens=16) as engine:
            sequence = engine.open()
            sequence.extend(np.arange(5, 45))
            children = sequence.fork(3)
            for index, child in enumerate(children):
                child.extend([50 + index])
            params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=2)
            futures = [child.generate(params) for child in children]
            scores = sequence.score([[7, 8], [7, 9, 10], [11]]).result(60)
            done = [future.result(60) for future in futures]
            return [[g.token_ids for g in done], [g.logprobs for g in done], scores]

    (tokens, logprobs, scores), (tokens_cpu, logprobs_cpu, scores_cpu) = found("cuda"), found("cpu")
    assert tokens == tokens_cpu
    for ours, theirs in ((logprobs, logprobs_cpu), (scores, scores_cpu)):
        assert np.allclose([p for row in ours for p, _ in row], [p for row in theirs for p, _ in row], atol=1e-4)


def test_random_operations_lose_no_page_and_change_no_text(tiny):
    EngineMachine.path, EngineMachine.options = tiny, {"device": "cuda"}
    run_state_machine_as_test(EngineMachine, settings=settings(max_examples=20, stateful_step_count=80, deadline=None))


def test_ten_thousand_steps_with_forced_preemption(tiny):
    with Engine(tiny, device="cuda", dtype="float32", kv_tokens=600, max_running=8, poison_freed=True) as engine:
        core, steps = engine._core, iter(range(10**9))

        def disturb() -> None:
            if next(steps) % 3 == 0 and core.scheduler.running:
                core.scheduler.preempt(core.scheduler.running[-1])

        core.after_step = disturb
        rng = np.random.default_rng(0)
        while engine.stats().steps < 10_000:
            params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
            futures = []
            for _ in range(24):
                sequence = engine.open()
                sequence.extend(rng.integers(4, 200, rng.integers(1, 60)))
                futures.append(sequence.generate(params))
            done = [future.result(120) for future in futures]
            assert all(len(generation.token_ids) == 40 for generation in done)
        del sequence
        core.after_step = None
        engine.check()
        engine.flush_cache()
        stats = engine.stats()
        assert stats.preemptions > 1000 and stats.pages_free == stats.pages_total
