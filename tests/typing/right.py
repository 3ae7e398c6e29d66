"""Programs without a mistake: mypy and pyright, both strict, report no line of it. Never run."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, assert_type

from pydantic import BaseModel, Field

import sgl
from sgl.lang.graph.compiled_program import CompiledProgram
from sgl.lang.nodes.ir import SglGen, SglSelect

Value = TypeVar("Value")
Topic = Literal["food", "price"]


class Mood(enum.Enum):
    good = "good"
    bad = "bad"


class Booking(BaseModel):
    guests: int


@dataclass
class Guest:
    name: str


# --- programs ----------------------------------------------------------------------------------------------


@sgl.function
def reply(s: sgl.State, question: str, most: int = 3) -> int:
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=most))
    return len(s.text())


@sgl.function
def note(s: sgl.State) -> None:
    s += sgl.gen("note")


@sgl.function
def named(s: sgl.State, *, text: str, tries: int = 1) -> str:
    return text * tries


@sgl.function
def many(s: sgl.State, *words: str) -> list[str]:
    return list(words)


@sgl.function
def four(s: sgl.State, a: Sequence[float], b: Topic, c: Mood | None, d: object) -> Topic:
    return b


@sgl.function
async def later(s: sgl.AsyncState, question: str) -> Booking:
    s += sgl.user(question)
    booking = sgl.gen("booking", Booking)
    s += sgl.assistant(booking)
    assert_type(await s.get(booking), Booking)
    assert_type((await s.call(later, question)).ret_value, Booking)
    assert_type(await s.text(), str)
    assert_type(s.fork(2)[0], sgl.AsyncState)
    return await s.get(booking)


@sgl.function(num_api_spec_tokens=64)
def ahead(s: sgl.State, topic: str) -> bool:
    s += topic + sgl.gen("ok", bool)
    return s.get("ok", bool)


assert_type(reply.run("why?").ret_value, int)
assert_type(reply.run("why?", 4), sgl.ProgramState[int])
assert_type(reply.run(question="why?", most=4), sgl.ProgramState[int])
assert_type(reply.run("why?", most=4), sgl.ProgramState[int])
assert_type(reply.run("why?", temperature=0), sgl.ProgramState[int])
assert_type(reply.run("why?", 4, temperature=0.5, max_tokens=8, stop=["\n"]), sgl.ProgramState[int])
assert_type(reply.run("why?", backend=sgl.Scripted({}), stream=True, seed=7), sgl.ProgramState[int])
assert_type(reply.run("why?", timeout=3.5, budget=sgl.Budget(tokens=9), journal="run.jsonl"), sgl.ProgramState[int])
assert_type(reply("why?").ret_value, int)
assert_type(note.run().ret_value, None)
assert_type(note.run(temperature=0), sgl.ProgramState[None])
assert_type(named.run(text="a").ret_value, str)
assert_type(named.with_options(temperature=0).run(text="a", tries=2).ret_value, str)
assert_type(reply.with_options(backend=sgl.Scripted({}), max_tokens=8).run(question="why?"), sgl.ProgramState[int])
assert_type(many.run("a", "b").ret_value, list[str])
assert_type(many.run("a", "b", temperature=0).ret_value, list[str])
assert_type(four.run([1, 2.5], "food", Mood.good, 3).ret_value, Topic)
assert_type(four.run((1,), "price", None, "any", temperature=0).ret_value, Topic)
assert_type(later.run("why?").ret_value, Booking)
assert_type(ahead.run("sea", seed=1).ret_value, bool)
assert_type(reply.bind(question="why?").run().ret_value, int)
assert_type(reply.compile(most=4), CompiledProgram[int])
assert_type(reply.compile().run("why?").ret_value, int)


async def on_a_loop() -> None:
    assert_type(await reply.arun("why?"), sgl.ProgramState[int])
    assert_type(await later.arun("why?", temperature=0), sgl.ProgramState[Booking])
    assert_type((await later.arun(question="why?")).ret_value.guests, int)
    assert_type(await later.arun_batch([later.item("why?")]), list[sgl.ProgramState[Booking]])
    async for part in (await reply.arun("why?", stream=True)).text_async_iter():
        assert_type(part, Any)


# --- batches -----------------------------------------------------------------------------------------------

assert_type(reply.run_batch([{"question": "why?"}]), list[sgl.ProgramState[int]])
assert_type(reply.run_batch([("why?",), ("how?", 2)], temperature=0), list[sgl.ProgramState[int]])
assert_type(reply.run_batch([reply.item("why?"), reply.item(question="how?", most=2)]), list[sgl.ProgramState[int]])
assert_type(reply.run_batch([reply.item("why?")], num_threads=2, progress_bar=True)[0].ret_value, int)
assert_type(reply.run_batch([("why?",)], generator_style=True), Iterator[sgl.ProgramState[int]])
assert_type(reply.run_batch([("why?",)], return_exceptions=True), list[sgl.ProgramState[int] | Exception])
assert_type(reply.run_batch([("why?",)], journal="batch.jsonl", adapter=["sql"]), list[sgl.ProgramState[int]])

# --- states ------------------------------------------------------------------------------------------------


@sgl.function
def around(s: sgl.State, question: str) -> Guest:
    assert_type(s.call(reply, question), sgl.ProgramState[int])
    assert_type(s.call(reply, question, most=2).ret_value, int)
    assert_type(s.call(named, text=question).ret_value, str)
    assert_type(s["answer"], Any)
    assert_type(s.get("answer"), Any)
    assert_type(s.get("age", int), int)
    assert_type(s.get("topic", Topic), Topic)
    assert_type(s.get("age", int | None), int | None)
    assert_type(s.get(sgl.gen("guests", list[Guest])), list[Guest])
    assert_type(s.get(sgl.select("mood", Mood)), Mood)
    assert_type(s.get(sgl.select("answer", ["yes", "no"])), str)
    assert_type(s.probs("mood"), dict[str, float])
    for fork in s.fork(2):
        fork += sgl.gen("part")
    with s.user():
        s += "text"
    with s.copy() as side:
        assert_type(side, sgl.State)
    return s.get("guest", Guest)


def shown(state: sgl.State) -> str:
    return state.text()


def count(state: sgl.ProgramState[int], program: sgl.SglFunction) -> int:
    return state.ret_value + program.run("anything", temperature=0).usage().prompt_tokens


print(shown(reply.run("why?")), count(reply.run("why?"), reply), count(reply.run("why?"), around))


@sgl.function
def read(s: sgl.State, kind: type[Booking], text: str) -> Booking:
    s += sgl.user(text) + sgl.assistant(sgl.gen("value", kind))
    return s.get("value", kind)


def extracted(kind: type[Value], s: sgl.State) -> Value:
    value = sgl.gen("value", kind)
    s += value
    return s.get(value)


# --- expressions -------------------------------------------------------------------------------------------

assert_type(sgl.gen("x"), SglGen[str])
assert_type(sgl.gen("x", 8), SglGen[str])
assert_type(sgl.gen("x", max_tokens=8, temperature=0, regex="[a-z]+"), SglGen[str])
assert_type(sgl.gen("x", 8, None, 1, "stop"), SglGen[str])
assert_type(sgl.gen("x", int, 8), SglGen[int])
assert_type(sgl.gen("x", type=float), SglGen[float])
assert_type(sgl.gen(type=Literal["a", "b"]), SglGen[Literal["a", "b"]])
assert_type(sgl.gen("x", Topic), SglGen[Topic])
assert_type(sgl.gen("x", Mood), SglGen[Mood])
assert_type(sgl.gen("x", Booking | None), SglGen[Booking | None])
assert_type(sgl.gen("x", dict[str, Guest]), SglGen[dict[str, Guest]])
assert_type(sgl.gen("x", Annotated[int, Field(ge=3)]), SglGen[int])
assert_type(sgl.gen("x", choices=["a", "b"]), SglSelect[str])
assert_type(sgl.gen("x", choices={"a": "the first", "b": None}), SglSelect[str])
assert_type(sgl.gen("x", choices=Mood), SglSelect[Mood])
assert_type(sgl.select("x", bool), SglSelect[bool])
assert_type(sgl.select("x", Literal[1, 2]), SglSelect[Literal[1, 2]])
assert_type(sgl.select("x", {"a": None}, temperature=1), SglSelect[str])

# --- methods -----------------------------------------------------------------------------------------------


class Judge:
    def __init__(self, scale: int) -> None:
        self.scale = scale

    @sgl.function
    def score(self, s: sgl.State, text: str, bonus: int = 0) -> int:
        s += text + sgl.gen("score", int)
        return s.get("score", int) * self.scale + bonus

    @sgl.function
    async def later(self, s: sgl.AsyncState, text: str) -> float:
        s += text + sgl.gen("score", float)
        return await s.get("score", float)

    @sgl.function
    @classmethod
    def title(cls, s: sgl.State, text: str) -> str:
        return cls.__name__ + text

    @sgl.function
    @staticmethod
    def length(s: sgl.State, text: str) -> int:
        return len(text)

    def best(self, texts: list[str]) -> int:
        return max(state.ret_value for state in self.score.run_batch([self.score.item(text) for text in texts]))


judge = Judge(2)
assert_type(judge.score.run("a").ret_value, int)
assert_type(judge.score.run("a", bonus=1).ret_value, int)
assert_type(judge.score.run("a", 1, temperature=0).ret_value, int)
assert_type(judge.later.run("a").ret_value, float)
assert_type(Judge.length.run("a").ret_value, int)
assert_type(judge.length.run(text="a").ret_value, int)
assert_type(judge.title.run("a").ret_value, str)
