"""The engine against transformers and against itself: nothing but speed may depend on how work is scheduled."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
import torch
from alone import alone
from checkpoints import reference_model
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime import Engine, SamplingParams, Tokenizer
from sgl.runtime.errors import EngineClosed, RequestAborted, RuntimeFailure

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=length)


def run(engine: Engine, tokens: list[int], params: SamplingParams = GREEDY) -> list[int]:
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence.generate(params).result(60).token_ids


@pytest.fixture(scope="module")
def reference(tiny):
    model = reference_model("llama")
    unused = list(range(Tokenizer.load(tiny).vocab_size, 320))  # columns that no token of the tokenizer has
    known: dict[tuple[int, ...], list[int]] = {}

    def greedy(tokens: list[int], count: int = 12) -> list[int]:
        key = (*tokens, -count)
        if key not in known:
            ids = torch.tensor([tokens])
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                eos_token_id=None,
                pad_token_id=0,
                suppress_tokens=unused or None,
            )
            known[key] = out[0, len(tokens) :].tolist()
        return known[key]

    return greedy


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("step_tokens", [3, 16, 512])
def test_greedy_equals_transformers_cold_and_cached_whatever_the_chunks_and_pages(
    open_engine, reference, page_size, step_tokens
):
    engine = open_engine(page_size=page_size, step_tokens=step_tokens)
    shared = prompt(1, 40)
    prompts = [shared + prompt(seed, 5 + seed) for seed in range(6)] + [shared[:17], prompt(9, 1)]
    expected = [reference(p) for p in prompts]
    for _ in range(2):  # cold, then from the cache
        sequences = [engine.open() for _ in prompts]
        for sequence, tokens in zip(sequences, prompts, strict=True):
            sequence.extend(tokens)
        futures = [sequence.generate(GREEDY) for sequence in sequences]
        assert [future.result(60).token_ids for future in futures] == expected
    assert engine.stats().cached_tokens > 300


def test_two_identical_cold_prompts_under_pool_pressure(open_engine, reference):
    """Trap 7.1: pages that lose the race into the tree must not be read after they are freed."""
    tokens, params = prompt(3, 40), SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    engine = open_engine(kv_tokens=260)
    sequences = [engine.open() for _ in range(5)]
    for sequence in sequences:
        sequence.extend(tokens)
    results = [f.result(60).token_ids for f in [sequence.generate(params) for sequence in sequences]]
    assert results == [reference(tokens, 60)] * 5


def test_preemption_never_changes_a_text(open_engine, reference):
    """Trap 7.5: sequences are thrown out of the batch every few steps."""
    engine = open_engine(step_tokens=32)
    scheduler, core = engine._core.scheduler, engine._core
    steps = iter(range(10**9))

    def disturb() -> None:
        if next(steps) % 3 == 0 and scheduler.running:
            scheduler.preempt(scheduler.running[-1])
        core.check()

    core.after_step = disturb
    prompts = [prompt(seed, 10 + 7 * seed) for seed in range(8)]
    futures = []
    for tokens in prompts:
        sequence = engine.open()
        sequence.extend(tokens)
        futures.append(sequence.generate(GREEDY))
    assert [future.result(60).token_ids for future in futures] == [reference(tokens) for tokens in prompts]
    assert engine.stats().preemptions > 3


def test_a_small_pool_preempts_by_itself_and_loses_nothing(open_engine, reference):
    engine = open_engine(kv_tokens=150)
    params = SamplingParams(max_tokens=50, temperature=0, ignore_eos=True)
    prompts = [prompt(seed, 30) for seed in range(10)]
    futures = []
    for tokens in prompts:
        sequence = engine.open()
        sequence.extend(tokens)
        futures.append(sequence.generate(params))
        del sequence  # closes when it is done
    assert [future.result(60).token_ids for future in futures] == [reference(tokens, 50) for tokens in prompts]


def test_queued_sequences_that_hold_pages_give_way(open_engine, reference):
    """Scoring forks of many prompts wait with their parents' pages: the pool has no room for all of them."""
    engine = open_engine(kv_tokens=4 * 29, max_running=2)  # full when four prompts wait for their scores
    prompts = [prompt(seed, 30) for seed in range(12)]
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    scores = [sequence.score([[5, 6], [7], [8, 9]]) for sequence in sequences]
    futures = [sequence.generate(GREEDY) for sequence in sequences]
    assert [[len(choice) for choice in score.result(60)] for score in scores] == [[2, 1, 2]] * 12
    assert [future.result(60).token_ids for future in futures] == [reference(tokens) for tokens in prompts]


