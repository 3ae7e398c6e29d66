"""`with s.adapter(name)`: what is appended inside is the adapter's, to the
token, and what comes behind is the base's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from checkpoints import write_checkpoint
from plain_adapters import write_adapter

import sgl
from sgl.lang.errors import BadValueError, ProgramError
from sgl.runtime import Engine, SamplingParams

NAMES = ("sql", "law")
GREEDY: Any = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
PROMPT, MORE = "The quick brown fox jumps", " and then"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    place = tmp_path_factory.mktemp("within")
    base = write_checkpoint(place / "base", tokenizer=True)
    adapters = {name: write_adapter(base, place / name, seed=index) for index, name in enumerate(NAMES, 1)}
    with Engine(base, device="cpu", dtype="float32", kv_tokens=4096, adapters=adapters, poison_freed=True) as engine:
        yield engine
        engine.check()


@sgl.function
def there_and_back(s, prompt, first="sql"):
    s += prompt + sgl.gen("a", **GREEDY)
    with s.adapter(first):
        s += MORE + sgl.gen("b", **GREEDY)
        with s.adapter("law"):
            s += sgl.gen("c", **GREEDY)
        s += sgl.gen("d", **GREEDY)
    s += MORE + sgl.gen("e", **GREEDY)


def by_hand(engine: Engine, first: str | None = "sql") -> dict[str, str]:
    """The same in tokens: sequences of their own, each opened under its adapter with all tokens so far."""
    tokens, found = list(engine.tokenizer.encode(PROMPT, special_prefix=True)), {}
    for name, adapter, text in [
        ("a", None, ""),
        ("b", first, MORE),
        ("c", "law", ""),
        ("d", first, ""),
        ("e", None, MORE),
    ]:
        sequence = engine.open(adapter=adapter)
        tokens += [*engine.tokenizer.encode(text)] if text else []
        sequence.extend(tokens)
        made = sequence.generate(SamplingParams(**GREEDY)).result()
        tokens, found[name] = tokens + list(made.token_ids), made.text
    return found


def made(state: Any) -> dict[str, str]:
    return {name: state[name] for name in "abcde"}


@pytest.fixture(scope="module")
def expected(engine: Engine) -> dict[str, str]:
    found = by_hand(engine)
    assert found != by_hand(engine, None)
    return found


WAYS: dict[str, Callable[[Engine], Any]] = {
    "run": lambda engine: there_and_back.run(PROMPT, backend=engine),
    "compiled": lambda engine: there_and_back.compile(engine).run(PROMPT, backend=engine),
    "a name that a run brings": lambda engine: there_and_back.compile(engine).run(PROMPT, "sql", backend=engine),
    "step by step": lambda engine: there_and_back.run(PROMPT, backend=engine, use_thread=False),
    "batch": lambda engine: there_and_back.run_batch([{"prompt": PROMPT}] * 3, backend=engine)[1],
    "async": lambda engine: asyncio.run(there_and_back.arun(PROMPT, backend=engine)),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_text_is_that_of_its_adapter_behind_the_tokens_before_it(
    engine: Engine, expected: dict[str, str], way: str
) -> None:
    assert made(WAYS[way](engine)) == expected


def test_a_run_under_an_adapter_goes_back_to_that(engine: Engine) -> None:
    @sgl.function
    def out(s):
        s += PROMPT
        with s.adapter(None):
            s += sgl.gen("base", **GREEDY)
        s += sgl.gen("again", **GREEDY)

    state, tokens = out.run(backend=engine, adapter="law"), list(engine.tokenizer.encode(PROMPT, special_prefix=True))
    base = engine.generate(PROMPT, **GREEDY)
    sequence = engine.open(adapter="law")
    sequence.extend([*tokens, *base.token_ids])
    assert (state["base"], state["again"]) == (base.text, sequence.generate(SamplingParams(**GREEDY)).result().text)
    sequence.close()


def test_turns_variables_forks_calls_and_choices_inside(engine: Engine) -> None:
    @sgl.function
    def inner(s):
        s += sgl.gen("x", **GREEDY)

    @sgl.function
    def within(s):
        s += sgl.user("Hi")
        with s.assistant(), s.adapter("sql"), s.var_scope("said"):
            s += sgl.gen("a", n=2, **GREEDY) + sgl.select("b", [" one", " two"])
            forks = s.fork(2)
            forks += sgl.gen("c", **GREEDY)
            s["called"] = s.call(inner)["x"]
        s["c"] = [fork["c"] for fork in forks]

    @sgl.function
    def whole(s):
        s += sgl.user("Hi")
        with s.assistant():
            s += sgl.gen("a", n=2, **GREEDY) + sgl.select("b", [" one", " two"]) + sgl.gen("c", **GREEDY)

    state, alone = within.run(backend=engine), whole.run(backend=engine, adapter="sql")
    assert state["a"] == alone["a"] and state["b"] == alone["b"]
    assert state["c"] == [alone["c"]] * 2 and state["called"] == alone["c"]
    assert state["said"] == state["a"][0] + state["b"] + state["called"]
    assert [turn["role"] for turn in state.messages()] == ["user", "assistant"]


def test_what_is_computed_again_is_said_and_shown(engine: Engine) -> None:
    engine.flush_cache()
    state = there_and_back.run(PROMPT, backend=engine)
    assert state.usage().reread_tokens > 0 and there_and_back.run(PROMPT, backend=engine)["e"] == state["e"]
    (run,) = state.report().data["runs"]
    pieces = [piece for branch in run["branches"] for piece in branch["pieces"] if "kind" in piece]
    assert [piece["options"].get("adapter") for piece in pieces] == [None, "sql", "law", "sql", None]
    graph = there_and_back.compile(engine).graph().print()
    assert "AdapterBegin('law')" in graph and graph.count("AdapterEnd()") == 2


def test_a_journal_serves_it(engine: Engine, expected: dict[str, str], tmp_path: Any) -> None:
    path = tmp_path / "run.jsonl"
    assert made(there_and_back.run(PROMPT, backend=engine, journal=path)) == expected
    replayed = sgl.replay(path)
    assert made(there_and_back.run(PROMPT, backend=replayed)) == expected
    assert sorted(str(node.adapter) for node in replayed.journal.nodes) == ["None", "None", "law", "sql", "sql"]


def test_a_block_that_raises_is_left_all_the_same(engine: Engine) -> None:
    @sgl.function
    def caught(s):
        s += PROMPT
        try:
            with s.adapter("sql"):
                raise ValueError("no")
        except ValueError:
            s += sgl.gen("a", **GREEDY)

    assert caught.run(backend=engine)["a"] == engine.generate(PROMPT, **GREEDY).text


def test_what_cannot_be_is_said_where_the_block_begins(engine: Engine) -> None:
    with pytest.raises(ProgramError, match=r"no adapter 'sqll'.* did you mean 'sql'"):
        there_and_back.run(PROMPT, "sqll", backend=engine, use_thread=False)["b"]
    with pytest.raises(BadValueError, match="adapter is 3"):
        there_and_back.run(PROMPT, 3, backend=engine, use_thread=False)["b"]
    assert engine.generate(PROMPT, **GREEDY).text
    called = sgl.Scripted(["1", "2", "3", "4", "5"])
    there_and_back.run(PROMPT, backend=called).sync()
    assert [call.adapter for call in called.calls] == [None, "sql", "law", "sql", None]


def test_a_run_that_is_stopped_inside_ends(engine: Engine) -> None:
    @sgl.function
    def long(s):
        s += PROMPT + sgl.gen("a", max_tokens=600, temperature=0, ignore_eos=True)
        with s.adapter("sql"):
            s += sgl.gen("b", max_tokens=600, temperature=0, ignore_eos=True)

    state = long.run(backend=engine, timeout=0.2)
    with pytest.raises(ProgramError):
        state["b"]
    state.sync()
    assert engine.generate(PROMPT, **GREEDY).text
