"""With drafts the text is the text without them, whatever the drafter says; and no page is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from draft_rig import PROMPTS, SCHEMA, Told, cases, grammars, opened, parts, speculation
from server_rig import serving
from states_rig import prompt, run
from windows_rig import Make, make, paths, quiet, settled

import sgl
from sgl.grammars import compile_json_schema, compile_regex
from sgl.lang.report.run_svg import FILLS
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, RequestAborted
from sgl.runtime.sequences.draft_tokens import DraftTokens
from sgl.runtime.sequences.jump_forward import JumpForward
from sgl.runtime.speculative.automaton_drafter import AutomatonDrafter
from sgl.runtime.speculative.choice_list_drafter import ListDrafter
from sgl.runtime.speculative.draft_length_control import DraftLengthControl
from sgl.runtime.speculative.draft_trials import SETTLES, STRETCH, DraftTrials
from sgl.runtime.speculative.drafter import ForcedDrafter
from sgl.runtime.speculative.suffix_drafter import END, SuffixDrafter

__all__ = ["make", "paths"]


@sgl.function
def told(s: Any) -> None:
    s += PROMPTS[1] + sgl.gen("first", max_tokens=24) + sgl.gen("second", max_tokens=24, speculation=False)


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with Engine(dtype="float32", threads=1, kv_tokens=8192, deterministic=True) as engine:
        yield engine


@pytest.fixture(
    scope="module",
    params=[{"page_size": 1}, {"page_size": 16}, {"run_ahead": True}],
    ids=["pages of 1", "pages of 16", "ahead"],
)
def drafting(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(
        dtype="float32",
        threads=1,
        kv_tokens=4096,
        deterministic=True,
        speculation="auto",
        poison_freed=True,
        **request.param,
    ) as engine:
        engine._core.after_step = engine._core.check
        yield engine


@pytest.fixture(scope="module")
def expected(plain: Engine) -> list[Any]:
    kinds = grammars(plain)
    return [opened(plain, text).generate(params, kinds[kind]).result(60) for text, params, kind in cases(plain)]


def side_by_side(engine: Engine, how: str, asked: list[Any]) -> None:
    """Texts behind different prompts at the same time."""
    kinds, kept = grammars(engine), 0
    while asked:
        some = list({text: (case, wanted) for case, wanted in reversed(asked) for text in case[:1]}.values())
        asked = [each for each in asked if not any(each[0] is case for case, _ in some)]
        speculation(
            engine,
            Told(how, {tuple(engine.tokenizer.encode(text).tolist()): wanted.token_ids for (text, *_), wanted in some}),
        )
        futures = [opened(engine, text).generate(params, kinds[kind]) for (text, params, kind), _ in some]
        for future, (case, wanted) in zip(futures, some, strict=True):
            found = future.result(60)
            assert parts(found) == parts(wanted), case
            assert 0 <= found.accepted_tokens <= found.drafted_tokens
            kept += found.accepted_tokens
    assert kept > 100 or how == "random"


@pytest.mark.few(3)
@pytest.mark.parametrize("how", ["right", "random", "mixed", "long", "written"])
def test_the_text_is_the_text_without(drafting: Engine, plain: Engine, expected: list[Any], how: str) -> None:
    kinds, many = grammars(drafting), cases(drafting)
    if how in ("random", "mixed", "long"):
        return side_by_side(drafting, how, list(zip(many, expected, strict=True)))
    seen = (SuffixDrafter(), AutomatonDrafter(), ForcedDrafter(JumpForward(drafting.tokenizer)), ListDrafter())
    for (text, params, kind), wanted in zip(many, expected, strict=True):
        prompt = drafting.tokenizer.encode(text).tolist()
        if how == "written":
            speculation(drafting, *seen)
        else:
            speculation(drafting, Told(how, {tuple(prompt): wanted.token_ids}))
        found = opened(drafting, text).generate(params, kinds[kind]).result(60)
        assert parts(found) == parts(wanted), (text, params, kind)
        assert 0 <= found.accepted_tokens <= found.drafted_tokens
        if how == "right" and len(wanted.token_ids) > 6 and not wanted.forced_tokens:
            assert found.accepted_tokens > 0.6 * len(wanted.token_ids)


@pytest.mark.few(1)
def test_many_at_once_and_what_stands_on_them(drafting: Engine, plain: Engine, expected: list[Any]) -> None:
    """Texts go on from texts; forks, other prompts and generations that are aborted run beside them."""
    answers = {
        tuple(drafting.tokenizer.encode(text).tolist()): wanted.token_ids
        for (text, *_), wanted in zip(cases(drafting), expected, strict=True)
    }
    speculation(drafting, Told("mixed", answers), SuffixDrafter())
    texts = []
    for engine in (plain, drafting):
        kinds, sequences = grammars(engine), [opened(engine, text) for text, *_ in cases(engine)]
        first = [s.generate(params, kinds[kind]) for s, (_, params, kind) in zip(sequences, cases(engine), strict=True)]
        children = [s.fork(2) for s in sequences[:6]]
        doomed = [s.generate(SamplingParams(max_tokens=400, ignore_eos=True)) for s in sequences[6:9]]
        second = [
            child.generate(SamplingParams(max_tokens=9, seed=n)) for n, pair in enumerate(children) for child in pair
        ]
        for sequence in sequences[6:9]:
            sequence.abort()
        texts.append([parts(future.result(60)) for future in (*first[:6], *first[9:], *second)])
        for future in doomed:
            with pytest.raises(RequestAborted):
                future.result(60)
    assert texts[0] == texts[1]


def test_drafts_take_only_free_pages(plain: Engine) -> None:
    """A pool that the texts fill: with drafts nobody loses a page more often than without."""
    counts = []
    for options in ({}, {"speculation": "auto"}):
        with Engine(dtype="float32", threads=1, kv_tokens=256, deterministic=True, **options) as engine:
            if options:
                speculation(engine, Told("random"))
            sequences = [opened(engine, text) for text in PROMPTS[:3]]
            futures = [s.generate(SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)) for s in sequences]
            counts.append(([f.result(60).token_ids for f in futures], engine.stats().preemptions))
            engine._core.check()
    assert counts[0] == counts[1]


def test_a_drafter_that_is_right_saves_steps(drafting: Engine, plain: Engine) -> None:
    text, params = PROMPTS[0], SamplingParams(max_tokens=48, temperature=0, ignore_eos=True)
    answer = opened(plain, text).generate(params).result(60).token_ids
    speculation(drafting, Told("right", {tuple(drafting.tokenizer.encode(text).tolist()): answer}))
    before = drafting.stats()
    assert opened(drafting, text).generate(params).result(60).token_ids == answer
    spent = drafting.stats() - before
    assert spent.steps <= 6 and spent.accepted_tokens >= 40 and spent.drafted_tokens == spent.accepted_tokens


def test_stretches_without_guesses_are_timed_beside_those_with_them(plain: Engine) -> None:
    """Where steps run ahead; the text stays what it is."""
    prompt, params = (
        "one two three " * 6,
        SamplingParams(max_tokens=3 * (STRETCH + SETTLES), temperature=0, ignore_eos=True),
    )
    with Engine(
        dtype="float32", threads=1, kv_tokens=4096, deterministic=True, run_ahead=True, speculation="auto"
    ) as engine:
        drafts = engine._core.life.speculation
        drafts.trials, drafts.control = DraftTrials(), DraftLengthControl(by_outcome=False)
        found = [engine.generate(prompt, params).token_ids for _ in range(4)]
        (of,) = drafts.trials._of.values()
        assert set(of.rates) == {True, False} and engine.stats().accepted_tokens
    assert found == [plain.generate(prompt, params).token_ids] * 4


@pytest.mark.few(1)
def test_a_grammar_is_drafted_from_what_followed_in_its_states(drafting: Engine, plain: Engine) -> None:
    """With log-probabilities, where nothing that is forced may be left out.

    Steps that run ahead of the host stop for guesses only now and then.
    """
    params = SamplingParams(max_tokens=40, temperature=0, logprobs=True)
    texts, accepted = [], []
    for engine in (plain, drafting):
        if engine is drafting:
            speculation(engine, AutomatonDrafter())
        grammar = compile_json_schema(SCHEMA, engine.vocabulary)
        results = [opened(engine, text).generate(params, grammar).result(60) for text in PROMPTS]
        texts.append([parts(result) for result in results])
        accepted.append([result.accepted_tokens for result in results])
    assert texts[0] == texts[1]
    least = max if drafting._core.run_ahead else min
    assert accepted[1][:2] == [0, 0] and least(accepted[1][3:]) >= 5, accepted


def test_a_jump_that_puts_back_as_much_as_it_drops_ends_what_is_taken(drafting: Engine, plain: Engine) -> None:
    """The text as it would be without the jump was drafted, and what was
    chosen behind it does not follow on the jump.
    """
    texts = []
    for engine in (plain, drafting):
        if engine is drafting:
            speculation(engine, SuffixDrafter())
        sequence, spelled = engine.open(), engine.tokenizer.encode("abc").tolist()
        one = engine.tokenizer.encode("one ").tolist()
        sequence.extend([*one, *spelled, 17, 27, 17, 27, *one])
        assert engine.tokenizer.encode('","').tolist() and engine.tokenizer.decode([17, 27]) == '",'
        grammar = compile_regex(r'abc(", ",[qw][xyz][xyz]|"k|z)', engine.vocabulary)
        params = SamplingParams(max_tokens=12, temperature=0, logit_bias=dict.fromkeys([17, 27, *spelled], 90.0))
        texts.append(parts(sequence.generate(params, grammar).result(60)))
    assert texts[0] == texts[1]


def test_no_request_fails_for_a_guess(drafting: Engine, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Told):
        def propose(self, seq: Any, op: Any, most: int) -> DraftTokens | None:
            raise MemoryError("no room for a guess")

        learn = propose  # type: ignore[assignment]

    speculation(drafting, Broken())
    assert (
        len(
            opened(drafting, "x")
            .generate(SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
            .result(60)
            .token_ids
        )
        == 5
    )
    assert "a drafter failed" in caplog.text


@pytest.mark.few(1)
def test_kept_tokens_are_paid_for(drafting: Engine, plain: Engine) -> None:
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    answer = opened(plain, PROMPTS[0]).generate(params).result(60).token_ids
    speculation(drafting, Told("right", {tuple(drafting.tokenizer.encode(PROMPTS[0]).tolist()): answer}))
    counters = drafting._core.scheduler.counters
    drafting.flush_cache()
    sequences = [drafting.open(tenant=name) for name in ("x", "y")]
    for sequence, text in zip(sequences, PROMPTS, strict=False):
        sequence.extend(drafting.tokenizer.encode(text))
    futures = [sequence.generate(params) for sequence in sequences]
    given = []
    futures[0].add_done_callback(lambda _: given.append(dict(counters.given)))
    assert futures[0].result(60).accepted_tokens > 30 and futures[1].result(60).accepted_tokens == 0
    assert given[0]["x"] >= given[0]["y"]


@pytest.mark.few(1)
def test_what_a_grammar_forces_is_drafted_where_it_is_sampled(drafting: Engine, plain: Engine) -> None:
    params, texts = SamplingParams(max_tokens=40, temperature=0, logprobs=True), []
    for engine in (plain, drafting):
        if engine is drafting:
            speculation(engine, ForcedDrafter(JumpForward(engine.tokenizer)))
        found = opened(engine, "x").generate(params, compile_json_schema(SCHEMA, engine.vocabulary)).result(60)
        texts.append(parts(found))
    assert texts[0] == texts[1] and found.accepted_tokens >= 1


def test_texts_of_others_are_not_drafted_from() -> None:
    with Engine(dtype="float32", threads=1, kv_tokens=4096, speculation="auto") as engine:
        drafter = SuffixDrafter()
        speculation(engine, drafter)
        params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
        for namespace, tenant in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
            sequence = engine.open(namespace=namespace, tenant=tenant)
            sequence.extend(engine.tokenizer.encode("The capital of France is"))
            found = sequence.generate(params).result(60)
            assert (
                len(drafter._finished) == {("a", "x"): 1, ("b", "x"): 2, ("a", "y"): 3}[namespace, tenant]
                or found.accepted_tokens
            )
        assert found.accepted_tokens > 25, "the second time of the same"
        engine.flush_cache()
        assert not drafter._finished


@pytest.mark.parametrize(
    "options, words",
    [
        ({"speculation": True}, "must be 'auto', 'exact', False or a dict"),
        ({"speculation": "auto", "draft": "x", "run_ahead": True}, "leave one of them out"),
        ({"speculation": "exact"}, "need deterministic=True as well"),
        ({"speculation": {"exact": True}}, "need deterministic=True as well"),
        ({"speculation": {"mots": 4}}, "no such key; did you mean 'most'"),
        ({"speculation": {"most": 0}}, "from 1 to 64"),
        ({"speculation": {"drafters": ["trie"]}}, "must be a list of forced, states, suffix, named"),
        ({"speculation": {"learn": 1}}, "must be True or False"),
        ({"speculation": []}, "must be 'auto', 'exact', False or a dict"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Engine(**options)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["gemma3", "mistral", "llama 4"])
def test_what_falls_behind_a_window_is_there_when_a_draft_is_dropped(case: str, make: Make) -> None:
    """Drafts are longer than what is held behind a window here."""
    engine, cold = make(case, window_tokens=400, speculation="auto"), quiet(make, case)
    for seed in range(4):
        tokens = prompt(seed, 60)
        wanted = run(cold, tokens, 40).token_ids
        speculation(engine, Told("mixed", {tuple(tokens): wanted}))
        found = run(engine, tokens, 40)
        assert found.token_ids == wanted and found.drafted_tokens > found.accepted_tokens > 0
    settled(engine)


def test_an_engine_drafts_as_it_was_told() -> None:
    options = {"drafters": ["suffix"], "most": 3, "learn": False, "control": False}
    with Engine(dtype="float32", threads=1, kv_tokens=2048, speculation=options) as engine:
        made = engine._core.life.speculation
        assert (
            made is not None
            and [type(drafter) for drafter in made.drafters] == [SuffixDrafter]
            and made.control is None
        )
        found = (
            opened(engine, PROMPTS[1])
            .generate(SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
            .result(60)
        )
        assert found.accepted_tokens > 2 and not made.drafters[0]._finished
        assert engine.info()["speculation"] == options
        number = engine._core.ask("begin_trace")
        later = (
            opened(engine, PROMPTS[1])
            .generate(SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
            .result(60)
        )
        parts = [part for step in engine._core.ask("end_trace", number) for part in step.parts]
    assert later.token_ids == found.token_ids and max(part.drafted for part in parts) <= 3
    assert (
        sum(part.drafted for part in parts) == later.drafted_tokens
        and sum(part.kept for part in parts) == later.accepted_tokens > 2
    )


def test_what_a_jump_puts_into_a_draft_counts_as_forced_only() -> None:
    kinds = {"kind": {"enum": ["alpha", "beta"]}, "currency": {"enum": ["EUR", "USD"]}}
    with Engine(
        dtype="float32", threads=1, kv_tokens=2048, deterministic=True, speculation={"control": False}
    ) as engine:
        grammar = compile_json_schema(
            {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False},
            engine.vocabulary,
        )
        results = [
            opened(engine, f"record {number}: ")
            .generate(SamplingParams(max_tokens=60, temperature=0), grammar)
            .result(60)
            for number in range(5)
        ]
    assert any(found.accepted_tokens for found in results)
    for found in results:
        assert (
            found.accepted_tokens <= found.drafted_tokens
            and found.forced_tokens + found.accepted_tokens <= found.completion_tokens
        )


def test_a_text_may_be_left_out(plain: Engine) -> None:
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, speculation=False)
    with Engine(
        dtype="float32", threads=1, kv_tokens=2048, deterministic=True, speculation={"control": False}
    ) as engine:
        made = engine._core.life.speculation
        assert made is not None
        found = opened(engine, PROMPTS[1]).generate(params).result(60)
        assert (
            found.drafted_tokens == 0
            and found.token_ids == opened(plain, PROMPTS[1]).generate(params).result(60).token_ids
        )
        assert not any(getattr(drafter, "_finished", None) for drafter in made.drafters)
        assert opened(engine, PROMPTS[1]).generate(replace(params, speculation=True)).result(60).drafted_tokens
    with pytest.raises(ConfigError, match="speculation must be True or False"):
        SamplingParams(speculation="off").validate()  # type: ignore[arg-type]


def test_nothing_of_a_text_that_is_left_out_is_kept_with_later_ones() -> None:
    """Of its state, or of a fork of it: what stands in front of a later text may be its own."""
    params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    with Engine(dtype="float32", threads=1, kv_tokens=2048, speculation={"control": False}) as engine:
        drafter = SuffixDrafter()
        speculation(engine, drafter)
        sequence = opened(engine, PROMPTS[0])
        first = sequence.generate(replace(params, speculation=False))
        [child] = sequence.fork(1)
        child.extend([77, 78])
        later = [sequence.generate(params).result(60).token_ids, child.generate(params).result(60).token_ids]
        assert len(first.result(60).token_ids) == 10
        [kept] = drafter._finished.values()
        assert kept.tokens().tolist() == [*later[0], END, *later[1], END]


def test_exact_is_plain_masked_sampling_token_for_token() -> None:
    """What a grammar forces is drafted and sampled, not appended."""
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "deterministic": True}
    texts = []
    for more in ({"jump_forward": False}, {"speculation": "exact"}):
        with Engine(**options, **more) as engine:
            assert not engine.info()["jump_forward"]
            grammar, params = (
                compile_json_schema(SCHEMA, engine.vocabulary),
                SamplingParams(max_tokens=40, temperature=0.7, seed=4),
            )
            results = [opened(engine, text).generate(params, grammar).result(60) for text in PROMPTS]
            texts.append([parts(result) for result in results])
    assert texts[0] == texts[1] and sum(result.accepted_tokens for result in results) > 0


def test_counts_reach_programs_servers_and_pictures() -> None:
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 4096}
    with Engine(**options, speculation={"control": False}) as engine, serving(engine) as url:
        text = {"prompt": PROMPTS[1], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        details = httpx.post(f"{url}/v1/completions", json=text).json()["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 2 and details["rejected_prediction_tokens"] >= 0
        assert (
            "completion_tokens_details"
            not in httpx.post(f"{url}/v1/completions", json=text | {"speculation": False}).json()["usage"]
        )
        native = {"text": PROMPTS[1], "sampling_params": {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}}
        meta = httpx.post(f"{url}/generate", json=native).json()["meta_info"]
        assert meta["drafted_tokens"] >= meta["accepted_tokens"] > 2
        native["sampling_params"]["speculation"] = False
        assert httpx.post(f"{url}/generate", json=native).json()["meta_info"]["drafted_tokens"] == 0
        assert "sgl_accepted_tokens_total" in httpx.get(f"{url}/metrics").text
        state = told.run(backend=engine, temperature=0, ignore_eos=True)
        info = [state.get_meta_info(name) for name in ("first", "second")]
        assert info[0]["accepted_tokens"] > 2 and info[1]["drafted_tokens"] == 0
        assert state.usage().accepted_tokens == info[0]["accepted_tokens"] and "guesses kept" in str(state.usage())
        assert FILLS["guessed"] in state.picture().svg and "of them guessed ahead" in state.picture().svg


@pytest.mark.few(1)
def test_a_draft_goes_on_behind_what_a_grammar_forces(drafting: Engine, plain: Engine) -> None:
    """Keys are appended between guesses, and the rows behind them count."""
    params, texts, steps = SamplingParams(max_tokens=60, temperature=0), [], []
    for engine in (plain, drafting):
        if engine is drafting:
            speculation(engine, Told("right", {tuple(engine.tokenizer.encode("x").tolist()): texts[0][1]}))
        grammar, before = compile_json_schema(SCHEMA, engine.vocabulary), engine.stats()
        found = opened(engine, "x").generate(params, grammar).result(60)
        texts.append(parts(found))
        steps.append((engine.stats() - before).steps)
    assert texts[0] == texts[1] and found.forced_tokens >= 3
    assert steps[1] <= 1 + steps[0] // 3, steps
