"""Finished states that are pickled and copied: all that can be read of them is the same, and nothing runs on."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import threading
from typing import Literal

import pytest

import sgl
from sgl.lang.errors import ProgramError, StateEndedError


@dataclasses.dataclass
class Pet:
    name: str


@sgl.function
def inner(s, x):
    s += "inner " + x + sgl.gen("v")
    return s["v"]


@sgl.function
def program(s, x):
    s += sgl.system("Be brief.") + sgl.user("Hi " + x)
    s += sgl.assistant(sgl.gen("a") + sgl.select("c", ["x", "y"]) + sgl.gen("n", n=2))
    forks = s.fork(2)
    forks += "t" + sgl.gen("t")
    forks.join()
    with s.var_scope("w"):
        s += "w" + sgl.gen("q")
    s["own"] = {"deep": [1, 2]}
    s.call(inner, "z")
    return s["own"]


def told(state) -> tuple:
    names = ("a", "c", "n", "t", "w", "own")
    return (
        state.text(),
        state.messages(),
        [state[name] for name in names],
        state.get_meta_info("a"),
        state.ret_value,
        state.usage(),
        state.error(),
        "a" in state,
        list(state.text_iter("a")),
        state.get("a"),
    )


COPIES = {"pickle": lambda state: pickle.loads(pickle.dumps(state)), "deepcopy": copy.deepcopy}


@pytest.mark.few(4)
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", ["run", "stream", "compiled", "batch"])
def test_a_copy_says_the_same(backend, way, kind):
    state = {
        "run": lambda: program.run("x", backend=backend),
        "stream": lambda: program.run("x", backend=backend, stream=True),
        "compiled": lambda: flat.compile(backend).run(x="x"),
        "batch": lambda: program.run_batch([{"x": "x"}], backend=backend)[0],
    }[kind]()
    state.sync()
    twin = COPIES[way](state)
    if kind == "compiled":
        assert (twin.text(), twin["a"], twin["t"], twin.ret_value) == (
            state.text(),
            state["a"],
            state["t"],
            state.ret_value,
        )
    else:
        assert told(twin) == told(state)
    assert twin.report().data["runs"][0]["program"] == state.report().data["runs"][0]["program"]
    assert COPIES[way](twin).text() == state.text()
    with pytest.raises(StateEndedError):
        twin += "more"


@sgl.function
def flat(s, x):
    s += "Hi " + x + sgl.gen("a")
    forks = s.fork(2)
    forks += "t" + sgl.gen("t")
    forks.join()
    s["b"] = s["a"]
    return s["t"]


def test_a_copy_of_a_typed_one_reads_its_types():
    @sgl.function
    def typed(s):
        s += sgl.gen("pet", Pet)

    twin = pickle.loads(pickle.dumps(typed.run(backend=sgl.Scripted({"pet": {"name": "Rex"}}))))
    assert twin.get("pet") == Pet("Rex") and twin["pet"].startswith("{")


def test_a_copy_of_a_failed_one_tells_its_error(backend):
    @sgl.function
    def fails(s):
        s += "x" + sgl.gen("a") + sgl.gen("b") + sgl.gen("c")

    backend.rule = lambda prompt, request: 1 / 0 if request.name == "b" else "y"
    state = fails.run(backend=backend)
    twin = pickle.loads(pickle.dumps(state))
    assert str(twin.error()) == str(state.error()) and twin.text() == state.text() == "xy"
    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        twin["c"]


def test_what_still_runs_is_not_copied(backend):
    kept = []

    @sgl.function
    def running(s):
        s += sgl.gen("a")
        for way in COPIES.values():
            with pytest.raises(TypeError, match="cannot be pickled or copied while"):
                way(s)
        kept.append(True)

    running.run(backend=backend)
    assert kept


def test_an_async_one(backend):
    @sgl.function
    async def later(s):
        s += "x" + sgl.gen("a")
        return await s.get("a")

    state = asyncio.run(later.arun(backend=backend))
    twin = copy.deepcopy(state)
    assert (twin.text(), twin["a"], twin.ret_value) == (state.text(), state["a"], state.ret_value)


# --- what was never made -----------------------------------------------------------------------------------------


def test_a_variable_behind_a_failure_says_the_failure_first(backend):
    backend.rule = lambda prompt, request: 1 / 0

    @sgl.function
    def gives_up(s):
        s += "x" + sgl.gen("x")
        if s.error():
            return
        s += sgl.gen("y")

    @sgl.function
    def reads(s):
        s += "x" + sgl.gen("x")
        s["x"]
        s += sgl.gen("y")

    for state in (
        gives_up.run(backend=backend),
        gives_up.run(backend=backend, stream=True),
        reads.run(backend=backend, stream=True),
    ):
        for _ in range(2):
            with pytest.raises(
                ProgramError, match=r"Gen\('x'\) failed: ZeroDivisionError: .*; so variable 'y' was never made"
            ) as caught:
                state["y"]
            assert str(caught.value).startswith(__file__) and isinstance(caught.value.__cause__, ProgramError)
        with pytest.raises(KeyError):
            state["y"]
        assert state.get_meta_info("y") is None


def test_without_a_failure_an_unknown_name_is_as_before(backend):
    @sgl.function
    def fine(s):
        s += "x" + sgl.gen("x")

    with pytest.raises(KeyError, match="no variable 'y'"):
        fine.run(backend=backend)["y"]


def test_what_python_cannot_pickle_is_lost_by_name(backend):
    @dataclasses.dataclass
    class Local:
        name: str

    class Mine(sgl.ChoicesMethod):
        def choose(self, choices):
            return choices[0].text

    @sgl.function
    def program(s, lock):
        s += (
            sgl.gen("pet", Local)
            + sgl.select("c", ["x", "y"], choices_method=Mine())
            + sgl.gen("n", int)
            + sgl.gen("w", Literal["a", "b"])
        )

    scripted = sgl.Scripted({"pet": {"name": "Rex"}, "c": "x", "n": 5, "w": "b"})
    state = program.run(threading.Lock(), backend=scripted)
    twin = pickle.loads(pickle.dumps(state))
    assert (twin["pet"], twin["c"], twin.get("n"), twin.get("w")) == (state["pet"], "x", 5, "b")
    with pytest.raises(ProgramError, match=r"Local.* could not be pickled with the state"):
        twin.get("pet")
    assert twin.get("pet", Pet) == Pet("Rex") and twin.report().html
    assert copy.deepcopy(state).get("pet") == Local("Rex")
