"""An engine in a process of its own: what crosses the border between them, and comes back."""

from __future__ import annotations

import enum
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from server_rig import await_true

from sgl import grammars
from sgl.grammars import UnsupportedGrammarError
from sgl.grammars.regex import parse_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, DeadlineExceeded, EngineClosed, RequestAborted, RuntimeFailure
from sgl.runtime.process import process_messages

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=100_000, temperature=0, ignore_eos=True)
OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "process": True}


@pytest.fixture(scope="module")
def engine(tiny):
    with Engine(tiny, **OPTIONS, grammar_process=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def local(tiny):
    with Engine(tiny, **OPTIONS | {"process": False}) as engine:
        yield engine


# what crosses the border


def test_an_engine_elsewhere_is_the_engine_here(engine, local):
    assert engine.info()["pid"] != os.getpid() == local.info()["pid"]
    same = [name for name in local.info() if name not in ("pid", "memory", "loading", "startup", "startup_seconds")]
    assert {name: engine.info()[name] for name in same} == {name: local.info()[name] for name in same}
    assert engine.config.process and not local.config.process and engine.config.kv_tokens == local.config.kv_tokens
    assert engine.vocabulary.tokens == local.vocabulary.tokens


def makers() -> dict[str, Callable[[Engine], grammars.Grammar]]:
    schema = {
        "type": "object",
        "properties": {"b": {"type": "integer"}, "a": {"enum": ["x", "y"]}},
        "required": ["b", "a"],
    }
    tag = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[0-9]{3}"}, "end": "</a>"},
    }
    return {
        "regex": lambda engine: grammars.compile_regex("[a-f]{4}", engine.vocabulary),
        "choices": lambda engine: grammars.compile_choices(["north", "south"], engine.vocabulary),
        "json_schema": lambda engine: grammars.compile_json_schema(schema, engine.vocabulary, whitespace="compact"),
        "ebnf": lambda engine: grammars.compile_ebnf('root ::= "so " [xyz]+ "."', engine.vocabulary, start="root"),
        "structural": lambda engine: grammars.compile_structural(tag, engine.vocabulary),
    }


@pytest.mark.parametrize("kind", makers())
def test_grammars_travel_as_recipes(engine, local, kind):
    make, params = makers()[kind], SamplingParams(max_tokens=60, temperature=0, close_at_limit=True)
    found = [e.generate("hello", params, grammar=make(e)) for e in (engine, local)]
    assert found[0].text == found[1].text and found[0].token_ids == found[1].token_ids
    assert found[0].finish_reason == found[1].finish_reason


def test_each_process_has_another_that_compiles_its_grammars(engine):
    tasks = Path(f"/proc/{engine.info()['pid']}/task")
    (compiles,) = "".join(path.read_text() for path in tasks.glob("*/children")).split()
    assert b"sgl.grammars.compile_server.grammar_compile_server" in Path(f"/proc/{compiles}/cmdline").read_bytes()
    assert engine.info()["grammars"]["compiled"] == "in a separate process"


def test_a_generation_begins_once_however_fast_its_grammar_is(engine, local):
    """The grammar may be ready before its generation is queued, after, or in between."""
    params = SamplingParams(max_tokens=40, temperature=0)
    for number in range(60):
        pattern = f"so: [0-9]{{{number % 7 + 1}}}" + "z" * number
        found = [
            e.generate("hello", params, grammar=grammars.compile_regex(pattern, e.vocabulary)) for e in (engine, local)
        ]
        assert found[0].token_ids == found[1].token_ids and found[0].prompt_tokens == found[1].prompt_tokens


def test_a_fork_waits_to_be_born_though_its_grammar_is_ready(engine):
    params = SamplingParams(max_tokens=300, temperature=0, ignore_eos=True)
    sequence = engine.open()
    sequence.extend([5, 6])
    parent, child = sequence.generate(params), sequence.fork(1)[0]
    found = child.generate(
        SamplingParams(max_tokens=9, temperature=0), grammars.compile_regex("born: [0-9]", engine.vocabulary)
    )
    assert found.result(30).text.startswith("born: ") and found.result().prompt_tokens == 302 and parent.done()


