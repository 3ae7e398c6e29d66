"""Embeddings against the hidden states of transformers: chunked, preempted,
among other work, on the pages of others.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import FAMILIES, SPECIAL, reference_model, write_checkpoint
from test_models import VARIANTS

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, ContextLengthError, RequestAborted
from sgl.runtime.models import decoder

TEXTS = ["The quick brown fox", "jumps over the lazy dog. " * 6, "1 + 1 = 2\n", "x"]
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


def reference(family: str, rows: list[list[int]]) -> np.ndarray:
    """Of each row of tokens the mean of the last hidden states, which transformers has behind the final norm."""
    model = reference_model(family)
    with torch.no_grad():
        states = [model.model(torch.tensor([row])).last_hidden_state[0] for row in rows]
    return np.stack([state.mean(0).numpy() for state in states])


def rows_of(engine: Engine, texts: list[str] = TEXTS) -> list[list[int]]:
    return [engine.tokenizer.encode(text, special_prefix=True).tolist() for text in texts]


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.dtype == np.float32 and np.allclose(found, wanted, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_the_means_that_transformers_gives(family, tmp_path, open_engine):
    engine = open_engine(model=write_checkpoint(tmp_path, family, tokenizer=True))
    assert close(engine.embed(TEXTS), reference(family, rows_of(engine)))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("step_tokens", [1, 7, 64])
def test_chunks_add_up(open_engine, step_tokens, page_size):
    engine = open_engine(step_tokens=step_tokens, page_size=page_size)
    assert close(engine.embed(TEXTS), reference("llama", rows_of(engine)))


def test_bfloat16_keeps_the_direction(tiny):
    with Engine(tiny, dtype="bfloat16", threads=1, kv_tokens=512) as engine:
        found, wanted = engine.embed(TEXTS, normalize=True), reference("llama", rows_of(engine))
    assert (np.sum(found * wanted, axis=1) / np.linalg.norm(wanted, axis=1) > 0.99).all()


def test_one_text_many_texts_and_length_one(engine):
    one, many = engine.embed(TEXTS[1]), engine.embed(TEXTS, normalize=True)
    assert one.shape == (1, engine.info()["hidden_size"]) and many.shape == (4, one.shape[1])
    assert np.allclose(np.linalg.norm(many, axis=1), 1, atol=1e-5)
    assert np.allclose(one[0] / np.linalg.norm(one[0]), many[1], atol=1e-5)


def test_among_generations_and_scores(open_engine):
    """Their logits and its sums come of the same steps."""
    engine = open_engine(step_tokens=24)
    alone = [engine.generate(text, GREEDY).text for text in TEXTS]
    engine.flush_cache()
    texts = [engine.open() for _ in TEXTS]
    futures = []
    for sequence, row in zip(texts, rows_of(engine), strict=True):
        beside, scored = engine.open(), engine.open()
        for each in (sequence, beside, scored):
            each.extend(row)
        futures.append((sequence.embed(), beside.generate(GREEDY), scored.score([[5, 6, 7], [8]])))
    assert close(np.stack([embedded.result() for embedded, *_ in futures]), reference("llama", rows_of(engine)))
    assert [generated.result().text for _, generated, _ in futures] == alone
    assert all(len(scores.result()) == 2 for *_, scores in futures)


def test_what_is_cached_is_computed_again_and_what_it_computes_is_reused(engine):
    row = rows_of(engine)[1]
    sequence = engine.open()
    sequence.extend(row)
    sequence.prefill().result()
    before = engine.stats()
    first = sequence.embed().result()
    assert (engine.stats() - before).computed_tokens == len(row)
    assert close(first, reference("llama", [row])[0])
    sequence.close()
    before = engine.stats()
    follower = engine.open()
    follower.extend([*row, 40])
    follower.generate(GREEDY).result()
    assert (engine.stats() - before).cached_tokens >= len(row)


def test_it_goes_on_as_it_was(open_engine):
    engine = open_engine(page_size=4)
    plain, embedded = engine.open(), engine.open()
    for sequence in (plain, embedded):
        sequence.extend(rows_of(engine)[1])
    child = embedded.fork(1)[0]
    vectors = [sequence.embed() for sequence in (embedded, child)]
    assert np.allclose(vectors[0].result(), vectors[1].result(), atol=1e-5)
    texts = [sequence.generate(GREEDY).result().text for sequence in (plain, embedded, child)]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("seed", range(6))
def test_preempted_between_any_two_steps(open_engine, seed):
    """No sum is lost and none counts twice, whatever was on its way when the pages were taken."""
    engine = open_engine(step_tokens=16, page_size=[1, 4][seed % 2])
    core, dice = engine._core, np.random.default_rng(seed)

    def disturb() -> None:
        core.check()
        if core.scheduler.running and dice.random() < 0.3:
            core.scheduler.preempt(core.scheduler.running[dice.integers(len(core.scheduler.running))])

    core.after_step = disturb
    texts = [text * 3 for text in TEXTS]
    assert close(engine.embed(texts), reference("llama", rows_of(engine, texts)))
    assert engine.stats().preemptions


def test_a_pool_too_small_for_all_of_them(open_engine):
    engine = open_engine(kv_tokens=200, step_tokens=32)
    texts = [chr(97 + i) * 150 for i in range(6)]
    assert close(engine.embed(texts), reference("llama", rows_of(engine, texts)))


def test_it_sleeps_in_the_middle(open_engine):
    engine = open_engine(step_tokens=8)
    sequence = engine.open()
    sequence.extend(rows_of(engine)[1])
    future = sequence.embed()
    engine.sleep()
    engine.wake()
    assert close(future.result(), reference("llama", rows_of(engine)[1:2])[0])


def test_refusals(open_engine):
    engine = open_engine(step_tokens=4)
    with pytest.raises(ConfigError, match="empty sequence"):
        engine.open().embed().result()
    with pytest.raises(ConfigError, match="no texts"):
        engine.embed([])
    with pytest.raises(ContextLengthError):
        engine.embed("word " * 600)
    sequence = engine.open()
    sequence.extend([40] * 400)
    future = sequence.embed()
    sequence.abort()
    with pytest.raises(RequestAborted):
        future.result()
    engine._core.runner.forward = lambda work: 1 / 0
    with pytest.raises(Exception, match="a step of the engine failed"):
        engine.embed("x")


def test_states_that_are_not_finite_are_an_error(tmp_path, open_engine):
    engine = open_engine(model=write_checkpoint(tmp_path, "llama", tokenizer=True))
    engine._core.runner.model.head.norm.weight.fill_(float("nan"))
    with pytest.raises(Exception, match="not finite"):
        engine.embed("x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, tests/gpu does the same")
@pytest.mark.parametrize("variant", ["llama biases", "qwen3"])
def test_the_kernels_of_a_gpu_leave_the_same_sums(variant, tmp_path, monkeypatch):
    """In Triton's interpreter; in one step some want logits too, and a step of one token has kernels of its own."""
    pytest.importorskip("triton")
    import piecewise_checks as checks

    monkeypatch.setattr(checks._Op, "pool", lambda self, seq, lo, hi: range(lo, hi))
    family, overrides = VARIANTS[variant]
    path = write_checkpoint(tmp_path, family, num_hidden_layers=2, **overrides)
    found = [list(sums_of_steps(checks, path, fused, monkeypatch)) for fused in (True, False)]
    for (sums, logits), (expected_sums, expected_logits) in zip(*found, strict=True):
        torch.testing.assert_close(sums, expected_sums, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)


def sums_of_steps(checks, path, fused: bool, monkeypatch):
    """The sums and the logits of some steps."""
    monkeypatch.setattr(decoder, "_can_fuse", lambda device: fused)
    half = checks.Half(path, "cpu", torch.float32, "torch_native", None)
    forward, batches = half.model.forward, []
    half.model.forward = lambda batch, attention: forward(batches.append(batch) or batch, attention)
    free = iter(range(1, 200))
    for counts, wanted in [((2, 3, 5), 1), ((1, 4), 0), ((1,), 0), ((1,), 1), ((6,), None)]:
        rows = [checks.Row(range(5, 5 + count)) for count in counts]
        for row, count in zip(rows, counts, strict=True):
            row.slots = np.array([next(free) for _ in range(count)], np.int32)
        logits = half.step(rows, counts, wanted)
        assert len(batches[-1].sums) == len(counts)
        yield batches[-1].sums, logits


def test_the_bundled_model():
    with Engine(threads=1) as engine:
        near, same, far = engine.embed(
            ["I want to book a table.", "I want to book a table!", SPECIAL[0] * 20], normalize=True
        )
    assert near @ same > near @ far
