"""How the text of an answer is read: which reader, and what it must see of special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sgl.runtime.dialects import ContentDelta, DialectStep, Event, ModelOutputParser, ReasoningMarks, Tool
from sgl.runtime.dialects.model_output_parser import ToolCallSyntax
from sgl.runtime.sampling.sampling_params import SamplingParams

from ..openai_common.openai_request_setup import OpenAIRequestSetup
from .chat_types import ChatRequest


class PlainTextReader:
    """The reader of a text that is nothing but text."""

    def feed(self, piece: str, last: bool = False) -> list[Event]:
        return [ContentDelta(piece)] if piece else []


class ChatReaders:
    """Makes the readers of one request's samples: for calls where there may be some, for thoughts that are to stand
    apart.
    """

    def __init__(self, work: OpenAIRequestSetup, body: ChatRequest, tools: Sequence[Tool]) -> None:
        self._tokenizer, self._dialect = work.engine.tokenizer, work.dialect
        self._tools = tools if body.calls_tools else ()
        self._separate = body.separate_reasoning
        self._always = work.settings.reasoning_format is not None  # what that says of a thought's beginning holds

    def reader(self, prompt: str) -> ModelOutputParser | PlainTextReader:
        """For one sample; `prompt` stands before its text."""
        marks = self._marks(prompt) if self._separate else None
        if self._tools:
            return self._dialect.thinking(marks).reader(self._tools, marks is not None)
        return PlainTextReader() if marks is None else ModelOutputParser(ToolCallSyntax(""), (), marks)

    def with_reasoning_step(self, step: DialectStep, prompt: str, bound: bool, stops: bool) -> DialectStep:
        """The step where a thought may come before it.

        A thought that the prompt began is a separate step where something has to begin after it. One that the model
        begins is separate where the request has stops: they end the answer, not the thought.

        Args:
            bound: something constrains or ends the step.
            stops: the request has some.
        """
        marks = self._marks(prompt)
        if marks is None or not (bound or stops):
            return step
        if marks.open:
            return _thought(marks, step, "\n\n" if bound else "", stops)
        return _or_thought(marks, step) if stops and step.free and marks.begin else step

    def visible(self, params: SamplingParams) -> SamplingParams:
        """The parameters with those special tokens in the text that a reader must see."""
        thoughts = self._dialect.reasoning if self._separate else None
        dialect = self._dialect.thinking(thoughts)
        marks = dialect.marks if self._tools else (thoughts.begin, thoughts.end, *thoughts.silent) if thoughts else ()
        special = any(self._tokenizer.token_id(mark) in self._tokenizer.special_ids for mark in marks)
        return replace(params, skip_special_tokens=False) if special else params

    def _marks(self, prompt: str) -> ReasoningMarks | None:
        """The marks of thoughts, and whether the answer begins inside of one."""
        marks = self._dialect.reasoning
        if marks is None or (self._always and marks.open):
            return marks
        return marks.after(prompt)


def _thought(marks: ReasoningMarks, step: DialectStep, gap: str, again: bool, prefix: str = "") -> DialectStep:
    """A thought, and the step after it; `again`: further ones may follow, where marks enclose all parts of a text."""
    return DialectStep(prefix, None, (marks.end,), then=partial(_ended, marks, step, gap, again))


def _ended(marks: ReasoningMarks, step: DialectStep, gap: str, again: bool, text: str) -> DialectStep | None:
    if not text.endswith(marks.end):
        return None
    following = _or_thought(marks, step) if again and marks.silent and step.free and marks.begin else step
    return following._replace(prefix=f"{marks.end}{gap}{step.prefix}")


def _or_thought(marks: ReasoningMarks, step: DialectStep) -> DialectStep:
    """The step, which ends where the model begins a thought, and goes on after it."""
    return step._replace(stop=(*step.stop, marks.begin), then=partial(_begun, marks, step))


def _begun(marks: ReasoningMarks, step: DialectStep, text: str) -> DialectStep | None:
    return _thought(marks, step, "", True, marks.begin) if text.endswith(marks.begin) else step.then(text)