def test_a_chain_of_extends_and_generates_runs_without_a_round_trip(engine, reference):
    sequence = engine.open()
    sequence.extend(prompt(1, 8))
    first = sequence.generate(GREEDY)
    sequence.extend(prompt(2, 5))
    second = sequence.generate(GREEDY)
    tokens = prompt(1, 8) + reference(prompt(1, 8)) + prompt(2, 5)
    assert first.result(60).token_ids == reference(prompt(1, 8))
    assert second.result(60).token_ids == reference(tokens)
    assert sequence.tokens().tolist() == tokens + reference(tokens)


@pytest.mark.parametrize("page_size", [1, 4])
def test_forks_share_the_parent_and_compute_it_once(open_engine, reference, page_size):
    engine = open_engine(page_size=page_size)
    parent, tokens = engine.open(), prompt(4, 50)
    parent.extend(tokens)
    children = parent.fork(6)
    for seed, child in enumerate(children):
        child.extend(prompt(seed, 3))
    futures = [child.generate(GREEDY) for child in reversed(children)]
    more = parent.generate(GREEDY)
    expected = [reference(tokens + prompt(seed, 3)) for seed in reversed(range(6))]
    assert [future.result(60).token_ids for future in futures] == expected
    assert more.result(60).token_ids == reference(tokens)
    computed = engine.stats().computed_tokens
    assert computed <= 50 + 6 * (3 + 12 + page_size) + 13


@pytest.mark.parametrize("page_size", [1, 4])
def test_what_another_computed_behind_a_fork_is_not_computed_again(open_engine, reference, page_size):
    engine = open_engine(page_size=page_size)
    head, tails = prompt(5, 9), [prompt(seed, 60) for seed in (6, 7)]
    expected = [reference(head + tail) for tail in tails]
    for again in (False, True):
        before, parent = engine.stats(), engine.open()
        parent.extend(head)
        children = parent.fork(2)
        for child, tail in zip(children, tails, strict=True):
            child.extend(tail)
        found = [child.generate(GREEDY) for child in children]
        assert [generation.result(60).token_ids for generation in found] == expected
        spent = engine.stats() - before
        reused = [generation.result().cached_tokens for generation in found]
        if again:
            assert spent.computed_tokens <= 2 * (GREEDY.max_tokens + page_size) and min(reused) >= 69 - 2 * page_size
        else:
            assert spent.computed_tokens > 120 and max(reused) <= 9
        engine.check()


def test_forks_of_forks_and_a_fork_in_the_middle_of_a_chain(engine, reference):
    sequence, tokens = engine.open(), prompt(5, 20)
    sequence.extend(tokens)
    sequence.generate(GREEDY)
    (child,) = sequence.fork(1)
    (grandchild,) = child.fork(1)
    sequence.extend([7])
    grandchild.extend([9])
    told = tokens + reference(tokens)
    assert grandchild.generate(GREEDY).result(60).token_ids == reference([*told, 9])
    assert child.generate(GREEDY).result(60).token_ids == reference(told)
    assert sequence.generate(GREEDY).result(60).token_ids == reference([*told, 7])


