"""An agent as a program: the model calls tools until it answers."""

from __future__ import annotations

from typing import Any

from ..nodes.primitives import assistant, system, tool, user
from ..program.program import Program, ProgramCall
from ..program.program_run import RunSettings, run_program, split_options
from ..program.program_state import ProgramState
from .tool_nodes import ToolSet


def agent(s: Any, question: str, toolbox: ToolSet, most_steps: int) -> str | None:
    """The answer; None where the last step that is allowed was a call."""
    s += system(toolbox)
    s += user(question)
    for _ in range(most_steps):
        s += assistant(toolbox.call("step"))
        step = s.get("step")
        if not step:
            return str(step.text)
        for call in step:
            s += tool(_as_result(toolbox.run(call)))
    return None


def _as_result(result: Any) -> Any:
    """A single number as an object: the bundled model was trained on those, and does not take a number as an answer."""
    return {"result": result} if isinstance(result, int | float) else result


def run_agent(toolbox: ToolSet, question: str, most_steps: int, options: dict[str, Any]) -> ProgramState:
    program = Program(agent)
    _, run_options = split_options(program, options)
    return run_program(program, ProgramCall((question, toolbox, most_steps)), RunSettings.of(run_options))
