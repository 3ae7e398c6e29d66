"""Programs that are methods: of an instance, of a class, static; run, batched, compiled, called, pickled, checked."""

from __future__ import annotations

import abc
import asyncio
import inspect
import pickle
from dataclasses import dataclass

import pytest

import sgl
from sgl.lang.check import check_source
from sgl.lang.errors import ArgumentsError

BACKEND = sgl.Scripted({"x": "5"})


@dataclass
class Judge:
    mark: str = "!"

    @sgl.function
    def score(self, s: sgl.State, text: str, more: str = "") -> str:
        """Scores a text."""
        s += text + self.mark + more + sgl.gen("x")
        return s["x"]

    @sgl.function
    async def later(self, s: sgl.AsyncState, text: str) -> str:
        s += text + self.mark + sgl.gen("x")
        return await s.get("x")

    @sgl.function
    @classmethod
    def title(cls, s: sgl.State, text: str) -> str:
        s += text + cls.__name__ + sgl.gen("x")
        return s["x"]

    @sgl.function
    @staticmethod
    def plain(s: sgl.State, text: str) -> str:
        s += text + sgl.gen("x")
        return s["x"]

    @sgl.function(num_api_spec_tokens=8)
    def __hidden(self, s: sgl.State, text: str) -> str:
        s += text + self.mark + sgl.gen("x")
        return s["x"]

    @property
    def hidden(self) -> sgl.SglFunction:
        return self.__hidden


class Strict(Judge):
    @sgl.function
    def score(self, s: sgl.State, text: str, more: str = "") -> str:
        return s.call(super().score, "A" + text, more).ret_value


judge = Judge()
PROGRAMS = {
    "instance": (judge.score, "a!5"),
    "async": (judge.later, "a!5"),
    "class": (Judge.title, "aJudge5"),
    "class of an instance": (judge.title, "aJudge5"),
    "class below": (Strict.title, "aStrict5"),
    "static": (Judge.plain, "a5"),
    "static of an instance": (judge.plain, "a5"),
    "hidden": (judge.hidden, "a!5"),
    "overridden": (Strict("?").score, "Aa?5"),
}
EACH = pytest.mark.parametrize(("program", "text"), PROGRAMS.values(), ids=PROGRAMS)


@EACH
def test_runs(program, text):
    state = program.run("a", backend=BACKEND)
    assert state.text() == text and state.ret_value == "5" and program.arg_names[0] == "text"
    assert [s.text() for s in program.run_batch([{"text": "a"}, {"text": "a"}], backend=BACKEND)] == [text] * 2
    assert [s.text() for s in program.run_batch([program.item("a")], backend=BACKEND)] == [text]
    assert asyncio.run(program.arun("a", backend=BACKEND)).text() == text
    assert program.compile(backend=BACKEND).run("a", backend=BACKEND).text() == text


@EACH
def test_pickles(program, text):
    again = pickle.loads(pickle.dumps(program))
    assert again.run("a", backend=BACKEND).text() == text
    fixed = program.bind(text="a").with_options(seed=3)
    again = pickle.loads(pickle.dumps(fixed))
    assert again.run(backend=BACKEND).text() == text and again.run_options == {"seed": 3}


def test_an_instance_that_has_changed_is_seen():
    mine = Judge()
    program = mine.score
    mine.mark = "?"
    assert program.run("a", backend=BACKEND).text() == "a?5"


def test_other_programs_call_it():
    @sgl.function
    def around(s: sgl.State, text: str) -> str:
        return s.call(judge.score, text, more="-").ret_value + s.call(judge.plain, text).ret_value

    state = around.run("a", backend=BACKEND)
    assert state.text() == "a!-5a5" and state.ret_value == "55"
    assert around.compile(backend=BACKEND).run("b", backend=BACKEND).text() == "b!-5b5"


def test_it_looks_like_its_function():
    assert judge.score.__doc__ == "Scores a text." and repr(judge.score) == "<sgl.function score>"
    assert list(inspect.signature(judge.score).parameters) == ["s", "text", "more"]
    assert Judge.score.__doc__ == "Scores a text." and "a method" in repr(Judge.score)
    assert judge.hidden.num_api_spec_tokens == 8


def test_an_abstract_method_must_be_given():
    class Base(abc.ABC):
        @sgl.function
        @abc.abstractmethod
        def score(self, s: sgl.State) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_without_an_instance_it_says_so():
    with pytest.raises(ArgumentsError, match=r"Judge.score is a method; take it from an instance: instance.score.run"):
        Judge.score.run("a")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        Judge.score.nothing  # noqa: B018


def test_below_classmethod_it_says_so():
    class Below:
        @classmethod
        @sgl.function
        def title(cls, s: sgl.State) -> None: ...

    with pytest.raises(ArgumentsError, match=r"Below.title is .*@classmethod|take it from an instance"):
        Below.title.run()


def test_outside_of_a_class_the_state_comes_first():
    with pytest.raises(ArgumentsError, match=r"the first parameter of .*f must be `s`"):

        @sgl.function
        def f(x, s): ...


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentsError, match=r"score\(s, text, more\): missing a required argument: 'text'"):
        judge.score.run(backend=BACKEND)


def test_the_checks_follow_it():
    text = """
import sgl
class Judge:
    @sgl.function
    def score(self, s, text):
        s += text + sgl.gen("x")
        s["y"]
    @sgl.function
    def wrong(self, text, s): ...
"""
    assert [(p.line, p.rule) for p in check_source(text, "judge.py")] == [(7, "SGL101"), (9, "SGL601")]
