"""The bundled model: a turn with the name of a tool (or `answer`), then a turn with its arguments (or the answer)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgl.runtime.nano import prompts

from ..backend import Generated
from ..choices import token_length_normalized
from ..errors import BadValueError
from ..ir import SglConstantText, SglExpr, SglGen, SglRoleBegin, SglRoleEnd, SglSelect
from ..options import SamplingOptions
from ..typed.constraint import constrained, reject_constraints
from .calls import ToolCall, ToolCalls, numbered
from .formats import ToolFormat
from .nodes import Continuation, SglContinued, SglToolCall
from .scan import Found, joined, json_at
from .tool import Tool

if TYPE_CHECKING:
    from ..backend import Backend

_NAME = re.compile(r"\s*([\w.-]+)\s*")
TURN = f"{prompts.END}<|assistant|>"


class Nano(ToolFormat):
    """One call a step. `s[name + "_tool"]` is the tool that the model selected, or `answer`."""

    name = "nano"

    def describe(self, tools: Sequence[Tool]) -> str:
        return prompts.tools_system(map(_shown, tools))["content"]

    def grammar(self, tools: Sequence[Tool], choice: str) -> None:
        return None

    def nodes(self, call: SglToolCall, backend: Backend) -> list[SglExpr]:
        options, toolbox, choice = call.sampling_params, call.reading.toolbox, call.reading.choice
        reject_constraints(options, "tools")
        if prompts.ANSWER in toolbox.tools:
            raise BadValueError(
                f"a tool is called {prompts.ANSWER!r}, which is how this model starts an answer; rename it"
            )
        names = [tool.name for tool in toolbox.chosen(choice)]
        tagged = {
            tool.name: constrained(options, backend, tool, {"json_schema": json.dumps(tool.arguments_schema)})
            for tool in toolbox.chosen(choice)
        }
        turn = [SglRoleEnd("assistant"), SglRoleBegin("assistant")]
        if choice in toolbox.tools:
            return [SglConstantText(choice), *turn, SglGen(call.name, tagged[choice], _Step({}, choice))]
        step = _Step({**tagged, prompts.ANSWER: options})
        choices = [*names, prompts.ANSWER] if choice == "auto" else names
        first = SglSelect(call.name and f"{call.name}_tool", choices, 0.0, token_length_normalized)
        return [first, *turn, SglContinued(call.name, options, step, step.go_on)]

    def parse(self, text: str, names: Sequence[str] = ()) -> ToolCalls:
        said: list[str] = []
        found: list[Found] = []
        turns = text.split(TURN)
        while turns:
            name, arguments, rest, used = _call_in(turns, names)
            if arguments is not None:
                found.append((name, arguments, None))
            said += [rest] if rest.strip() != prompts.ANSWER else []
            turns = turns[used:]
        return numbered(joined(said), found)

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        turns = [turn["content"] for call in calls for turn in prompts.tool_call(call.name, call.arguments)]
        return TURN.join([*([prompts.ANSWER, text] if text else []), *turns])


class _Step:
    """What was selected, and so what the second turn holds. One for each step that is run."""

    def __init__(self, options: dict[str, SamplingOptions], decided: str = prompts.ANSWER) -> None:
        self._options = options
        self._decided = decided

    def go_on(self, before: Generated) -> Continuation:
        self._decided = before.text
        return Continuation("", self._options[before.text])

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        return options

    def read(self, text: str, backend: Backend) -> ToolCalls:
        if self._decided == prompts.ANSWER:
            return ToolCalls(text.strip())
        value, _ = json_at(text, 0)
        if not isinstance(value, dict):
            raise ValueError(f"expected the arguments of {self._decided} as JSON, but the text is {text!r}")
        return numbered("", [(self._decided, value, None)])


def _call_in(turns: list[str], names: Sequence[str]) -> tuple[str, dict[str, Any] | None, str, int]:
    """The call that begins the turns: its name, its arguments (None: it is none), the other text, turns used."""
    named = _NAME.match(turns[0])
    if named and (not names or named[1] in names):
        alone = not turns[0][named.end() :].strip() and len(turns) > 1
        body, start = (turns[1], 0) if alone else (turns[0], named.end())
        value, end = json_at(body, start)
        if isinstance(value, dict):
            return named[1], value, body[end:], 2 if alone else 1
    return "", None, turns[0], 1


def _shown(tool: Tool) -> prompts.Tool:
    """The tool as the model was trained to see it: one line for each value to fill."""
    schema = _inlined(tool.parameters, tool.parameters.get("$defs", {}), 4)
    return prompts.Tool(tool.name, " ".join(tool.description.split()), prompts.fields_of(schema))


def _inlined(schema: Any, defs: Mapping[str, Any], depth: int) -> Any:
    """A schema without references, and of several types the first."""
    if not isinstance(schema, dict) or depth == 0:
        return {}
    if "$ref" in schema:
        found = defs.get(str(schema["$ref"]).rpartition("/")[2], {})
        return _inlined(
            {**found, **{key: value for key, value in schema.items() if key != "$ref"}}, defs, depth
        )
    if members := [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return _inlined({**members[0], **rest}, defs, depth)
    properties = schema.get("properties", {})
    return {
        **schema,
        "properties": {name: _inlined(one, defs, depth - 1) for name, one in properties.items()},
    }


FORMAT = Nano()