def test_dropped_tokens_are_gone_from_pages_and_text(engine, reference):
    sequence = engine.open()
    sequence.extend(prompt(1, 20))
    sequence.prefill().result(60)
    sequence.extend([5, 6], drop=4)
    expected = prompt(1, 20)[:16] + [5, 6]
    assert sequence.generate(GREEDY).result(60).token_ids == reference(expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("tree", [-1, 10**9])
def test_scores_by_a_tree_equal_scores_side_by_side(open_engine, reference, monkeypatch, tree):
    """Choices that begin alike, end inside one another, are equal or empty: scored in both ways."""
    monkeypatch.setattr("sgl.runtime.sequences.ops.score_op.WORTH_A_TREE", tree)
    engine, model = open_engine(step_tokens=64), reference_model("llama")
    rng = random.Random(5)
    tokens = prompt(1, 40)
    for _ in range(4):
        stems = [prompt(rng.randrange(50), rng.randrange(1, 4)) for _ in range(3)]
        choices = [[token for stem in rng.choices(stems, k=rng.randrange(4)) for token in stem] for _ in range(25)]
        sequence = engine.open()
        sequence.extend(tokens)
        scores = sequence.score(choices).result(60)
        after = sequence.generate(GREEDY).result(60).token_ids
        assert after == reference(tokens) and scores.prompt_tokens == len(tokens)
        with torch.no_grad():
            for choice, score in zip(choices, scores, strict=True):
                logprobs = model(torch.tensor([tokens + choice])).logits[0].log_softmax(-1)
                expected = [logprobs[len(tokens) - 1 + i, token].item() for i, token in enumerate(choice)]
                assert [token for _, token in score] == choice
                assert np.allclose([value for value, _ in score], expected, atol=1e-4)
    engine.check()


@pytest.mark.parametrize("page_size", [1, 4])
def test_scores_and_logprobs_equal_transformers(open_engine, page_size):
    engine = open_engine(page_size=page_size)
    model = reference_model("llama")
    tokens, choices = prompt(1, 30), [prompt(2, 1), prompt(3, 4), [], prompt(4, 9), prompt(2, 1)]
    sequence = engine.open()
    sequence.extend(tokens)
    scores = sequence.score(choices).result(60)
    own, top = sequence.logprobs(1, top=3).result(60)
    with torch.no_grad():
        for choice, score in zip(choices, scores, strict=True):
            logprobs = model(torch.tensor([tokens + choice])).logits[0].log_softmax(-1)
            expected = [logprobs[len(tokens) - 1 + i, token].item() for i, token in enumerate(choice)]
            assert [token for _, token in score] == choice
            assert np.allclose([value for value, _ in score], expected, atol=1e-4)
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert np.allclose([v for v, _ in own], [logprobs[i, t].item() for i, t in enumerate(tokens[1:])], atol=1e-4)
    assert [t for _, t in top[0]] == logprobs[0].topk(3).indices.tolist()
    assert sequence.tokens().tolist() == tokens


def test_a_seed_decides_the_text_whatever_else_runs(engine):
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=11, ignore_eos=True)
    alone = run(engine, prompt(1, 10), params)
    sequences = [engine.open() for _ in range(8)]
    for index, sequence in enumerate(sequences):
        sequence.extend(prompt(index, 10))
    futures = [
        s.generate(SamplingParams(max_tokens=20, seed=11 if i == 1 else i, ignore_eos=True))
        for i, s in enumerate(sequences)
    ]
    assert futures[1].result(60).token_ids == alone
    assert len({tuple(f.result(60).token_ids) for f in futures}) == 8


def test_logprobs_stand_beside_the_tokens(engine):
    """Trap 7.4: as many entries as tokens, also when a stop cuts."""
    sequence = engine.open()
    sequence.extend(prompt(1, 10))
    done = sequence.generate(
        SamplingParams(max_tokens=9, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=2)
    ).result(60)
    assert [token for _, token in done.logprobs] == done.token_ids and len(done.top_logprobs) == 9
    assert all(top[0][1] == token for top, token in zip(done.top_logprobs, done.token_ids, strict=True))
    none = sequence.generate(SamplingParams(max_tokens=0, logprobs=True, top_logprobs=4)).result(60)
    assert none.text == "" and none.token_ids == [] and len(none.top_logprobs[0]) == 4
    assert none.finish_reason == {"type": "length", "length": 0}