def test_a_grammar_without_a_recipe_fails_its_sequence_only(engine):
    bare = grammars.Grammar(parse_regex("a+"), engine.vocabulary)
    sequence = engine.open()
    sequence.extend([5, 6])
    with pytest.raises(ConfigError, match="compile_"):
        sequence.generate(GREEDY, bare).result(30)
    assert sequence.generate(GREEDY).result(30).completion_tokens == 8


def test_what_no_pickle_can_hold_fails_at_once(engine):
    sequence = engine.open()
    sequence.extend([5, 6])
    with pytest.raises(ConfigError, match="logit_bias"):
        sequence.generate(SamplingParams(logit_bias=lambda: None)).result(30)  # type: ignore[arg-type]
    assert sequence.tokens().tolist() == [5, 6]


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    END = "zz"


class Own(Exception):
    pass


def test_the_callers_own_classes_stay_here(engine):
    """The other process knows nothing of the caller's modules, above all not of its script."""
    pid, sequence = engine.info()["pid"], engine.open(priority=Level.HIGH, tenant=Word.END)
    sequence.extend([5, 6])
    assert sequence.generate(SamplingParams(max_tokens=4, stop=[Word.END], ignore_eos=True)).result(30).token_ids

    def spoil(chunk: process_messages.Chunk) -> None:
        raise Own("mine")

    spoilt, behind = sequence.generate(LONG, None, spoil), sequence.generate(GREEDY)
    with pytest.raises(Own, match="mine"):
        spoilt.result(30)
    with pytest.raises(RuntimeFailure, match="Own: mine"):
        behind.result(30)
    with pytest.raises(ConfigError, match=r"cannot be sent.*OwnParams"):
        sequence.generate(OwnParams()).result(30)
    assert engine.generate("hello", GREEDY).completion_tokens == 8 and engine.info()["pid"] == pid


class OwnParams(SamplingParams):
    pass


def test_long_rows_of_tokens(engine):
    row = np.random.default_rng(1).integers(4, 300, 400_000).astype(np.int32)
    sequence = engine.open()
    for part in np.array_split(row, 7):
        sequence.extend(part)
    assert np.array_equal(sequence.tokens(), row)


def test_answers_are_the_local_ones(engine, local):
    def ask(engine: Engine) -> list[object]:
        sequence = engine.open()
        sequence.extend([5, 6, 7, 8])
        fork = sequence.fork(2)[1]
        scores, (own, tops) = fork.score([[9, 10], [9, 11], [12]]).result(30), fork.logprobs(1, 2).result(30)
        chunks: list[process_messages.Chunk] = []
        streamed = sequence.generate(
            SamplingParams(max_tokens=6, temperature=0, top_logprobs=2), None, chunks.append
        ).result(30)
        assert chunks[-1].generation is streamed and streamed.logprobs and streamed.top_logprobs
        texts = [(chunk.text, chunk.token_ids, chunk.finished, chunk.prompt_tokens) for chunk in chunks]
        rows = [*scores, own, *tops, streamed.logprobs, *streamed.top_logprobs]
        rounded = [[(round(value, 3), token) for value, token in row] for row in rows]
        return [rounded, scores.prompt_tokens, scores.scored_tokens, texts, streamed.token_ids, streamed.finish_reason]

    assert ask(engine) == ask(local)


def test_errors_keep_their_class_and_what_they_hold():
    class Local(Exception):
        pass

    told = process_messages.serialized(UnsupportedGrammarError("lookahead", "3", "leave it out")).error()
    assert isinstance(told, UnsupportedGrammarError) and told.keyword == "lookahead" and "leave it out" in str(told)
    made = process_messages.serialized(Local("so")).error()  # the other side does not know the class
    assert type(made) is RuntimeFailure and str(made) == "Local: so"


