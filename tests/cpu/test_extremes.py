"""Whatever stands in a field, the request is computed or refused in words, and everybody else goes on.

`SGL_FUZZ_CASES=1` takes every value for every field, as tests/slow/test_extremes_all.py does.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from extremes import VALUES, Liar, Mute, some

import sgl
from sgl.lang.errors import LanguageError
from sgl.lang.sampling.options import NAMES
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import ConfigError, RuntimeFailure

SECONDS = 30
FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]
PROMPT = np.random.default_rng(0).integers(5, 300, 504).tolist()  # of a context of 512: no text gets long
TERMS = ("priority", "tenant", "namespace", "timeout")


def prompted(engine: Engine, **terms: Any) -> Any:
    sequence = engine.open(**terms)
    sequence.extend(PROMPT)
    return sequence


def ends(ask: Callable[[], Any]) -> Any:
    """Its result, or its refusal, which is ours and in words."""
    try:
        found = ask()
        return found.result(SECONDS) if hasattr(found, "result") else found
    except RuntimeFailure as error:
        assert str(error) and len(str(error)) < 2000, error
        return error


@pytest.fixture
def sound(engine):
    """Afterwards somebody else has got the text that was due, and nothing is left."""
    quiet = SamplingParams(max_tokens=6, seed=5)
    alone = prompted(engine).generate(quiet).result(SECONDS).token_ids
    yield engine
    assert engine.up and prompted(engine).generate(quiet).result(SECONDS).token_ids == alone
    engine.flush_cache()
    engine.check()
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total and not stats.running and not stats.waiting


@pytest.mark.few(11)
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_a_generation(sound, name):
    for value in some(VALUES, name):
        beside = prompted(sound).generate(SamplingParams(max_tokens=4, temperature=0))
        params = SamplingParams(**{"max_tokens": 3} | {name: value})
        ends(lambda params=params: prompted(sound).generate(params))
        assert beside.result(SECONDS).completion_tokens


def test_two_fields_at_once(sound):
    pairs = list(itertools.combinations(FIELDS, 2))
    for first, second in some(pairs, "pairs", 60):
        (one,), (other,) = some(VALUES, f"{first} {second}", 1)[:1], some(VALUES, f"{second} {first}", 1)[:1]
        ends(lambda given={first: one, second: other}: prompted(sound).generate(SamplingParams(**given)))


@pytest.mark.parametrize("name", TERMS)
def test_the_terms_of_a_sequence(sound, name):
    for value in some(VALUES, name, 40):
        ends(lambda value=value: prompted(sound, **{name: value}).generate(SamplingParams(max_tokens=2)))


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "extend": lambda sequence, value: (sequence.extend(value), sequence.generate(SamplingParams(max_tokens=2)))[1],
    "drop": lambda sequence, value: (sequence.extend([5], drop=value), sequence.generate(SamplingParams(max_tokens=2)))[
        1
    ],
    "start": lambda sequence, value: sequence.logprobs(value),
    "top": lambda sequence, value: sequence.logprobs(500, value),
    "choices": lambda sequence, value: sequence.score(value),
    "choice": lambda sequence, value: sequence.score([[5], value]),
    "fork": lambda sequence, value: sequence.fork(value)[:0] or sequence.prefill(),
    "params": lambda sequence, value: sequence.generate(value),
    "grammar": lambda sequence, value: sequence.generate(SamplingParams(max_tokens=2), value),
    "on_chunk": lambda sequence, value: sequence.generate(SamplingParams(max_tokens=2), None, value),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_of_a_sequence(sound, name):
    for value in some(VALUES, name, 40):
        if name == "on_chunk" and callable(value):
            continue  # what it makes of a chunk is its own affair
        ends(lambda value=value: OPERATIONS[name](prompted(sound), value))


def test_many_tokens_are_no_limit_of_how_many(engine):
    """10**310 of them are refused, all that a machine can count mean as many as the context has room for."""
    with pytest.raises(ConfigError, match="max_tokens must be below 9223372036854775808, got 1000"):
        prompted(engine).generate(SamplingParams(max_tokens=10**310)).result(SECONDS)
    futures = [prompted(engine).generate(SamplingParams(max_tokens=2**63 - 1, ignore_eos=True)) for _ in range(5)]
    assert [future.result(SECONDS).completion_tokens for future in futures] == [8] * 5
    for given in ({"stop_token_ids": range(10**12)}, {"logit_bias": dict.fromkeys(range(2**20 + 1), 1)}):
        with pytest.raises(ConfigError, match="give at most 1048576"):
            engine.generate("x", **given)
    with pytest.raises(ConfigError, match="give at most"):
        engine.open().extend(range(10**12))
    with pytest.raises(ConfigError, match=r"min_tokens must be below .*got 1000"):
        engine.generate("x", max_tokens=2**62, min_tokens=10**310)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", NAMES)
def test_an_option_of_a_program(sound, name):
    @sgl.function
    def program(s, options):
        s += "The text " + sgl.gen("x", **{"max_tokens": 3} | options)
        return s["x"]

    alias = {"max_new_tokens": "max_tokens"}.get(name, name)
    for value in some(VALUES, name):
        if type(value) in (Liar, Mute) or (name == "n" and isinstance(value, int) and value > 50):
            continue
        try:
            program.run(options={alias: value}, backend=sound, timeout=SECONDS)
        except (LanguageError, RuntimeFailure, ValueError, TypeError) as error:
            assert str(error)


def test_a_number_of_the_engine_s_own():
    for name in (
        "page_size",
        "step_tokens",
        "max_running",
        "threads",
        "context",
        "kv_tokens",
        "kv_memory",
        "host_kv",
        "memory",
        "seed",
        "heartbeat",
    ):
        for value in [value for value in VALUES if type(value) not in (Liar, Mute)]:
            try:
                EngineConfig.from_options({name: value})
            except ConfigError as error:
                assert name in str(error) and len(str(error)) < 2000
