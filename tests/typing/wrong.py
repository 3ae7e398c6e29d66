"""Mistakes, one a line: mypy and pyright report each line that ends with `error`, and no other. Never run."""
# ruff: noqa: F841

from __future__ import annotations

from typing import Literal

import sgl
from sgl.lang.tools import ToolCalls


class Judge:
    @sgl.function
    def score(self, s: sgl.State, text: str, bonus: int = 0) -> int:
        return len(text) + bonus

    @sgl.function
    @classmethod
    def title(cls, s: sgl.State, text: str) -> str:
        return text


@sgl.function
def reply(s: sgl.State, question: str, most: int = 3) -> int:
    return most


@sgl.function
def note(s: sgl.State) -> None:
    s += sgl.gen("note")


@sgl.function
def named(s: sgl.State, *, text: str) -> str:
    return text


@sgl.function
def four(s: sgl.State, a: list[float], b: Literal["food", "price"], c: bool, d: str) -> None:
    note.run()


@sgl.function
async def later(s: sgl.AsyncState, question: str) -> float:
    s += question
    return 1.5


judge = Judge()
scripted = sgl.Scripted({})

# --- arguments of programs
reply.run()  # error
reply.run(3)  # error
reply.run(None)  # error
reply.run("why?", "4")  # error
reply.run("why?", 4, 5)  # error
reply.run(qestion="why?")  # error
reply.run("why?", mots=4)  # error
reply.run("why?", question="why?")  # error
reply.run(most=4)  # error
reply("why?", 4, 5)  # error
reply(question=3)  # error
note.run("why?")  # error
named.run("a")  # error
named.run(text=3)  # error
four.run([1.5], "water", True, "d")  # error
four.run(["a"], "food", True, "d")  # error
four.run([1.5], "food", True)  # error
later.run(3)  # error
judge.score.run()  # error
judge.score.run(3)  # error
judge.score.run("a", bonus="b")  # error
judge.title.run(3)  # error

# --- options of runs
reply.run("why?", temprature=0)  # error
reply.run("why?", temperature="0")  # error
reply.run("why?", max_tokens="8")  # error
reply.run("why?", stop=3)  # error
reply.run("why?", seed=1.5)  # error
reply.run("why?", stream="yes")  # error
reply.run("why?", budget="9")  # error
reply.run(3, temperature=0)  # error
reply.run(temperature=0)  # error
reply.run("why?", 4, 5, temperature=0)  # error
note.run("why?", temperature=0)  # error
four.run([1.5], "water", True, "d", seed=1)  # error
reply.with_options(temprature=0)  # error
reply.with_options(temperature="0")  # error
reply.with_options(seed=1).run()  # error
reply.with_options(seed=1).run(3)  # error
judge.score.run("a", sed=1)  # error

# --- batches and items
reply.run_batch({"question": "why?"})  # error
reply.run_batch([("why?",)], temprature=0)  # error
reply.run_batch([("why?",)], stream=True)  # error
reply.run_batch([("why?",)], num_threads=1.5)  # error
reply.run_batch([reply.item(3)])  # error
reply.run_batch([reply.item()])  # error
reply.run_batch([reply.item(qestion="why?")])  # error

# --- what programs return
count: str = reply.run("why?").ret_value  # error
reply.run("why?").ret_value.upper()  # error
counts: list[str] = [state.ret_value for state in reply.run_batch([("why?",)])]  # error
length: int = later.run("why?").ret_value  # error
state: sgl.ProgramState[str] = reply.run("why?")  # error
reply.run("why?").txt()  # error
reply.compile().run("why?").ret_value.upper()  # error


# --- states
@sgl.function
def around(s: sgl.State, question: str) -> str:
    s.call(reply, 3)  # error
    s.call(reply)  # error
    s.call(reply, question, mots=2)  # error
    s.call(note, question)  # error
    s.call(reply, question, temperature=0)  # error
    s.call(len, question)  # error
    age: str = s.get("age", int)  # error
    topic: Literal["a"] = s.get(sgl.gen("topic", Literal["a", "b"]))  # error
    mood: int = s.get(sgl.select("mood", ["good", "bad"]))  # error
    calls: ToolCalls = s.get(sgl.gen("calls"))  # error
    s += 3  # error
    s.fork("2")  # error
    return s.get("age", int)  # error


@sgl.function
async def waits(s: sgl.AsyncState) -> int:
    text: str = s.text()  # error
    number: int = await s.get("x", str)  # error
    await s.call(later, 3)  # error
    return len(text) + number


# --- expressions
sgl.gen(3)  # error
sgl.gen("x", temprature=0)  # error
sgl.gen("x", int, temperature="0")  # error
sgl.gen("x", int, "8")  # error
sgl.gen("x", choices=3)  # error
sgl.select("x", 3)  # error
sgl.select("x", ["a"], temperature="0")  # error
sgl.select("x", ["a"], temprature=0)  # error
sgl.user(3)  # error
sgl.function(3)  # error
sgl.tools([]).loop("why?", temprature=0)  # error
