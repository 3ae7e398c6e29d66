"""How families of models see tools, call them and think: what they are shown, and their texts read as they come.

dialect = dialect_for("Qwen/Qwen3-8B", template)
messages = dialect.messages(openai_messages, tools)     # for the model's own chat template
step = dialect.plan(tools, "auto", parallel=True)       # the gens of an answer, with their grammars
reader = dialect.reader(tools, reasoning=True)
for event in reader.feed(piece): ...                    # ContentDelta, ReasoningDelta, ToolCallStart, ...
"""

from ..common.moved_names import moved_names
from .dialect import Dialect, DialectStep
from .dialect_registry import DIALECTS, dialect_for, dialect_named, known_name, reasoning_named
from .output_events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart
from .output_reader import OutputReader
from .reasoning_marks import MARKS, ReasoningMarks, reasoning_of, split_reasoning
from .tool_types import DialectToolCall, Tool, tool_of

__all__ = [
    "DIALECTS",
    "MARKS",
    "ArgumentsDelta",
    "ContentDelta",
    "Dialect",
    "DialectStep",
    "DialectToolCall",
    "Event",
    "OutputReader",
    "ReasoningDelta",
    "ReasoningMarks",
    "Tool",
    "ToolCallEnd",
    "ToolCallStart",
    "dialect_for",
    "dialect_named",
    "known_name",
    "reasoning_named",
    "reasoning_of",
    "split_reasoning",
    "tool_of",
]

_MOVED = {
    "Step": "dialects.dialect.DialectStep",
    "Arguments": "dialects.output_events.ArgumentsDelta",
    "CallBegun": "dialects.output_events.ToolCallStart",
    "CallEnded": "dialects.output_events.ToolCallEnd",
    "Said": "dialects.output_events.ContentDelta",
    "Thought": "dialects.output_events.ReasoningDelta",
    "Reader": "dialects.output_reader.OutputReader",
    "Marks": "dialects.reasoning_marks.ReasoningMarks",
    "Call": "dialects.tool_types.DialectToolCall",
}

__getattr__ = moved_names(__name__, _MOVED)
