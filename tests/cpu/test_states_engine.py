"""A hybrid in an engine: whatever happens to a sequence, its text is that of a cold run, and no state is lost."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from states_rig import Make, abort_some, make, paths, prompt, run, settled, walk
from test_scheduler_pressure import FOREVER, Held, some

from sgl.grammars import compile_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.cache import StateCheckpoint
from sgl.runtime.errors import ConfigError, OutOfPages, RuntimeFailure

__all__ = ["make", "paths"]

# prefixes


@pytest.mark.parametrize("case", ["lfm2", "lfm2, no attention"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_texts_are_those_of_a_cold_run_whatever_was_there_before(case: str, page_size: int, make: Make) -> None:
    engine, quiet = make(case, page_size=page_size, state_every=16), make(case)
    shared = prompt(1, 70)
    for cut in [70, 70, 33, 34, 64, 16, 40, 69, 1]:
        tokens = shared[:cut] + prompt(cut, 7)
        quiet.flush_cache()
        assert run(engine, tokens).token_ids == run(quiet, tokens).token_ids
    assert engine.stats().cached_tokens > 150


@pytest.mark.parametrize("page_size", [1, 8])
@pytest.mark.parametrize("ahead", [False, True])
def test_the_same_prompt_sent_twice_needs_one_token_more(page_size: int, ahead: bool, make: Make) -> None:
    engine, tokens = make(page_size=page_size, run_ahead=ahead), prompt(2, 101)
    first, second = run(engine, tokens), run(engine, tokens)
    assert first.token_ids == second.token_ids
    assert (first.cached_tokens, second.cached_tokens) == (0, 100 - 100 % page_size)


def test_where_prompts_part_the_next_one_leaves_a_state(make: Make) -> None:
    engine, shared = make(), prompt(3, 90)
    cached = [run(engine, shared + prompt(seed, 40)).cached_tokens for seed in range(3)]
    assert cached == [0, 0, 90] and engine.stats().states_missed == 90


def test_a_long_prompt_leaves_states_on_its_way(make: Make) -> None:
    engine, tokens = make(state_every=50), prompt(4, 180)
    run(engine, tokens)
    assert run(engine, tokens[:120] + prompt(5, 30)).cached_tokens == 100


def test_a_conversation_goes_on_from_its_answers(make: Make) -> None:
    engine, quiet = make(), make()
    tokens = prompt(6, 60)
    for turn in range(4):
        quiet.flush_cache()
        done = run(engine, tokens)
        assert done.token_ids == run(quiet, tokens).token_ids
        assert done.cached_tokens >= len(tokens) - 41 or not turn
        tokens = tokens + done.token_ids + prompt(turn, 40)


def test_a_new_prompt_waits_for_one_that_leaves_a_state_for_it(make: Make) -> None:
    engine, shared = make(step_tokens=64), prompt(7, 200)
    prompts = [shared + prompt(seed, 20) for seed in range(8)]
    sequences = [engine.open() for _ in prompts]
    with Held(engine):
        for sequence, tokens in zip(sequences, prompts, strict=True):
            sequence.extend(tokens)
        futures = [sequence.generate(some(4)) for sequence in sequences]
    found = [future.result(FOREVER) for future in futures]
    quiet = make()
    assert [done.token_ids for done in found] == [run(quiet, tokens, 4).token_ids for tokens in prompts]
    assert engine.stats().computed_tokens < 3 * 220 + 8 * 30


# forks, choices and cuts


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_children_go_on_from_the_parents_state(ahead: bool, page_size: int, make: Make) -> None:
    engine, quiet = make(run_ahead=ahead, page_size=page_size), make()
    tokens = prompt(8, 61)
    parent = engine.open()
    parent.extend(tokens)
    children, before = parent.fork(4), engine.stats().computed_tokens
    for index, child in enumerate(children[1:]):
        child.extend(prompt(index, index))
    futures = [each.generate(some(10)) for each in (*children, parent)]
    found = [future.result(FOREVER).token_ids for future in futures]
    tails = [[], *(prompt(index, index) for index in range(3)), []]
    assert found == [run(quiet, tokens + tail, 10).token_ids for tail in tails]
    assert engine.stats().computed_tokens - before < 61 + 5 * 20
    del parent, children, child
    settled(engine)


def test_scores_leave_no_states(make: Make) -> None:
    engine, quiet = make(states=8, max_running=4), make(states=200)
    for seed in range(3):
        tokens, choices = (
            prompt(seed, 50),
            [prompt(100 + n, 1 + n % 4) for n in range(20)] + [prompt(7, 40) + [n] for n in (4, 5, 6)],
        )
        found = []
        for each in (engine, quiet):
            sequence = each.open()
            sequence.extend(tokens)
            found.append(sequence.score(choices).result(FOREVER))
        for ours, theirs in zip(*found, strict=True):
            assert [token for _, token in ours] == [token for _, token in theirs]
            assert [logprob for logprob, _ in ours] == pytest.approx([logprob for logprob, _ in theirs], abs=1e-4)
    assert engine.stats().preemptions == 0


@pytest.mark.whole
@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_cut_is_computed_again_from_a_state_before_it(ahead: bool, make: Make) -> None:
    engine, quiet = make(run_ahead=ahead), make()
    sequence, dice = engine.open(), random.Random(3)
    tokens: list[int] = prompt(9, 20)
    sequence.extend(tokens)
    for _ in range(30):
        made = sequence.generate(some(dice.randint(1, 40))).result(FOREVER).token_ids
        assert made == run(quiet, tokens, len(made)).token_ids
        drop = dice.choice([0, 1, 2, 5, 30]) if len(tokens) < 300 else 250
        drop = min(drop, len(tokens + made) - 1)
        tokens = (tokens + made)[: len(tokens + made) - drop] + prompt(dice.randint(1, 99), dice.choice([0, 0, 1, 6]))
        kept = len(sequence.tokens()) - drop
        sequence.extend(tokens[kept:], drop)
    sequence.close()
    settled(engine)


@pytest.mark.parametrize("ahead", [False, True])
def test_stops_that_cut_tokens(ahead: bool, make: Make) -> None:
    engine, quiet = make(run_ahead=ahead), make()
    for seed in range(6):
        tokens = prompt(seed, 40)
        plain = run(quiet, tokens, 30)
        stop = plain.text[len(plain.text) // 2 :][:3]
        if not stop or "�" in stop:
            continue
        sequence, params = engine.open(), SamplingParams(max_tokens=30, temperature=0, ignore_eos=True, stop=(stop,))
        sequence.extend(tokens)
        first = sequence.generate(params).result(FOREVER)
        rest = sequence.generate(some(8)).result(FOREVER).token_ids
        assert rest == run(quiet, tokens + first.token_ids, 8).token_ids


def test_log_probabilities_and_vectors_of_cached_tokens(make: Make) -> None:
    engine, quiet, tokens = make(), make(), prompt(11, 80)
    run(engine, tokens)
    for start in (1, 30, 79, 80):
        sequence, other = engine.open(), quiet.open()
        for each in (sequence, other):
            each.extend(tokens)
        quiet.flush_cache()
        ours, theirs = (each.logprobs(min(start, 79)).result(FOREVER)[0] for each in (sequence, other))
        assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=1e-4)
        assert sequence.embed().result(FOREVER) == pytest.approx(other.embed().result(FOREVER), abs=1e-4)


@pytest.mark.parametrize("ahead", [False, True])
def test_text_that_a_grammar_forces_takes_tokens_back(ahead: bool, make: Make) -> None:
    """Forced text is encoded together with the last tokens, which are dropped, and computed without being sampled."""
    engine, quiet = make(run_ahead=ahead), make()
    for index, pattern in enumerate(
        [r"[ab]{3} the end of it all [cd]{4}, and then (one|another) thing", r"(yes|no), (because|although) it is so"]
    ):
        sequence, tokens = engine.open(), prompt(20 + index, 50)
        sequence.extend(tokens)
        params = SamplingParams(max_tokens=80, temperature=0)
        made = sequence.generate(params, compile_regex(pattern, engine.vocabulary)).result(FOREVER)
        rest = sequence.generate(some(8)).result(FOREVER).token_ids
        assert made.forced_tokens and re.fullmatch(pattern, made.text)
        assert rest == run(quiet, tokens + made.token_ids, 8).token_ids


def test_keys_in_eight_bits_leave_the_states_alone(make: Make) -> None:
    engine, tokens = make("lfm2", kv_dtype="fp8"), prompt(14, 60)
    first, again = run(engine, tokens), run(engine, tokens)
    assert first.token_ids == again.token_ids and again.cached_tokens == 59
    assert {tensor.dtype for tensor in engine._core.runner.memory.tensors} == {torch.float32}


@pytest.mark.whole
def test_an_engine_process_keeps_states_too(make: Make, paths: Callable[[str], Path]) -> None:
    tokens = prompt(15, 60)
    with Engine(paths("lfm2"), dtype="float32", threads=1, kv_tokens=1024, device="cpu", process=True) as engine:
        assert run(engine, tokens).token_ids == run(engine, tokens).token_ids == run(make(), tokens).token_ids
        assert engine.stats().states_cached and engine.info()["states"]


def test_a_padded_decode_step_reads_nothing_and_writes_scrap() -> None:
    pytest.importorskip("triton")
    from sgl.runtime.executor.cuda_runner import StaticDecodeBatch
    from sgl.runtime.executor.gpu_page_table import GpuPageTable
    from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceState

    table = GpuPageTable(4, 64, 1, torch.device("cpu"))
    static = StaticDecodeBatch(4, table, torch.zeros(5, dtype=torch.int32), True)
    work = []
    for number, (trail, into) in enumerate([([StateCheckpoint(5, 7)], 0), ([StateCheckpoint(5, 8)], 9)]):
        seq = SequenceState(number)
        seq.tokens.extend(range(6))
        seq.slots.extend(range(1, 7))
        seq.trail, seq.into = trail, into
        work.append(ScheduledWork(seq, 5, 6))
    static.fill(work, [0, 1])
    assert static.batch.state_read.tolist() == [7, 8, 0, 0] and static.batch.state_write.tolist() == [7, 9, 1, 1]


# pressure


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["lfm2", "lfm2, no attention"])
@pytest.mark.parametrize("seed", range(4))
def test_everything_at_once(case: str, seed: int, make: Make) -> None:
    """More of it in tests/slow."""
    assert walk(make, case, seed, 100) > 15


def test_with_few_states_everybody_ends(make: Make) -> None:
    engine, quiet = make(states=4, max_running=2), make()
    prompts = [prompt(seed, 30) for seed in range(8)]
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    children = [child for sequence in sequences for child in sequence.fork(2)]
    futures = [each.generate(some(50)) for each in (*sequences, *children)]
    expected = [run(quiet, tokens, 50).token_ids for tokens in prompts]
    found = [future.result(FOREVER).token_ids for future in futures]
    assert found == expected + [tokens for tokens in expected for _ in range(2)]


def test_pins_may_not_take_all_states(make: Make) -> None:
    engine = make(states=8, max_running=4)
    pins = [engine.pin(prompt(seed, 20)) for seed in range(4)]
    with pytest.raises(OutOfPages, match="5 of the 8 states would be pinned"):
        engine.pin(prompt(9, 20))
    assert run(engine, prompt(0, 20) + [5]).cached_tokens == 20 and len(pins) == 4


def test_a_step_that_breaks_off_leaves_no_half_written_state(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, quiet = make(states=4, max_running=2), make()
    runner, calls = engine._core.runner, [0]
    forward = runner.model.layers[-1].forward

    def broken(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] % 7 == 0:
            raise RuntimeError("no luck")
        return forward(*args)

    monkeypatch.setattr(runner.model.layers[-1], "forward", broken)
    sequence, tokens = engine.open(), prompt(12, 30)
    sequence.extend(tokens)
    for _ in range(12):
        try:
            made = sequence.generate(some(5)).result(FOREVER).token_ids
        except RuntimeFailure:
            tokens = sequence.tokens().tolist()
            continue
        assert made == run(quiet, tokens, 5).token_ids
        tokens += made


def test_sleep_forgets_every_state(make: Make) -> None:
    engine, tokens = make(), prompt(13, 60)
    expected = run(engine, tokens).token_ids
    freed = engine.sleep()
    assert freed >= engine.info()["state_bytes"] and engine._core.runner.memory.bytes == 0
    engine.wake()
    assert run(engine, tokens).token_ids == expected
    assert engine.stats().states_total == engine.info()["states"]


def test_an_abort_gives_its_states_back(make: Make) -> None:
    abort_some(make(run_ahead=True), 5)


# options


def test_options(make: Make, tiny: Path) -> None:
    engine = make(kv_tokens=1024, max_running=8, state_every=128)
    assert engine.info()["states"] == 4 * 8 + 1024 // 128 and engine.info()["state_every"] == 128
    assert engine.stats().states_total == engine.stats().states_free == 40
    with pytest.raises(ConfigError, match=r"host_kv='1MB'.*keys and values only"):
        make(host_kv="1MB")
    with pytest.raises(ConfigError, match=r"2 states of .* at least 4"):
        make(states=2)
    with pytest.raises(ConfigError, match=r"states=3.*no layer of this model keeps a state"):
        Engine(tiny, states=3)
    with pytest.raises(ConfigError, match=r"state_share=1\.5"):
        make(state_share=1.5)
    assert make(states=6, max_running=8).info()["max_running"] == 3
    shared = make(kv_tokens=None, kv_memory="2MB", state_share=0.25)
    assert (
        0 < shared.info()["state_bytes"] <= 0.25 * 2e6
        and shared.info()["kv_bytes"] + shared.info()["state_bytes"] <= 2.01e6
    )
