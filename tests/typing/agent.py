"""An agent with three tools, as an editor sees it. Checked by mypy, and by pyright where there is one; never run."""

from __future__ import annotations

from typing import assert_type

import sgl
from sgl.lang.tools import ToolCall, ToolCalls


def weather(city: str) -> str:
    """The weather in a city now."""
    return city


def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


async def search(words: list[str]) -> list[str]:
    """Pages that have the words."""
    return words


toolbox = sgl.tools([weather, add, search])


@sgl.function
def answer(s: sgl.State, question: str, most_steps: int = 4) -> str | None:
    s += sgl.system("Be brief." + toolbox) + sgl.user(question)
    for _ in range(most_steps):
        s += sgl.assistant(step := toolbox.call("step", max_tokens=60))
        calls = s.get(step)
        assert_type(calls, ToolCalls)
        if not calls:
            assert_type(calls.text, str)
            return calls.text
        for call in calls:
            assert_type(call, ToolCall)
            s += sgl.tool(toolbox.run(call))
    return None


state = answer.run("How warm is it in Rome?", backend=sgl.Engine())
assert_type(state, sgl.ProgramState[str | None])
assert_type(state.text(), str)
assert_type(state.get("step", str), str)
answer.run(3)  # error
answer.run("How warm is it?", most_step=3)  # error
state.ret_value.upper()  # error
