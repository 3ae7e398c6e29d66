"""What a type checker knows of the language. Checked by mypy in tests/unit/test_typed_public_api.py, never run."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypedDict, assert_type

from pydantic import BaseModel

import sgl
import sgl.lang.journal
import sgl.lang.report
from sgl import tools
from sgl.lang.nodes.ir import SglExprList, SglGen, SglSelect
from sgl.lang.program.report_and_journal_hooks import JournalModule, ReportModule
from sgl.lang.tools import Toolbox, ToolCall, ToolCalls


@dataclasses.dataclass
class Guest:
    name: str


class Booking(BaseModel):
    guests: int


class Film(TypedDict):
    title: str


def weather(city: str) -> str:
    return city


assert_type(sgl.gen("x"), SglGen[str])
assert_type(sgl.gen("x", 8), SglGen[str])
assert_type(sgl.gen("x", max_tokens=8, stop=["\n"]), SglGen[str])
assert_type(sgl.gen("x", 8, None, 1, "stop"), SglGen[str])
assert_type(sgl.gen("x", choices=["a", "b"]), SglSelect[str])
assert_type(sgl.gen("x", int), SglGen[int])
assert_type(sgl.gen("x", int, max_tokens=8), SglGen[int])
assert_type(sgl.gen("x", type=float), SglGen[float])
assert_type(sgl.gen("x", Guest), SglGen[Guest])
assert_type(sgl.gen("x", Booking, temperature=0.5), SglGen[Booking])
assert_type(sgl.gen("x", Film), SglGen[Film])
assert_type(sgl.gen("x", list[int]), SglGen[list[int]])
assert_type(sgl.gen("x", Literal["a", "b"]), SglGen[Literal["a", "b"]])
sgl.gen("x", temprature=1)  # type: ignore[call-overload]

assert_type(sgl.select("x", ["a", "b"]), SglSelect[str])
assert_type("a" + sgl.gen("x") + "b", SglExprList)
assert_type(sgl.user("hello"), SglExprList)
assert_type(sgl.messages([{"role": "user", "content": "hello"}]), SglExprList)


class Surest(sgl.ChoicesMethod):
    def choose(self, choices: list[sgl.Choice]) -> str:
        return max(choices, key=lambda choice: choice.prob).text


sgl.select("x", ["a", "b"], choices_method=Surest())

assert_type(sgl.Engine("model", context=512, kv_memory="2GB"), sgl.Engine)
assert_type(sgl.Engine(model=None, **dict[str, Any]()), sgl.Engine)
sgl.Engine("model", contxt=512)  # type: ignore[call-arg]
sgl.Engine("model", context="512")  # type: ignore[arg-type]

toolbox = tools([weather, Booking, {"name": "search", "parameters": {}}])
assert_type(toolbox, Toolbox)
assert_type(toolbox.loop("How old?", temperature=0), sgl.ProgramState[str | None])
assert_type(sgl.system(sgl.fields(Booking)), SglExprList)


@sgl.function
def program(s: sgl.State, question: str) -> int:
    age = sgl.gen("age", int)
    s += sgl.system("Be brief." + toolbox) + sgl.user(question)
    assert_type(s.probs("label"), dict[str, float])
    s += sgl.assistant(age)
    assert_type(s.get(age), int)
    assert_type(s.get("age", float), float)
    assert_type(s.get("age"), Any)
    step = toolbox.call("step", max_tokens=20)
    s += sgl.assistant(step)
    assert_type(s.get(step), ToolCalls)
    for call in s.get(step):
        assert_type(call, ToolCall)
        s += sgl.tool(toolbox.run(call))
    assert_type(s.text(), str)
    return s.get(age)


@sgl.function
async def later(s: sgl.AsyncState) -> None:
    age = sgl.gen("age", int)
    s += age
    assert_type(await s.get(age), int)
    assert_type(await s.text(), str)


assert_type(program.run("How old?", temperature=0), sgl.ProgramState[int])

# the rooms that states find by name have what they ask for; pyright takes no cached_property for a property
reports: ReportModule = sgl.lang.report  # pyright: ignore[reportAssignmentType]
journals: JournalModule = sgl.lang.journal
