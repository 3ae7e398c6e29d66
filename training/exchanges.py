"""One use of a tool in a conversation: the request, the call, the result and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import Message, PromptTool, message, tool_answer, tool_call, tool_result

FAILED = ("That did not work: {e}.", "Sorry, {e}.", "I could not do it, {e}.", "There was an error: {e}.")
ERRORS = (
    "not found",
    "no entry called {v}",
    "no such thing as {v}",
    "nothing found for {v}",
    "the service does not answer",
    "{v} is unknown",
)


@dataclass(frozen=True)
class Exchange:
    """A tool as it is offered, and one conversation turn that uses it; one family does one job."""

    family: str
    tool: PromptTool
    turns: list[Message]


def conversation(request: str, tool: PromptTool, arguments: dict[str, Any], result: Any, answer: str) -> list[Message]:
    """A request, the call of the tool, its result and the answer."""
    call = tool_call(tool.name, arguments)
    return [message("user", request), *call, tool_result(result), *tool_answer(answer)]


def failure(rng: Random, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The result of a call that failed, and the answer that says so."""
    given = rng.choice(list(arguments.values())) if arguments else "it"
    error = rng.choice(ERRORS).format(v=given)
    return {"error": error}, rng.choice(FAILED).format(e=error)
