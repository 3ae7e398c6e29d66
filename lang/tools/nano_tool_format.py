"""The bundled model's steps: a turn with the name of a tool (or `answer`), then a turn with its arguments (or the
answer).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgl.runtime.dialects import dialect_named
from sgl.runtime.nano import nano_prompts

from ..backend import Generated
from ..errors import BadValueError
from ..nodes.ir import SglConstantText, SglExpr, SglGen, SglRoleBegin, SglRoleEnd, SglSelect
from ..sampling.choices import token_length_normalized
from ..sampling.options import SamplingOptions
from ..sampling.text_limits import is_cut
from ..typed.type_constraint import constrained, reject_constraints
from .formats import DialectFormat
from .tool_calls import ToolCall, ToolCalls, numbered
from .tool_nodes import SglContinued, SglToolCall, StepContinuation

if TYPE_CHECKING:
    from ..backend import Backend

DIALECT = dialect_named("nano")
_NEXT: tuple[SglExpr, ...] = (SglRoleEnd("assistant"), SglRoleBegin("assistant"))


class NanoToolFormat(DialectFormat):
    """One call a step. `s[name + "_tool"]` is the tool that the model selected, or `answer`."""

    def past(self, text: str, calls: Sequence[ToolCall]) -> list[SglExpr]:
        said = nano_prompts.tool_answer(text) if text else []
        steps = [*said, *(turn for call in calls for turn in nano_prompts.tool_call(call.name, call.arguments))]
        parts: list[SglExpr] = []
        for step in steps:
            parts += [*_NEXT, SglConstantText(step["content"])] if parts else [SglConstantText(step["content"])]
        return parts

    def nodes(self, call: SglToolCall, backend: Backend) -> list[SglExpr]:
        options, toolbox, choice = call.sampling_params, call.reading.toolbox, call.reading.choice
        reject_constraints(options, "tools")
        if nano_prompts.ANSWER in toolbox.tools:
            raise BadValueError(
                f"a tool has the name {nano_prompts.ANSWER!r}, with which this model starts an answer; rename it"
            )
        names = [tool.name for tool in toolbox.chosen(choice)]
        tagged = {
            tool.name: constrained(options, backend, tool, {"json_schema": json.dumps(tool.arguments_schema)})
            for tool in toolbox.chosen(choice)
        }
        if choice in toolbox.tools:
            return [SglConstantText(choice), *_NEXT, SglGen(call.name, tagged[choice], _NanoStep({}, choice))]
        step = _NanoStep({**tagged, nano_prompts.ANSWER: options})
        choices = [*names, nano_prompts.ANSWER] if choice == "auto" else names
        first: SglSelect[str] = SglSelect(call.name and f"{call.name}_tool", choices, 0.0, token_length_normalized)
        return [first, *_NEXT, SglContinued(call.name, options, step, step.go_on)]


class _NanoStep:
    """What was selected, and so what the second turn holds. One for each step that is run."""

    copies = False

    def __init__(self, options: dict[str, SamplingOptions], decided: str = nano_prompts.ANSWER) -> None:
        self._options = options
        self._decided = decided

    def go_on(self, before: Generated) -> StepContinuation:
        self._decided = before.text
        return StepContinuation("", self._options[before.text])

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        return options

    def is_cut(self, text: str, options: SamplingOptions, meta: Mapping[str, Any], backend: Backend) -> bool:
        return self._decided != nano_prompts.ANSWER and is_cut(text, options, meta)

    def read(self, text: str, backend: Backend) -> ToolCalls:
        if self._decided == nano_prompts.ANSWER:
            return ToolCalls(text.strip())
        _, found = DIALECT.parse(f"{self._decided}\n{text}", [self._decided])
        if not found:
            raise ValueError(f"expected the arguments of {self._decided} as JSON, but the text is {text!r}")
        return numbered("", found)


FORMAT = NanoToolFormat(DIALECT)
