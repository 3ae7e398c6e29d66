"""The bundled model: a turn with the name of a tool (or `answer`), then a turn with its arguments (or the answer)."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from sgl.runtime.errors import ConfigError
from sgl.runtime.nano import nano_prompts

from ..parsing.json_tool_call_parser import JsonToolCallParser, JsonToolCallSyntax
from ..reasoning_marks import ReasoningMarks
from ..tool_dialect import Dialect, DialectStep
from ..tool_prompt import Message
from ..tool_types import DialectToolCall, Tool

TURN = f"{nano_prompts.END}<|assistant|>"
DEEPEST = 4  # objects inside each other that are shown
MOST_VALUES = 2000  # that are shown of one tool
MOST_LINKS = 100  # references that lead to references
RESULT = "result"  # the key of a result that is no object


class NanoToolDialect(Dialect):
    """One call a step."""

    name = "nano"
    stands_in = False
    form = JsonToolCallSyntax(
        TURN, start=True, known=True, silent=True, objects=False, named=True, link=TURN, answer=nano_prompts.ANSWER
    )

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> JsonToolCallParser:
        return JsonToolCallParser(self.form, names, marks)

    def describe(self, tools: Sequence[Tool]) -> str:
        return self._system("", tools)

    def _system(self, text: str, tools: Sequence[Tool]) -> str:
        return nano_prompts.tools_system(map(_shown, tools), text)["content"]

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        turns = [turn["content"] for turn in (*(nano_prompts.tool_answer(text) if text else ()), *_turns(calls))]
        return TURN.join(turns)

    def _assistant(self, thought: str, text: str, calls: list[DialectToolCall]) -> list[Message]:
        said = nano_prompts.tool_answer(text) if text or not calls else []
        return [dict(turn) for turn in (*said, *_turns(calls))]

    def _answer(self, text: str, message: Mapping[str, Any]) -> Message:
        """The model was trained on results that are objects; after any other text it calls again, or ignores it."""
        result = _value(text)
        return dict(nano_prompts.tool_result(result if isinstance(result, dict) else {RESULT: result}))

    # --- steps -------------------------------------------------------------------------------------------

    def _plan(self, tools: Sequence[Tool], choice: str, parallel: bool) -> DialectStep:
        if any(tool.name == nano_prompts.ANSWER for tool in tools):
            raise ConfigError(
                f"a tool has the name {nano_prompts.ANSWER!r}, with which this model starts an answer; rename it"
            )
        steps = {tool.name: _arguments(TURN, tool) for tool in tools}
        if choice not in ("auto", "required"):
            return _arguments(choice + TURN, tools[0])
        if choice == "auto":
            steps[nano_prompts.ANSWER] = DialectStep(TURN, None, free=True)
        return DialectStep("", ("choices", list(steps)), then=partial(_following, steps))

    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> None:
        return None


def _value(text: str) -> Any:
    """What the text says as JSON that can be written again, else the text."""
    try:
        value = json.loads(text, parse_constant=_no_value, parse_float=_finite)
        nano_prompts.json_text(value).encode()  # half of a surrogate pair is JSON, but no text
        return value
    except (ValueError, RecursionError):
        return text


def _no_value(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _no_value(digits)


def _turns(calls: Sequence[DialectToolCall]) -> list[nano_prompts.Message]:
    return [turn for call in calls for turn in nano_prompts.tool_call(call.name, call.arguments)]


def _arguments(prefix: str, tool: Tool) -> DialectStep:
    return DialectStep(prefix, ("json_schema", json.dumps(tool.arguments_schema)))


def _following(steps: Mapping[str, DialectStep], text: str) -> DialectStep | None:
    return steps.get(text)


def _shown(tool: Tool) -> nano_prompts.PromptTool:
    """The tool as the model was trained to see it: one line for each value to fill."""
    return nano_prompts.PromptTool(
        tool.name, " ".join(tool.description.split()), nano_prompts.fields_of(_ShownSchema(tool).schema)
    )


class _ShownSchema:
    """A tool's schema without references, and of several types the first.

    Raises:
        ConfigError: written out it has more values to fill than any prompt could say.
    """

    def __init__(self, tool: Tool) -> None:
        self._name, self._defs, self._left = tool.name, tool.parameters.get("$defs"), MOST_VALUES
        self.schema = self._inlined(tool.parameters, DEEPEST)

    def _inlined(self, schema: Any, depth: int) -> dict[str, Any]:
        schema = self._resolved(schema) if depth else {}
        properties = _mapping(schema.get("properties"))
        self._left -= len(properties)
        if self._left < 0:
            raise ConfigError(f"the tool {self._name!r} has more than {MOST_VALUES} values to fill; give it fewer")
        return {**schema, "properties": {name: self._inlined(one, depth - 1) for name, one in properties.items()}}

    def _resolved(self, schema: Any) -> dict[str, Any]:
        for _ in range(MOST_LINKS):
            schema = _mapping(schema)
            if "$ref" in schema:
                found = _mapping(self._defs).get(str(schema["$ref"]).rpartition("/")[2])
                schema = {**_mapping(found), **_without(schema, "$ref")}
            elif members := [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]:
                schema = {**_mapping(members[0]), **_without(schema, "anyOf")}
            else:
                return schema
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    """What is no object, such as the schema `true`, says nothing."""
    return value if isinstance(value, dict) else {}


def _without(schema: dict[str, Any], left_out: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != left_out}
