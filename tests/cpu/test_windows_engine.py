"""A model with windowed layers in an engine: whatever was given back, its text is that of a cold run that keeps all."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from states_rig import prompt, run
from test_scheduler_pressure import FOREVER, some
from test_states_programs import soak, unlogged
from windows_rig import EVERY, Make, make, paths, quiet, settled, walk

from sgl.grammars import compile_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, OutOfPages

__all__ = ["make", "paths", "unlogged"]

SMALL = {"kv_tokens": 1000, "window_tokens": 300}


# prefixes


@pytest.mark.few(2)
@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("page_size", [1, 4])
def test_texts_are_those_of_a_cold_run_whatever_was_there_before(case: str, page_size: int, make: Make) -> None:
    engine, cold = make(case, window_tokens=400, page_size=page_size), quiet(make, case)
    shared = prompt(1, 130)
    for cut in [130, 130, 33, 34, 64, 16, 40, 69, 1]:
        tokens = shared[:cut] + prompt(cut, 7)
        cold.flush_cache()
        assert run(engine, tokens, 40).token_ids == run(cold, tokens, 40).token_ids
    stats = engine.stats()
    assert stats.cached_tokens > 150 and stats.window_given_back > 400
    settled(engine)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "torch_native"},
        {"deterministic": True},
        {"kv_dtype": "fp8"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "kv_dtype": "fp8"},
        {"weights": "int8"},
    ],
)
@pytest.mark.parametrize("case", ["gemma3", "mistral", "gpt-oss"])
def test_on_every_path_of_attention(case: str, options: dict[str, Any], make: Make) -> None:
    """The same path without windows apart, cut into the same steps: not a bit of a text may change."""
    engine, cold = make(case, **SMALL, **options), make(case, kv_tokens=1000, window_tokens=1000, **options)
    for seed in range(4):
        tokens = prompt(seed, 100)
        for each in (engine, cold):
            each.flush_cache()
        assert run(engine, tokens, 40).token_ids == run(cold, tokens, 40).token_ids
    assert engine.stats().window_given_back and not engine.stats().window_missed


@pytest.mark.parametrize("case", ["gemma3", "gpt-oss", "mistral"])
def test_layers_in_torch_and_in_c_store_to_the_same_places(case: str, make: Make) -> None:
    engine, tokens = make(case, **SMALL), prompt(5, 200)
    compiled = run(engine, tokens, 30).token_ids
    assert engine._core.runner.model.step is not None
    engine._core.runner.model.step = None
    engine.flush_cache()
    assert run(engine, tokens, 30).token_ids == compiled


def test_where_prompts_part_the_next_one_leaves_its_window(make: Make) -> None:
    engine, shared = make(kv_tokens=1000, window_tokens=200), prompt(3, 160)
    cached = []
    for seed in range(3):
        cached.append(run(engine, shared + prompt(seed, 150)).cached_tokens)
        run(engine, prompt(seed + 10, 180))
    assert cached == [0, 0, 160] and engine.stats().window_missed == 160


def test_a_conversation_goes_on_from_its_answers(make: Make) -> None:
    engine, cold = make(**SMALL), quiet(make)
    tokens = prompt(6, 60)
    for turn in range(5):
        cold.flush_cache()
        done = run(engine, tokens)
        assert done.token_ids == run(cold, tokens).token_ids
        assert done.cached_tokens >= len(tokens) - 41 or not turn
        tokens = tokens + done.token_ids + prompt(turn, 40)


# forks, choices and cuts


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_children_go_on_from_the_parents_window(ahead: bool, page_size: int, make: Make) -> None:
    engine, cold = make(run_ahead=ahead, page_size=page_size, **SMALL), quiet(make)
    tokens = prompt(8, 161)
    parent = engine.open()
    parent.extend(tokens)
    children = parent.fork(4)
    for index, child in enumerate(children[1:]):
        child.extend(prompt(index, index))
    futures = [each.generate(some(30)) for each in (*children, parent)]
    found = [future.result(FOREVER).token_ids for future in futures]
    tails = [[], *(prompt(index, index) for index in range(3)), []]
    assert found == [run(cold, tokens + tail, 30).token_ids for tail in tails]
    assert engine.stats().computed_tokens < 161 + 5 * 40
    del parent, children, child
    settled(engine)


def test_choices_are_scored_as_by_who_keeps_all(make: Make) -> None:
    engine, cold = make(**SMALL), quiet(make)
    for seed in range(3):
        tokens, choices = (
            prompt(seed, 150),
            [prompt(100 + n, 1 + n % 4) for n in range(20)] + [prompt(7, 40) + [n] for n in (4, 5, 6)],
        )
        found = []
        for each in (engine, cold):
            sequence = each.open()
            sequence.extend(tokens)
            found.append(sequence.score(choices).result(FOREVER))
        for ours, theirs in zip(*found, strict=True):
            assert [logprob for logprob, _ in ours] == pytest.approx([logprob for logprob, _ in theirs], abs=1e-4)


@pytest.mark.whole
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("case", ["gemma3", "llama 4"])
def test_what_is_cut_is_computed_again_from_a_window_before_it(case: str, ahead: bool, make: Make) -> None:
    engine, cold = make(case, run_ahead=ahead, **SMALL), quiet(make, case)
    sequence, dice = engine.open(), random.Random(3)
    tokens: list[int] = prompt(9, 20)
    sequence.extend(tokens)
    for turn in range(30):
        made = sequence.generate(some(dice.randint(1, 40))).result(FOREVER).token_ids
        assert made == run(cold, tokens, len(made)).token_ids
        if turn % 5 == 0:
            run(engine, prompt(turn, 250))  # which takes what nobody holds
        drop = dice.choice([0, 1, 2, 5, 30, 60]) if len(tokens) < 300 else 250
        drop = min(drop, len(tokens + made) - 1)
        tokens = (tokens + made)[: len(tokens + made) - drop] + prompt(dice.randint(1, 99), dice.choice([0, 0, 1, 6]))
        kept = len(sequence.tokens()) - drop
        sequence.extend(tokens[kept:], drop)
    sequence.close()
    settled(engine)


def test_log_probabilities_and_vectors_of_cached_tokens(make: Make) -> None:
    engine, cold, tokens = make(**SMALL), quiet(make), prompt(11, 180)
    run(engine, tokens)
    for start in (1, 30, 170, 179):
        sequence, other = engine.open(), cold.open()
        for each in (sequence, other):
            each.extend(tokens)
        cold.flush_cache()
        ours, theirs = (each.logprobs(start).result(FOREVER)[0] for each in (sequence, other))
        assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=1e-4)
        assert sequence.embed().result(FOREVER) == pytest.approx(other.embed().result(FOREVER), abs=1e-4)


@pytest.mark.parametrize("ahead", [False, True])
def test_text_that_a_grammar_forces_takes_tokens_back(ahead: bool, make: Make) -> None:
    engine, cold = make(run_ahead=ahead, **SMALL), quiet(make)
    for index, pattern in enumerate(
        [r"[ab]{3} the end of it all [cd]{4}, and then (one|another) thing", r"(yes|no), (because|although) it is so"]
    ):
        sequence, tokens = engine.open(), prompt(20 + index, 150)
        sequence.extend(tokens)
        made = sequence.generate(
            SamplingParams(max_tokens=80, temperature=0), compile_regex(pattern, engine.vocabulary)
        ).result(FOREVER)
        rest = sequence.generate(some(8)).result(FOREVER).token_ids
        assert made.forced_tokens and re.fullmatch(pattern, made.text)
        assert rest == run(cold, tokens + made.token_ids, 8).token_ids


# memory


def test_an_engine_says_what_it_keeps_and_what_that_saves(make: Make) -> None:
    engine, whole = make(kv_tokens=2000, window_tokens=500), make(kv_tokens=2000, window_tokens=2000)
    info = engine.info()
    assert (info["kv_tokens"], info["window_tokens"]) == (2000, 500)
    assert info["windows"] == "6 of 7 layers see at most 9 tokens, and have rows for 500"
    assert info["kv_bytes"] * 2001 * 7 == whole.info()["kv_bytes"] * (2001 + 6 * 501)
    run(engine, prompt(1, 450), 10)
    run(engine, prompt(2, 450), 10)
    stats = engine.stats()
    assert stats.window_pages_total == 500 and stats.window_pages_held == 0
    assert stats.pages_total - stats.pages_free == 918 and stats.window_saved == pytest.approx(1 - 500 / 918)
    assert stats.window_given_back >= 850 and whole.stats().window_pages_total == 0


def test_a_pool_of_half_the_memory_serves_more_text(make: Make) -> None:
    """1,800 cached tokens of three conversations, where a pool of as many bytes had room for 700."""
    engine = make(kv_tokens=1900, window_tokens=240)
    prompts = [prompt(seed, 600)[:500] for seed in range(3)]
    for _ in range(2):
        found = [run(engine, tokens, 4).cached_tokens for tokens in prompts]
    assert found == [499] * 3


def test_memory_is_shared_out_by_what_texts_of_a_typical_length_need(make: Make) -> None:
    info = make(kv_tokens=None, kv_memory="3MB").info()
    assert info["window_tokens"] == info["kv_tokens"] // 4 and 2_900_000 < info["kv_bytes"] < 3_100_000


@pytest.mark.parametrize(
    ("case", "options", "words"),
    [
        ("gemma3", {"host_kv": "1MB"}, "host_kv keeps whole pages"),
        ("gemma3", {"kv_tokens": 150}, "a pool of 150 tokens gains nothing from windows of 9 kept apart"),
        ("gemma3", {"window_tokens": 5000}, "window_tokens=5000 is no less than kv_tokens=4096"),
    ],
)
def test_where_all_layers_keep_all_tokens_it_says_why(
    case: str, options: dict[str, Any], words: str, make: Make
) -> None:
    engine = make(case, **options)
    assert (
        engine.info()["windows"] == f"layers with a window keep all tokens: {words}"
        and not engine.info()["window_tokens"]
    )
    assert run(engine, prompt(1, 100)).token_ids == run(quiet(make, case), prompt(1, 100)).token_ids


def test_options_that_do_not_go_together_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"window_tokens=50\): windows of 9 tokens and steps of 64 need 158 at least"):
        make(window_tokens=50)
    with pytest.raises(ConfigError, match="give kv_tokens too"):
        make(window_tokens=500, kv_tokens=None)
    with pytest.raises(ConfigError, match="no layer of this model has a window"):
        make("llama", window_tokens=500)
    assert make("llama").info()["windows"] is None


def test_pins_may_not_hold_all_rows(make: Make) -> None:
    engine = make(kv_tokens=2000, window_tokens=160)
    pins = []
    with pytest.raises(OutOfPages, match="pages of layers with a window would be pinned, more than half"):
        while len(pins) < 20:
            pins.append(engine.pin(prompt(len(pins), 90)))
    assert 5 < len(pins) < 9 and run(engine, prompt(0, 90) + [5]).cached_tokens == 90
    run(engine, prompt(50, 400), 50)
    assert run(engine, prompt(0, 90) + [5]).cached_tokens == 90


def test_sleep_gives_windows_back_too(make: Make) -> None:
    engine, cold, tokens = make(**SMALL), quiet(make), prompt(1, 200)
    expected = run(cold, tokens, 30).token_ids
    pin = engine.pin(tokens[:150])
    for _ in range(2):
        assert run(engine, tokens, 30).token_ids == expected
        assert engine.sleep() > 0
        engine.wake()
    assert run(engine, tokens, 30).token_ids == expected
    pin.release()
    settled(engine)


def test_other_weights_and_transformers_own_layers_find_their_windows(make: Make, paths: Callable[[str], Path]) -> None:
    engine, tokens = make(**SMALL), prompt(1, 200)
    expected = run(quiet(make), tokens, 30).token_ids
    assert run(engine, tokens, 30).token_ids == expected
    engine.update_weights(paths("gemma3"))
    assert run(engine, tokens, 30).token_ids == expected
    generic = make(implementation="transformers", **SMALL)
    assert run(generic, tokens, 30).token_ids == expected and generic.stats().window_given_back


@pytest.mark.whole
def test_an_engine_process_gives_back_too(make: Make, paths: Callable[[str], Path]) -> None:
    tokens = prompt(15, 160)
    with Engine(
        paths("gemma3"), dtype="float32", threads=1, kv_tokens=1024, step_tokens=64, device="cpu", process=True
    ) as engine:
        assert (
            run(engine, tokens, 60).token_ids
            == run(engine, tokens, 60).token_ids
            == run(quiet(make), tokens, 60).token_ids
        )
        assert engine.stats().window_given_back and engine.info()["window_tokens"] == 280


# pressure


@pytest.mark.few(2)
@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("seed", range(2))
def test_everything_at_once(case: str, seed: int, make: Make) -> None:
    """More of it in tests/slow."""
    assert walk(make, case, seed, 60) > 5


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["gemma3", "gpt-oss"])
def test_programs_side_by_side_are_those_alone(case: str, make: Make) -> None:
    def opened(case: str, states: int = 0, **options: Any) -> Engine:
        return make(case, **({"window_tokens": 200} if options else {"window_tokens": 4096}) | options)

    assert soak(opened, case, 0, 8) > 5


def test_with_few_rows_everybody_ends_and_nobody_loses_a_place_for_them(make: Make) -> None:
    engine, cold = make(kv_tokens=3000, window_tokens=170, max_running=16), quiet(make)
    prompts = [prompt(seed, 60) for seed in range(12)]
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    children = [child for sequence in sequences for child in sequence.fork(2)]
    futures = [each.generate(some(50)) for each in (*sequences, *children)]
    expected = [run(cold, tokens, 50).token_ids for tokens in prompts]
    found = [future.result(FOREVER).token_ids for future in futures]
    assert found == expected + [tokens for tokens in expected for _ in range(2)]
    assert engine.stats().preemptions == 0
