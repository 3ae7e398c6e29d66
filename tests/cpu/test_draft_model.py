"""A draft model changes no text, follows whatever becomes of its sequences, and loses no page."""

from __future__ import annotations

import gc
import json
import random
import shutil
import weakref
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from draft_rig import PROMPTS, cases, grammars, opened, parts
from draft_walk import walk
from safetensors.torch import load_file, save_file
from states_rig import write_case
from test_speculation import expected, plain

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.engine import NANO
from sgl.runtime.errors import ConfigError, RequestAborted
from sgl.runtime.speculative.draft_length_control import DraftLengthControl
from sgl.runtime.speculative.draft_model_timing import CHAIN, SOURCE, DraftModelTiming
from sgl.runtime.speculative.model_drafter import LEAST, NEAR, ModelDrafter

__all__ = ["expected", "plain"]

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "threads": 1,
    "kv_tokens": 8192,
    "deterministic": True,
    "speculation": "auto",
    "poison_freed": True,
}


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with the bundled one's tokenizer: a tiny random one, and itself with noise in its weights."""
    where = tmp_path_factory.mktemp("drafts")
    vocabulary = json.loads((NANO / "config.json").read_text())["vocab_size"]
    write_checkpoint(where / "tiny", "llama", vocab_size=vocabulary, max_position_embeddings=512)
    shutil.copytree(NANO, where / "noisy")
    draw = torch.Generator().manual_seed(1)
    for file in (where / "noisy").glob("*.safetensors"):
        save_file({name: _noisy(weight, draw) for name, weight in load_file(file).items()}, file, {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, where / "tiny" / name)
    return {"tiny": where / "tiny", "noisy": where / "noisy", "itself": NANO}


def _noisy(weight: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    floats = weight.float()
    return (floats + 0.1 * floats.std() * torch.randn(floats.shape, generator=draw)).to(weight.dtype)


def drafter(engine: Engine) -> ModelDrafter:
    found = engine._core.life.speculation
    assert found is not None and found.model is not None
    return found.model


def opened_with(draft: Path, alone: bool = True, **options: Any) -> Engine:
    """alone: nothing else drafts, and every draft is taken. Pages are checked after each step."""
    engine = Engine(**OPTIONS | {"draft": draft} | options)
    found, model = engine._core.life.speculation, drafter(engine)
    assert found is not None
    if alone:
        found.drafters, found.control, model.timing.control = [], None, None

    def check() -> None:
        engine._core.check()
        model.draft_states.check()

    engine._core.after_step = check
    return engine


@pytest.fixture(scope="module", params=["tiny", "noisy, pages of 16", "noisy, under control"])
def drafting(request: pytest.FixtureRequest, drafts: dict[str, Path]) -> Iterator[Engine]:
    name, _, how = request.param.partition(", ")
    with opened_with(drafts[name], how != "under control", page_size=16 if how == "pages of 16" else 1) as engine:
        yield engine


@pytest.mark.whole
def test_the_text_is_the_text_without(drafting: Engine, expected: list[Any]) -> None:
    kinds, drafted, many = grammars(drafting), 0, list(zip(cases(drafting), expected, strict=True))
    for start, stop in pairwise([*range(6), *range(6, len(many), 6), len(many)]):  # some alone, then six at a time
        futures = [opened(drafting, text).generate(params, kinds[kind]) for (text, params, kind), _ in many[start:stop]]
        for future, (case, wanted) in zip(futures, many[start:stop], strict=True):
            found = future.result(60)
            assert parts(found) == parts(wanted), case
            drafted += found.drafted_tokens
    assert drafted > 0


@pytest.mark.few(1)
def test_many_at_once_and_what_stands_on_them(drafting: Engine, plain: Engine) -> None:
    texts = []
    for engine in (plain, drafting):
        kinds, sequences = grammars(engine), [opened(engine, text) for text, *_ in cases(engine)]
        first = [s.generate(params, kinds[kind]) for s, (_, params, kind) in zip(sequences, cases(engine), strict=True)]
        children = [s.fork(2) for s in sequences[:6]]
        doomed = [s.generate(SamplingParams(max_tokens=400, ignore_eos=True)) for s in sequences[6:9]]
        for sequence in sequences[9:12]:
            sequence.extend(engine.tokenizer.encode(" and then"), drop=2)
        second = [
            child.generate(SamplingParams(max_tokens=9, seed=n)) for n, pair in enumerate(children) for child in pair
        ]
        second += [s.generate(SamplingParams(max_tokens=9, temperature=0)) for s in sequences[9:12]]
        for sequence in sequences[6:9]:
            sequence.abort()
        texts.append([parts(future.result(60)) for future in (*first[:6], *first[9:], *second)])
        for future in doomed:
            with pytest.raises(RequestAborted):
                future.result(60)
    assert texts[0] == texts[1]
    drafting.flush_cache()
    cache = drafter(drafting).draft_states.cache
    assert drafting._core.call(lambda: cache.pool.free) == cache.pool.total


@pytest.mark.whole
def test_what_drafts_as_the_target_does_is_always_right(drafts: dict[str, Path], plain: Engine) -> None:
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    with opened_with(drafts["itself"]) as engine:
        before = engine.stats()
        futures = [opened(engine, text).generate(params) for text in PROMPTS]
        results = [future.result(60) for future in futures]
        spent = engine.stats() - before
        for text, found in zip(PROMPTS, results, strict=True):
            assert found.token_ids == opened(plain, text).generate(params).result(60).token_ids
        assert spent.drafted_tokens == spent.accepted_tokens >= 50 * len(PROMPTS)
        assert spent.steps <= 12 and spent.draft_seconds > 0
        told, stats = engine.info()["draft"], engine.stats()
        assert told["path"] == str(NANO) and told["kv_tokens"] == 8192 and told["kv_bytes"] == 8193 * 8192
        assert engine.info()["memory"]["kv"] == engine.info()["kv_bytes"] + told["kv_bytes"]
        assert stats.draft_pages_total == 8192 > stats.draft_pages_free and stats.draft_computed_tokens > 300


@pytest.mark.whole
def test_pages_are_short(drafts: dict[str, Path], plain: Engine) -> None:
    """Sequences are preempted by each other, and the draft model has no room for all of them either."""
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    with opened_with(drafts["noisy"], kv_tokens=192) as engine:
        futures = [opened(engine, text).generate(params) for text in PROMPTS]
        for text, future in zip(PROMPTS, futures, strict=True):
            assert future.result(60).token_ids == opened(plain, text).generate(params).result(60).token_ids
        assert engine.stats().preemptions and engine.stats().accepted_tokens


def test_a_shadow_that_is_behind_catches_up_piece_by_piece(drafts: dict[str, Path]) -> None:
    """A prompt that the target has cached and the draft model has not; no draft until it has."""
    draw, sizes = random.Random(2), []
    prompt = [draw.randrange(300, 2000) for _ in range(300)]
    with opened_with(drafts["itself"]) as engine:
        sequence = engine.open()
        sequence.extend(prompt)
        sequence.prefill().result(60)
        opened(engine, "x").generate(SamplingParams(max_tokens=3, ignore_eos=True)).result(60)
        model, forward = drafter(engine), drafter(engine).runner.forward

        def counting(work: list[Any]) -> Any:
            sizes.append(max(item.hi - item.lo for item in work))
            return forward(work)

        model.runner.forward = counting  # type: ignore[method-assign]
        found = sequence.generate(SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)).result(60)
        behind = [size for size in sizes if size > NEAR]
        assert 300 / LEAST - 1 <= len(behind) <= 300 / LEAST + 1 and max(behind) == LEAST
        assert found.accepted_tokens == found.drafted_tokens >= 24 - len(behind) - 4
        child, sizes[:] = sequence.fork(1)[0], []
        child.generate(SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)).result(60)
        assert max(sizes) <= NEAR, "what its parent has computed is there"


