"""Mistral's steps: free text up to the special token [TOOL_CALLS], then the list of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sgl.runtime.dialects import dialect_named
from sgl.runtime.dialects.families.mistral_tool_dialect import MARK
from sgl.runtime.text.chat_templates.quoted_text import QuotedText

from ..backend import Generated
from ..nodes.ir import SglConstantText, SglExpr, SglGen
from ..sampling.options import SamplingOptions
from ..sampling.text_limits import at_limit
from ..typed.type_constraint import constrained, reject_constraints
from .formats import DialectFormat
from .tool_calls import ToolCalls
from .tool_nodes import SglContinued, SglToolCall, StepContinuation, ToolCallsParser, breaks_off

if TYPE_CHECKING:
    from ..backend import Backend


class MistralToolFormat(DialectFormat):
    """The mark is a special token, which no grammar can write, so a step is two gens."""

    def nodes(self, call: SglToolCall, backend: Backend) -> list[SglExpr]:
        options, reading = call.sampling_params, call.reading
        if reading.choice != "auto":
            return [SglConstantText(QuotedText(MARK)), SglGen(call.name, options, reading)]
        reject_constraints(options, "tools")
        said = _MistralReading(reading)
        tag = reading.toolbox.grammar("auto", backend)
        listed = constrained(options, backend, reading.toolbox, {"structural_tag": tag}, whole=False)
        first: SglExpr = SglGen(call.name and f"{call.name}_text", _until_mark(options))
        return [first, SglContinued(call.name, options, said, partial(said.go_on, listed, backend))]


class _MistralReading:
    """The reading of a step whose text came before the mark."""

    copies = False

    def __init__(self, reading: ToolCallsParser) -> None:
        self._reading = reading
        self._text = ""

    def go_on(self, listed: SamplingOptions, backend: Backend, before: Generated) -> StepContinuation:
        self._text = before.text
        return StepContinuation(MARK, listed) if _ended_at_mark(before, backend) else StepContinuation()

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        return options

    def is_cut(self, text: str, options: SamplingOptions, meta: Mapping[str, Any], backend: Backend) -> bool:
        return at_limit(meta) and breaks_off(text.partition(MARK)[2], self._reading.toolbox.grammar("auto", backend))

    def read(self, text: str, backend: Backend) -> ToolCalls:
        return self._reading.read(self._text + text, backend)


def _until_mark(options: SamplingOptions) -> SamplingOptions:
    return replace(options, stop=(*(options.stop or ()), MARK), keep_stop=False)


def _ended_at_mark(before: Generated, backend: Backend) -> bool:
    reason = before.meta_info.get("finish_reason")
    matched: Any = reason.get("matched") if isinstance(reason, dict) else None
    if isinstance(matched, int):
        return backend.token_texts([matched]) == [MARK]
    return matched == MARK


FORMAT = MistralToolFormat(dialect_named("mistral"))
