"""Engine(deterministic=True): a request's numbers have the same bits whatever runs beside it and however it is cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels

GREEDY = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=3)
DRAWN = SamplingParams(max_tokens=10, temperature=0.9, seed=7, ignore_eos=True, logprobs=True)
LENGTHS = (1, 2, 15, 16, 17, 40, 90)
needs_kernels = pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")


def prompts() -> list[list[int]]:
    """Some share a beginning."""
    rng = random.Random(0)
    found = [rng.choices(range(4, 320), k=length) for length in LENGTHS]
    return [*found, found[-1][:50] + [9, 8, 7], found[-1][:33]]


def launched(engine: Engine, tokens: list[int], params: SamplingParams) -> Any:
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence.generate(params)


def numbers(done: Any) -> tuple[Any, ...]:
    return done.token_ids, done.logprobs, done.top_logprobs


def together(engine: Engine) -> list[tuple[Any, ...]]:
    futures = [launched(engine, tokens, params) for params in (GREEDY, DRAWN) for tokens in prompts()]
    return [numbers(future.result(60)) for future in futures]


def alone(engine: Engine) -> list[tuple[Any, ...]]:
    found = []
    for params in (GREEDY, DRAWN):
        for tokens in prompts():
            found.append(numbers(launched(engine, tokens, params).result(60)))
            engine.flush_cache()
    return found


def scores(engine: Engine) -> Any:
    sequence = engine.open()
    sequence.extend(prompts()[-1])
    return list(sequence.score([[5, 6, 7], [5, 9], [11]]).result(60))


def embedded(engine: Engine) -> list[list[float]]:
    """All at once."""
    futures = []
    for tokens in prompts():
        sequence = engine.open()
        sequence.extend(tokens)
        futures.append(sequence.embed())
    return [future.result(60).tolist() for future in futures]


def preempting(engine: Engine) -> None:
    """Throw a sequence out of the batch every few steps."""
    scheduler, steps = engine._core.scheduler, iter(range(10**9))

    def disturb() -> None:
        if next(steps) % 3 == 0 and scheduler.running:
            scheduler.preempt(scheduler.running[-1])

    engine._core.after_step = disturb


@pytest.fixture(params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param, tokenizer=True)


@pytest.fixture
def build(model: Path) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def opened(**options: Any) -> Engine:
        engines.append(Engine(model, **{"deterministic": True, "kv_tokens": 4096, "device": "cpu"} | options))
        return engines[-1]

    yield opened
    for engine in engines:
        engine.close()


@needs_kernels
@pytest.mark.parametrize("run_ahead", [False, True], ids=["in-step", "ahead"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_do_not_depend_on_what_runs_beside(build: Callable[..., Engine], dtype: str, run_ahead: bool) -> None:
    engine = build(dtype=dtype, run_ahead=run_ahead, page_size=4)
    assert engine.info()["deterministic"]
    expected, scored, vectors = alone(engine), scores(engine), embedded(engine)
    engine.flush_cache()
    assert together(engine) == expected
    before = engine.stats().cached_tokens
    assert together(engine) == expected and engine.stats().cached_tokens > before + 100
    assert scores(engine) == scored
    chunked = build(dtype=dtype, run_ahead=run_ahead, step_tokens=7, max_running=5)
    assert together(chunked) == expected and scores(chunked) == scored and embedded(chunked) == vectors
    disturbed = build(dtype=dtype, run_ahead=run_ahead, step_tokens=32)
    preempting(disturbed)
    assert together(disturbed) == expected and disturbed.stats().preemptions > 3


@pytest.mark.parametrize("attention", ["flashinfer", "torch_native"])
def test_attention_that_depends_on_the_batch_is_refused(attention: str) -> None:
    with pytest.raises(ConfigError, match=rf"deterministic=True, attention='{attention}'.*attention='auto'"):
        Engine(deterministic=True, attention=attention)


def test_what_the_cpu_cannot_do_bit_by_bit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="float32 or bfloat16"):
        Engine(deterministic=True, dtype="float16", device="cpu")
    monkeypatch.setattr(cpu_kernels, "kernels", None)
    with pytest.raises(ConfigError, match="C compiler"):
        Engine(deterministic=True, dtype="float32", device="cpu")


@needs_kernels
def test_the_row_by_row_kernels_then_take_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "most_numbers", 10)
    x = torch.ones(4, 4)
    assert not cpu_kernels.supports(x)
    cpu_kernels.cover_all_sizes()
    assert cpu_kernels.supports(x)