def test_prompts_are_read_along(drafts: dict[str, Path]) -> None:
    with opened_with(drafts["itself"], step_tokens=64) as engine:
        sequence = engine.open()
        sequence.extend([random.Random(4).randrange(300, 2000) for _ in range(200)])
        found = sequence.generate(SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)).result(60)
        assert found.accepted_tokens == found.drafted_tokens >= 20


def test_texts_beyond_its_context_are_not_drafted(drafts: dict[str, Path], plain: Engine) -> None:
    prompt = [random.Random(5).randrange(300, 2000) for _ in range(500)]
    texts = []
    with opened_with(drafts["tiny"]) as engine:
        for each in (plain, engine):
            sequence = each.open()
            sequence.extend(prompt)
            texts.append(
                sequence.generate(SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)).result(60).token_ids
            )
    assert texts[0] == texts[1]


def test_sleep_and_wake(drafts: dict[str, Path], plain: Engine) -> None:
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    with opened_with(drafts["itself"]) as engine:
        opened(engine, PROMPTS[0]).generate(params).result(60)
        held = engine.info()["kv_bytes"] + engine.info()["draft"]["kv_bytes"]
        assert engine.sleep() >= held
        assert engine.stats().draft_pages_free == engine.stats().draft_pages_total > 0
        engine.wake()
        found = opened(engine, PROMPTS[0]).generate(params).result(60)
        assert found.token_ids == opened(plain, PROMPTS[0]).generate(params).result(60).token_ids
        assert found.drafted_tokens == found.accepted_tokens >= 20