def test_a_stop_cuts_tokens_pages_and_text_together(engine, reference):
    tokens = prompt(1, 10)
    free = engine.generate(engine.tokenizer.decode(tokens), GREEDY)
    stop = free.text[4:6]
    sequence = engine.open()
    sequence.extend(engine.tokenizer.encode(engine.tokenizer.decode(tokens), special_prefix=True))
    before = len(sequence.tokens())
    done = sequence.generate(SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop=(stop,))).result(60)
    assert done.text == free.text[: free.text.index(stop)]
    assert done.finish_reason == {"type": "stop", "matched": stop}
    assert sequence.tokens().tolist()[before:] == done.token_ids
    assert engine.tokenizer.decode(done.token_ids) == done.text


def test_abort_in_every_state(open_engine, reference):
    """Trap 7.8: waiting, mid-chunk, decoding, queued behind, unborn, finished."""
    engine = open_engine(step_tokens=8, max_running=2)
    gate = threading.Event()
    holder = threading.Thread(target=lambda: engine._core.call(lambda: gate.wait(60)))
    holder.start()
    long = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
    decoding, chunking, waiting, parent = (engine.open() for _ in range(4))
    decoding.extend(prompt(1, 4))
    chunking.extend(prompt(2, 300))
    waiting.extend(prompt(3, 30))
    parent.extend(prompt(4, 20))
    started = threading.Event()
    futures = [
        decoding.generate(long, on_chunk=lambda chunk: started.set()),
        decoding.generate(GREEDY),
        chunking.generate(long),
        waiting.generate(long),
    ]
    (unborn,) = parent.fork(1)
    futures.append(unborn.generate(long))
    unborn.abort()
    gate.set()
    holder.join(60)
    assert started.wait(60)
    for sequence in (decoding, chunking, waiting):
        sequence.abort()
    for future in futures:
        with pytest.raises(RequestAborted):
            future.result(60)
    decoding.abort()  # finished: nothing happens
    engine.check()
    waiting.extend([5])
    assert waiting.generate(GREEDY).result(60).token_ids == reference([*prompt(3, 30), 5])


@pytest.mark.whole
@alone
def test_close_fails_all_that_wait(open_engine):
    """Trap 7.11."""
    before = set(threading.enumerate())
    engine = open_engine(max_running=4)
    sequences = [engine.open() for _ in range(100)]
    for index, sequence in enumerate(sequences):
        sequence.extend(prompt(index, 20))
    futures = [s.generate(SamplingParams(max_tokens=450, ignore_eos=True)) for s in sequences]
    engine.close()
    failed = 0
    for future in futures:
        try:
            future.result(1)
        except EngineClosed:
            failed += 1
    assert failed > 50
    with pytest.raises(EngineClosed):
        sequences[0].generate(GREEDY).result(1)
    with pytest.raises(EngineClosed, match="open a new one"):
        engine.open()
    left = set(threading.enumerate()) - before
    assert not any(t.name == "sgl-scheduler" and t.is_alive() for t in left)


def test_a_failing_step_fails_its_requests_and_the_engine_lives(engine, reference):
    forward = engine._core.runner.forward
    calls = iter(range(100))

    def fail_once(work):
        if next(calls) == 2:
            raise RuntimeError("the device is on fire")
        return forward(work)

    engine._core.runner.forward = fail_once
    with pytest.raises(RuntimeFailure, match="on fire"):
        run(engine, prompt(1, 10))
    assert run(engine, prompt(1, 10)) == reference(prompt(1, 10))


