"""Values that a body computes besides the model: called once, whatever happens to the run."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from journal_programs import LoggedBackend, digest

import sgl
from sgl.lang.errors import BadValueError, ProgramError, ReplayMismatch
from sgl.lang.journal import Journal, once, record, replay, resume


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


class Tools:
    """Calls are counted: a real tool would send mails."""

    def __init__(self):
        self.calls = []

    def search(self, query, limit=3):
        self.calls.append(query)
        return {"query": query, "hits": [random.random()] * limit}


@sgl.function
def agent(s, tools, rounds=3, broken=None):
    s += "Task."
    for index in range(rounds):
        s += f"\nThought {index}: " + sgl.gen("thought", max_tokens=8)
        if index == broken:
            raise KeyboardInterrupt
        result = once(s, "search", tools.search, s["thought"], limit=index + 1)
        s += f"\nFound: {result['hits']}"
    s += "\nAt " + str(once(s, "clock", time.time_ns)) + sgl.gen("end")


def test_tools_do_not_run_twice(path):
    tools = Tools()
    with record(path, LoggedBackend()) as backend:
        text = agent.run(tools, backend=backend).text()
    assert len(tools.calls) == 3
    assert agent.run(tools, backend=replay(path)).text() == text
    assert len(tools.calls) == 3
    node = Journal.open(path).find("clock")
    assert isinstance(node.value, int) and node.kind == "once"


def test_a_broken_agent_goes_on_where_it_was(path):
    tools, inner = Tools(), LoggedBackend()
    with record(path, inner) as backend, pytest.raises(KeyboardInterrupt):
        agent.run(tools, broken=2, backend=backend)
    assert (len(tools.calls), inner.count) == (2, 3)
    with resume(path, inner) as backend:
        text = agent.run(tools, backend=backend).text()
    assert (len(tools.calls), inner.count) == (3, 4)
    assert agent.run(tools, backend=replay(path)).text() == text


def test_an_edit_calls_again_only_what_is_behind_it(path):
    tools, inner = Tools(), LoggedBackend()
    with record(path, inner) as backend:
        agent.run(tools, backend=backend).sync()
    journal = Journal.open(path)
    journal.edit([node for node in journal.nodes if node.name == "search"][1], {"hits": ["none"]})
    with resume(path, inner) as backend:
        text = agent.run(tools, backend=backend).text()
    assert "Found: ['none']" in text
    assert (len(tools.calls), inner.count) == (4, 6)
    assert [node.name for node in backend.computed] == ["thought", "search", "clock", "end"]


def test_other_arguments_are_another_call(path):
    @sgl.function
    def one(s, value):
        s += "x" + sgl.gen("a", temperature=0)
        s["double"] = once(s, "double", lambda number: number * 2, value)

    with record(path, LoggedBackend()) as backend:
        assert one.run(3, backend=backend)["double"] == 6
    assert one.run(3, backend=replay(path))["double"] == 6
    with pytest.raises(ReplayMismatch, match=r"once 'double' .*recorded with args=\[3\] and is asked with args=\[4\]"):
        one.run(4, backend=replay(path))
    with resume(path, LoggedBackend()) as backend:
        assert one.run(4, backend=backend)["double"] == 8
        assert len(backend.computed) == 1


def test_forks_and_repetitions_have_their_own_values(path):
    @sgl.function
    def many(s):
        forks = s.fork(4)
        s["drawn"] = [once(child, "draw", random.random) for child in forks for _ in range(2)]

    with record(path, LoggedBackend()) as backend:
        drawn = many.run(backend=backend)["drawn"]
    assert len(set(drawn)) == 8
    assert many.run(backend=replay(path))["drawn"] == drawn


def test_recording_does_not_wait_for_the_model(path):
    """The function runs while a gen before it is still being made; its value is kept with the finished text."""

    @sgl.function
    def early(s):
        s += sgl.gen("a")
        s["now"] = once(s, "now", time.time)

    inner = LoggedBackend()
    inner.gate.clear()
    with record(path, inner) as backend:
        state = early.run(backend=backend)
        assert state["now"] > 0
        inner.gate.set()
    assert [node.name for node in Journal.open(path)] == ["a", "now"]
    assert early.run(backend=replay(path))["now"] == state["now"]


def test_failures_of_functions(path):
    @sgl.function
    def fails(s, function):
        s += "x"
        s["value"] = once(s, "value", function)

    def broken():
        raise LookupError("no network")

    with record(path, LoggedBackend()) as backend, pytest.raises(LookupError, match="no network"):
        fails.run(broken, backend=backend)
    with pytest.raises(LookupError, match="no network"):
        fails.run(lambda: 5, backend=replay(path))
    with resume(path, LoggedBackend()) as backend:
        assert fails.run(lambda: 5, backend=backend)["value"] == 5
    assert fails.run(broken, backend=replay(path))["value"] == 5


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {"a": {3}}, object(), b"x"])
def test_values_that_json_would_change_are_refused(path, value):
    @sgl.function
    def gives(s):
        once(s, "value", lambda: value)

    with record(path, LoggedBackend()) as backend, pytest.raises(BadValueError, match=r"once\('value'\) returned"):
        gives.run(backend=backend)


def test_without_a_journal_it_only_calls():
    tools = Tools()
    assert "Found" in agent.run(tools, backend=LoggedBackend()).text()
    assert len(tools.calls) == 3


def test_behind_a_failed_gen_the_function_is_just_called(path):
    def failing(prompt, request):
        raise ZeroDivisionError

    @sgl.function
    def goes_on(s, calls):
        s += sgl.gen("a")
        once(s, "call", calls.append, 1)

    calls = []
    with record(path, LoggedBackend(failing)) as backend:
        assert isinstance(goes_on.run(calls, backend=backend).error(), ProgramError)
    with resume(path, LoggedBackend(failing)) as backend:
        goes_on.run(calls, backend=backend).sync()
    assert calls == [1, 1]


def test_coroutine_functions_are_awaited(path):
    calls = []

    async def fetch(query):
        calls.append(query)
        await asyncio.sleep(0.001)
        return [query, time.time_ns()]

    @sgl.function
    async def asking(s):
        s += "Q" + sgl.gen("q")
        s += str(await once(s, "fetch", fetch, "x")) + sgl.gen("b")

    async def text(backend):
        return (await asking.arun(backend=backend)).text()

    with record(path, LoggedBackend(digest)) as backend:
        first = asyncio.run(text(backend))
    assert asyncio.run(text(replay(path))) == first and len(calls) == 1