def test_a_closed_engine_keeps_no_draft_model(drafts: dict[str, Path]) -> None:
    engine = opened_with(drafts["tiny"])
    sequence = opened(engine, PROMPTS[0])
    sequence.generate(SamplingParams(max_tokens=5)).result(60)
    side = engine._core.sleeper._draft
    held = weakref.ref(side.model)
    engine._core.after_step = None
    del side
    engine.close()
    gc.collect()
    assert held() is None and sequence.id


def test_a_round_that_breaks_costs_no_text(
    drafts: dict[str, Path], plain: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    with opened_with(drafts["itself"]) as engine:
        forward, rounds = drafter(engine).runner.forward, iter(range(10_000))

        def breaking(work: list[Any]) -> Any:
            if next(rounds) % 11 == 5:
                raise MemoryError("no room for a guess")
            return forward(work)

        drafter(engine).runner.forward = breaking  # type: ignore[method-assign]
        futures = [opened(engine, text).generate(params) for text in PROMPTS]
        for text, future in zip(PROMPTS, futures, strict=True):
            assert future.result(60).token_ids == opened(plain, text).generate(params).result(60).token_ids
    assert "a drafter failed" in caplog.text


def test_one_that_always_breaks_is_given_up(
    drafts: dict[str, Path], plain: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    with opened_with(drafts["itself"]) as engine:

        def breaking(*_: Any) -> Any:
            raise MemoryError("no room for a guess")

        drafter(engine).propose = breaking  # type: ignore[method-assign]
        drafter(engine).forget = breaking  # type: ignore[method-assign]
        found = opened(engine, PROMPTS[0]).generate(params).result(60)
        assert (
            found.token_ids == opened(plain, PROMPTS[0]).generate(params).result(60).token_ids
            and not found.drafted_tokens
        )
    told = [record.message for record in caplog.records]
    assert told.count("a drafter failed") == 2 * 8 and told.count("the draft model drafts no more") == 1


def timed(control: DraftLengthControl, rows: int, seconds: float) -> None:
    for _ in range(20):
        control.took(1, rows, seconds)


def test_its_own_time_counts() -> None:
    control = DraftLengthControl()
    timed(control, 1, 0.010)
    timed(control, 8, 0.011)
    pace = DraftModelTiming(control)
    free = pace.length(1, 1)
    for _ in range(20):
        pace.stepped(1, 0.001)
    assert 2 <= pace.length(1, 1) < free <= CHAIN, "a draft model of a tenth of the time"
    for _ in range(60):
        pace.stepped(1, 0.009)
    assert pace.length(1, 1) == 0, "one of nearly the same time"
    lengths = [pace.length(1, 1) for _ in range(80)]
    assert lengths.count(0) == 62 and pace.probing and set(lengths[62:]) == {CHAIN // 2}, (
        "once in a while it is tried again, until it was"
    )
    pace.probed()
    assert pace.length(1, 1) == 0


def test_guesses_that_are_dropped_stop_it_and_so_does_catching_up() -> None:
    control = DraftLengthControl()
    timed(control, 1, 0.010)
    timed(control, 8, 0.011)
    pace = DraftModelTiming(control)
    pace.stepped(1, 0.001)
    pace.end_draft_round(2.0)
    assert pace.length(1, 1) == 0
    for _ in range(500):
        pace.end_draft_round(0.0)
    assert pace.length(1, 1) > 0
    for _ in range(60):
        control.tried(SOURCE, 1, 0)
    assert pace.length(1, 1) == 0


def test_refusals(drafts: dict[str, Path], tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", tokenizer=True)
    with pytest.raises(ConfigError, match=rf"{other} has a vocabulary of 315 tokens, {NANO} one of \d+"):
        Engine(**OPTIONS | {"draft": other})
    swapped = tmp_path / "swapped"
    shutil.copytree(drafts["tiny"], swapped)
    tokens = json.loads((swapped / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (swapped / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ConfigError, match=rf"token \d+ is .* in {swapped} and .* in {NANO}"):
        Engine(**OPTIONS | {"draft": swapped})
    with pytest.raises(ConfigError, match="Lfm2ForCausalLM has recurrent layers"):
        Engine(**OPTIONS | {"draft": write_case("lfm2", tmp_path / "states")})
    with pytest.raises(ConfigError, match=r"draft='x'.*needs speculation='auto'"):
        Engine(draft="x")


@pytest.mark.few(1)
def test_random_programs(drafting: Engine, plain: Engine) -> None:
    """The long form is tests/slow/test_drafts_random.py."""
    for seed in range(2):
        assert walk(drafting, seed, 8) == walk(plain, seed, 8)