def test_aborts_deadlines_and_priorities_reach_it(engine):
    sequence = engine.open(priority=3)
    sequence.extend([5, 6])
    future = sequence.generate(LONG)
    sequence.abort()
    with pytest.raises(RequestAborted):
        future.result(30)
    late = engine.open(timeout=0.05)
    late.extend([5, 6])
    with pytest.raises(DeadlineExceeded):
        late.generate(LONG).result(30)


def test_what_is_closed_is_aborted_too(engine, local):
    for each in (engine, local):
        sequence = each.open()
        sequence.extend([5, 6])
        future = sequence.generate(LONG)
        sequence.close()
        sequence.abort()
        with pytest.raises(RequestAborted):
            future.result(30)


@pytest.fixture
def ctrl_c():
    """Means what it usually means, whatever this process was started as and other tests have left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_generate_goes_on_for_nobody(engine, local, ctrl_c):
    """Ctrl-C, once all are asked for: within a finalizer it is lost, and pressed again."""

    def press(begun: threading.Event, ended: threading.Event) -> None:
        begun.wait(60)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        while not ended.wait(0.5):
            os.kill(os.getpid(), signal.SIGINT)

    for each in (engine, local):
        begun, ended, before = threading.Event(), threading.Event(), each.stats().aborts
        threading.Thread(target=press, args=(begun, ended)).start()
        with pytest.raises(KeyboardInterrupt):
            try:
                each.generate(["a b"] * 200, LONG, on_chunk=lambda chunk, begun=begun: begun.set())
            finally:
                ended.set()
        await_true(lambda each=each: not each.stats().running)
        assert each.stats().aborts - before > 50, "most of them"


def test_closed_sequences_say_so(engine):
    sequence = engine.open()
    sequence.extend([5])
    sequence.close()
    child = sequence.fork(1)[0]
    for handle in (sequence, child):
        with pytest.raises(EngineClosed, match="sequence is closed"):
            handle.generate(GREEDY).result(30)


def test_a_callback_may_ask_the_engine(engine):
    seen: list[int] = []
    sequence = engine.open()
    sequence.extend([5, 6])
    params = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
    sequence.generate(params, None, lambda chunk: seen.append(engine.stats().running)).result(30)
    assert 1 in seen


def test_chunks_keep_their_order_when_each_asks_the_engine(engine):
    """While one callback waits for its answer, the chunks of all streams go on coming in."""
    texts: list[list[str]] = [[] for _ in range(32)]
    depth: list[int] = []

    def take(own: list[str], chunk: process_messages.Chunk) -> None:
        depth.append(1)
        assert len(depth) == 1 and engine.stats().pages_total
        own.append(chunk.text)
        depth.pop()

    futures = []
    for own in texts:
        sequence = engine.open()
        sequence.extend([5, 6, len(futures) + 4])
        futures.append(
            sequence.generate(SamplingParams(max_tokens=20, temperature=0, ignore_eos=True), None, partial(take, own))
        )
    whole = [future.result(60).text for future in futures]
    assert ["".join(own) for own in texts] == whole


def test_dropped_handles_give_their_pages_back(engine):
    for _ in range(10):
        sequence = engine.open()
        sequence.extend(list(range(4, 90)))
        for child in sequence.fork(3):
            child.generate(GREEDY)
    del sequence, child
    gc.collect()

    def free() -> bool:
        engine.flush_cache()
        stats = engine.stats()
        return stats.pages_free == stats.pages_total

    await_true(free)
    assert not engine._core._link._waiting


def test_pins_and_embeddings(engine, local):
    with engine.pin("hello there") as pin:
        assert pin.tokens and engine.stats().pages_pinned == pin.tokens
    await_true(lambda: engine.stats().pages_pinned == 0)
    assert np.allclose(engine.embed(["hello", "there you are"]), local.embed(["hello", "there you are"]), atol=1e-5)


def test_sleeping_and_waking(engine):
    assert engine.sleep() > 0 and engine.asleep
    sequence = engine.open()
    sequence.extend([5, 6])
    future = sequence.generate(GREEDY)
    assert engine.glance().running == engine.stats().running == 0
    engine.wake()
    assert not engine.asleep and future.result(30).completion_tokens == 8