def test_a_sequence_closed_behind_a_failing_step_stays_closed(engine):
    engine._core.runner.forward = lambda work: 1 / 0
    sequence, gate = engine.open(), threading.Event()
    holder = threading.Thread(target=lambda: engine._core.call(lambda: gate.wait(60)))
    holder.start()
    sequence.extend(prompt(1, 10))
    future = sequence.generate(GREEDY)
    sequence.close()
    gate.set()
    holder.join(60)
    with pytest.raises(RuntimeFailure, match="ZeroDivisionError"):
        future.result(60)
    with pytest.raises(EngineClosed, match="the sequence is closed"):
        sequence.generate(GREEDY).result(60)
    until = time.monotonic() + 30
    while engine._core.life.live and time.monotonic() < until:  # another thread lets go of it
        engine.check()
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total and not engine._core.life.live


def test_a_chunk_callback_that_raises_fails_its_request_only(engine, reference):
    def bad(chunk):
        raise ValueError("consumer gone")

    sequence = engine.open()
    sequence.extend(prompt(1, 10))
    with pytest.raises(ValueError, match="consumer gone"):
        sequence.generate(GREEDY, on_chunk=bad).result(60)
    assert run(engine, prompt(2, 10)) == reference(prompt(2, 10))


def test_chunks_add_up_to_the_text(engine):
    chunks = []
    sequence = engine.open()
    sequence.extend(prompt(1, 10))
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, logprobs=True, stop=("zzz",))
    done = sequence.generate(params, on_chunk=chunks.append).result(60)
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert [token for chunk in chunks for token in chunk.token_ids] == done.token_ids
    assert [entry for chunk in chunks for entry in chunk.logprobs] == done.logprobs
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_schedules_give_the_same_texts(tiny, data):
    """Trap 7.2: chunks x hits x page sizes x pool sizes x forks, in any order of arrival."""
    options = {
        "page_size": data.draw(st.sampled_from([1, 4, 16])),
        "step_tokens": data.draw(st.sampled_from([2, 7, 64])),
        "kv_tokens": data.draw(st.sampled_from([160, 256, 1024])),
        "max_running": data.draw(st.sampled_from([1, 3, 16])),
        "run_ahead": data.draw(st.booleans()),
    }
    stems = [prompt(seed, 30) for seed in range(2)]
    with Engine(tiny, dtype="float32", threads=1, poison_freed=True, **options) as engine:
        engine._core.after_step = engine._core.check
        jobs, roots = [], []
        for _ in range(data.draw(st.integers(1, 12))):
            tokens = stems[data.draw(st.integers(0, 1))][: data.draw(st.integers(1, 30))]
            more = prompt(data.draw(st.integers(10, 13)), data.draw(st.integers(0, 6)))
            if roots and data.draw(st.booleans()):
                tokens, root = roots[data.draw(st.integers(0, len(roots) - 1))]
                (sequence,) = root.fork(1)
            else:
                sequence = engine.open()
                sequence.extend(tokens)
                roots.append((tokens, sequence))
                (sequence,) = sequence.fork(1)
            sequence.extend(more)
            jobs.append((tokens + more, sequence.generate(GREEDY)))
        results = [(tokens, future.result(60).token_ids) for tokens, future in jobs]
        engine.check()
    model_greedy = _shared_reference(tiny)
    for tokens, result in results:
        assert result == model_greedy(tokens)


_KNOWN: dict[tuple[int, ...], list[int]] = {}


def _shared_reference(tiny):
    """Alone, cold, in one chunk: the slow way through the same engine (itself compared with transformers above)."""

    def greedy(tokens: list[int]) -> list[int]:
        if tuple(tokens) not in _KNOWN:
            with Engine(tiny, dtype="float32", threads=1, kv_tokens=1024) as engine:
                _KNOWN[tuple(tokens)] = run(engine, tokens)
        return _KNOWN[tuple(tokens)]

    return greedy


def test_an_engine_seed_repeats_a_row_of_generations_that_differ(open_engine):
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    first, second = open_engine(seed=4), open_engine(seed=4)
    rows = [[run(engine, prompt(1, 8), params) for _ in range(3)] for engine in (first, second)]
    assert rows[0] == rows[1] and len({tuple(row) for row in rows[0]}) == 3
