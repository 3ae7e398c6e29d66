"""Compiled programs give what interpreted ones give: texts, variables, seeds, values, on random programs."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from concurrent.futures import Future

import pytest
from alone import alone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lang_rules import RuleBackend, RuleStream
from random_programs import from_prompt, operations, program_of

import sgl
from sgl.lang.backend import SelectRequest
from sgl.lang.chat import get_chat_template
from sgl.lang.errors import (
    ArgumentsError,
    BadValueError,
    ProgramCancelled,
    ProgramError,
    TraceError,
    UnknownOptionError,
)

pytestmark = pytest.mark.filterwarnings("ignore::sgl.lang.chat.DefaultTemplateWarning")


@pytest.fixture
def backend(monkeypatch):
    made = RuleBackend(from_prompt)
    select = RuleStream._select

    def seen_select(stream, request):
        made.requests.append((stream.text, request))
        return select(stream, request)

    monkeypatch.setattr(RuleStream, "_select", seen_select)
    sgl.set_default_backend(made)
    yield made
    sgl.set_default_backend(None)
    made.worker.shutdown()


def seen(backend) -> list[tuple[str, int | None, float | None]]:
    """What the backend was asked since the last look: prompts, seeds, lengths."""
    requests = [(text, *asked(request)) for text, request in backend.requests]
    backend.requests.clear()
    return sorted(requests, key=repr)


def asked(request) -> tuple[int | None, float | None]:
    if isinstance(request, SelectRequest):
        return request.seed, request.temperature
    return request.options.seed, request.options.max_new_tokens


def result(state):
    values = state.ret_value
    texts = [part.text() for part in values["states"]]
    messages = [part.messages() for part in values["states"]]
    variables = [part.stream_executor.variables for part in values["states"]]
    assert state.error() is None
    return state.text(), values["text"], values["messages"], texts, messages, variables


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=operations(), seed=st.none() | st.integers(0, 99))
def test_same_as_interpreted(backend, ops, seed):
    backend.requests.clear()
    program = program_of(ops)
    interpreted = result(program.run("eins", seed=seed))
    expected = seen(backend)
    compiled = program.compile(backend)
    assert not seen(backend)
    assert result(compiled.run("eins", seed=seed)) == interpreted
    assert seen(backend) == expected


@sgl.function
def summary(s, topic, style="plain", *, end="."):
    s += sgl.system("Be " + style)
    s += sgl.user("About " + topic + end)
    with s.assistant():
        s += sgl.gen("first", max_tokens=5)
    forks = s.fork(2)
    forks += lambda i: f"{i}: " + sgl.gen("part", n=2)
    forks[1] += forks[0]["part"][1] + sgl.select("mark", ["good", "bad"])
    forks.join()
    s["kept"] = ["x", forks[1]["mark"]]
    return {"first": s["first"], "all": (s["part"], forks[1]), "both": topic + s["first"], "n": 3}


def test_arguments_and_return_values(backend):
    program = summary.compile(backend, style="loud")
    state = program.run("cats", end="!", seed=5)
    other = summary.run("cats", style="loud", end="!", seed=5)
    assert state.text() == other.text() and "Be loud" in state.text() and "cats!" in state.text()
    mine, theirs = state.ret_value, other.ret_value
    assert {**mine, "all": mine["all"][0]} == {**theirs, "all": theirs["all"][0]}
    assert mine["all"][1].text() == theirs["all"][1].text() and mine["n"] == 3
    assert state["kept"] == other["kept"] and state["part"] == other["part"] and "kept" in state
    assert state.messages() == other.messages()
    assert state.get_meta_info("first") == other.get_meta_info("first")
    assert next(state.text_iter("part")) == str(state["part"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.run(), ArgumentsError, "needs the argument 'topic'"),
        (lambda p: p.run("a", style="b"), ArgumentsError, "'style' of summary was fixed by compile"),
        (lambda p: p.run("a", topic="b"), ArgumentsError, "two values of 'topic'"),
        (lambda p: p.run("a", "b", "c"), ArgumentsError, "takes 2 arguments"),
        (lambda p: p.run("a", temprature=1), UnknownOptionError, "did you mean 'temperature'"),
        (lambda p: p.run(5), BadValueError, "5 cannot be appended"),
        (lambda p: p.run_batch([{"topc": "a"}]), ArgumentsError, "no parameter 'topc'"),
        (lambda p: p.run_batch([{"topic": "a"}], wrong=1), UnknownOptionError, "no option 'wrong'"),
        (lambda p: p.run_batch([{"topic": "a", "style": "b"}]), ArgumentsError, "'style'"),
    ],
)
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(summary.compile(backend, style="s"))


def test_defaults_that_the_body_needs_are_fixed(backend):
    @sgl.function
    def program(s, topic, count=2, mark="-"):
        forks = s.fork(count)
        forks += lambda i: topic + f"{mark}" * 3 + sgl.gen("x")
        forks.join()

    made = program.compile(backend)
    assert len(made.run("a")["x"]) == 2 and len(made.run("a", count=2)["x"]) == 2
    with pytest.raises(ArgumentsError, match=r"compiled with count=2.*compile\(count=3\)"):
        made.run("a", count=3)
    assert len(program.compile(backend, count=3).run("a")["x"]) == 3


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s["x"] == "yes",
        lambda s: "y" if s["x"] else "n",
        lambda s: s["x"].strip(),
        lambda s: int(s["x"]),
        lambda s: ("a" + s["x"])[0],
        lambda s: {"a": 1}[s["x"]],
        lambda s: json.loads(s["x"]),
        lambda s: ", ".join([s["x"]]),
        lambda s: list(s["x"]),
        lambda s: s.get_meta_info("x"),
        lambda s: s.text().count("a"),
        lambda s: s.stream_executor.variables,
        lambda s: f"{s['x']}",
    ],
)
def test_programs_that_need_values_cannot_be_compiled(backend, use):
    @sgl.function
    def program(s):
        s += "a" + sgl.gen("x")
        s += str(use(s))

    with pytest.raises((TraceError, TypeError), match=r"use run|Append it with") as caught:
        program.compile(backend)
    assert "test_graph_compiled.py:" in str(caught.value) or "Append it with" in str(caught.value)


def test_branching_on_an_argument_names_the_line_and_the_remedy(backend):
    @sgl.function
    def program(s, mode):
        if mode == "a":
            s += "A"
        s += sgl.gen("x")

    with pytest.raises(TraceError, match=r"test_graph_compiled.py:\d+: .*'mode'.*compile\(mode=\.\.\.\)"):
        program.compile(backend)
    assert program.compile(backend, mode="a").run().text().startswith("A<")
    with pytest.raises(TraceError, match="join it with"):

        @sgl.function
        def formatted(s, q):
            s += f"Q: {q}"

        formatted.compile(backend)


def test_batches(backend):
    items = [{"topic": f"topic {i}", "end": "?"} for i in range(30)]
    program = summary.compile(backend)
    expected = [(s.text(), s["part"]) for s in summary.run_batch(items, seed=7)]
    assert [(s.text(), s["part"]) for s in program.run_batch(items, seed=7)] == expected
    lazily = program.run_batch(items, seed=7, generator_style=True, progress_bar=False)
    assert [(s.text(), s["part"]) for s in lazily] == expected
    tuples = program.run_batch([("topic 0", "plain")], seed=7)
    assert tuples[0].text() == summary.run("topic 0", seed=7).text()
    assert program.run_batch([]) == [] and list(program.run_batch([], generator_style=True)) == []


def failing(prompt, request):
    if "bad" in prompt:
        raise OverflowError("no bad topics")
    return "ok"


class Lazy(RuleStream):
    """Speculating: a gen runs when somebody waits for it, or when no more can follow."""

    def __init__(self, backend, text=""):
        super().__init__(backend, text)
        self.waiting = []

    def generate(self, request, on_chunk=None):
        future = Future()
        held = threading.Event()
        inner = self._queue(lambda: held.wait(20) and self._generate(request, on_chunk))
        inner.add_done_callback(lambda done: future.set_result(done.result()))
        future.demand = held.set
        self.waiting.append(held)
        return future

    def close(self):
        super().close()
        for held in self.waiting:
            held.set()


def test_programs_with_speculation(backend):
    @sgl.function(num_api_spec_tokens=10)
    def program(s, x):
        s += "A prefix that is long enough to be pinned where nothing has to be guessed: " + x
        s += sgl.gen("a") + "b"
        s += s["a"] + sgl.gen("c")

    backend.open_speculating = lambda tokens: Lazy(backend)
    state, other = program.compile(backend).run("x"), program.run("x")
    assert state.text() == other.text() and state["c"] == other["c"]


def test_use_thread_false_waits_for_each_node(backend):
    program = summary.compile(backend)
    state = program.run("a", seed=1, use_thread=False)
    assert state.stream_executor.is_finished and state.text() == summary.run("a", seed=1).text()


def test_failures(backend):
    backend.rule = failing
    program = summary.compile(backend)
    good, bad = program.run_batch([{"topic": "fine"}, {"topic": "bad"}])
    assert good.error() is None and isinstance(bad.error(), ProgramError)
    assert "test_graph_compiled.py" in str(bad.error()) and isinstance(bad.error().__cause__, OverflowError)
    assert bad.text().endswith("ASSISTANT:")
    with pytest.raises(ProgramError, match="no bad topics"):
        bad["first"]
    with pytest.raises(ProgramError, match="no bad topics"):
        bad.ret_value  # noqa: B018
    results = program.run_batch([{"topic": "bad"}, {"topic": "fine"}], return_exceptions=True)
    assert isinstance(results[0], ProgramError) and results[1]["first"] == "ok"


@alone
def test_nothing_waits_and_everything_can_be_read_while_it_runs(backend):
    backend.gate.clear()
    program = summary.compile(backend)
    before = threading.active_count()
    states = [program.run("a", seed=i) for i in range(50)]
    assert threading.active_count() <= before + 2
    got = []
    reader = threading.Thread(target=lambda: got.append((states[3]["kept"], states[3].text())))
    reader.start()
    backend.gate.set()
    reader.join(10)
    assert got == [(summary.run("a", seed=3)["kept"], summary.run("a", seed=3).text())]


def test_streaming_and_cancelling(backend):
    program = summary.compile(backend)
    state = program.run("a", seed=1, stream=True)
    assert "".join(state.text_iter()) == summary.run("a", seed=1).text()
    assert "".join(state.text_iter("first")) == state["first"]
    backend.gate.clear()
    state = program.run("a")
    state.cancel("enough")
    backend.gate.set()
    with pytest.raises(ProgramError) as caught:
        state["kept"]
    assert isinstance(caught.value.__cause__, ProgramCancelled)
    assert isinstance(state.error(), ProgramCancelled)


def test_asynchronous_programs_and_runs(backend):
    @sgl.function
    async def inner(s, x):
        s += "inner " + x + sgl.gen("v")
        return await s.get("v")

    @sgl.function
    async def program(s, x):
        s += "a" + sgl.gen("x", max_tokens=2)
        called = await s.call(inner, x)
        forks = s.fork(2)
        forks += sgl.gen("f")
        await forks.join()
        async with s.copy() as copied:
            copied += "c" + await s.get("x") + sgl.gen("g")
        run = await inner.arun("y", seed=1)
        s += called.ret_value + run.ret_value + (await s.get("f"))[1]
        return await s.text(), await s.messages()

    async def batch():
        compiled = program.compile(backend)
        return await compiled.arun_batch([{"x": "1"}, {"x": "2"}], seed=4)

    expected = [state.text() for state in program.run_batch([{"x": "1"}, {"x": "2"}], seed=4)]
    assert [state.text() for state in asyncio.run(batch())] == expected

    async def both():
        mine = await program.compile(backend).arun("z", seed=2)
        theirs = await program.arun("z", seed=2)
        assert mine.stream_executor.is_finished
        return mine, theirs

    mine, theirs = asyncio.run(both())
    assert mine.text() == theirs.text() and mine.ret_value == theirs.ret_value
    assert (mine["g"], mine["f"]) == (theirs["g"], theirs["f"])


def test_text_and_messages_where_they_are_constant(backend):
    @sgl.function
    def program(s, x):
        s += sgl.user("one ")
        early, turns = s.text(), s.messages()
        s += sgl.assistant("two " + x)
        s += early.upper() + turns[0]["content"] + s.messages()[1]["content"]

    made = program.compile(backend)
    assert made.run("x").text() == program.run("x").text()
    backend.chat_template = get_chat_template("chatml")
    with pytest.raises(TraceError, match="compiled for 'default', but the backend's is 'chatml'"):
        made.run("x")
    assert program.compile(backend).run("x").text() == program.run("x").text()


def test_typed_values_reasoning_and_choices(backend):
    backend.rule = lambda prompt, request: "<think>7</think>42" if "think" in prompt else "42"

    @sgl.function
    def program(s):
        s += sgl.gen("number", int) + sgl.select("c", ["a", "b"])
        s += "think " + sgl.separate_reasoning(sgl.gen("r"), "qwen3")
        s += s["r_reasoning_content"] + s["r"]
        return s.get("number"), s.get("r", int), s["c"]

    mine, theirs = program.compile(backend).run(seed=1), program.run(seed=1)
    assert mine.ret_value == theirs.ret_value == (42, 42, "a")
    assert mine.text() == theirs.text() and mine["r_reasoning_content"] == "7" and mine.get("number") == 42


def test_tools(backend):
    def weather(city: str) -> str:
        """Weather."""
        return "rain in " + city

    tools = sgl.tools([weather], format="hermes")
    reply = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    backend.rule = lambda prompt, request: reply

    @sgl.function
    def program(s, question):
        s += tools
        s += sgl.user(question)
        s += sgl.assistant(tools.call("step"))
        return s.get("step"), s.messages()

    compiled = program.compile(backend)
    assert compiled.passes.after.operations < compiled.passes.before.operations
    mine, theirs = compiled.run("Rome?"), program.run("Rome?")
    assert mine.text() == theirs.text() and "weather" in mine.messages()[0]["content"]
    assert mine.ret_value == theirs.ret_value and mine.ret_value[0].calls[0].arguments == {"city": "Rome"}


def test_programs_that_are_called_are_stopped_with_their_caller(backend):
    @sgl.function
    def inner(s):
        s += "x" + sgl.gen("v")

    @sgl.function
    def program(s):
        return inner()

    backend.gate.clear()
    state = program.compile(backend).run()
    state.cancel("enough")
    backend.gate.set()
    with pytest.raises(ProgramCancelled):
        state.ret_value["v"]


def test_pinned_streams_go_with_the_program():
    made = RuleBackend(from_prompt)
    try:
        program = summary.compile(made, style="loud" * 30)
        program.run("a", backend=made).sync()
        stream = weakref.ref(next(iter(program._pins.values()))._executor.stream)
        assert stream() is not None
        del program
        gc.collect()
        assert stream() is None
    finally:
        made.worker.shutdown()
