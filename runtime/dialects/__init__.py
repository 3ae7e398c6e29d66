"""How families of models see tools, call them and think: what they are shown, and their texts read as they come.

dialect = dialect_for("Qwen/Qwen3-8B", template)
messages = dialect.messages(openai_messages, tools)     # for the model's own chat template
step = dialect.plan(tools, "auto", parallel=True)       # the gens of an answer, with their grammars
reader = dialect.reader(tools, reasoning=True)
for event in reader.feed(piece): ...                    # ContentDelta, ReasoningDelta, ToolCallStart, ...
"""

from ..common.moved_names import moved_names
from .model_output_events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart
from .model_output_parser import ModelOutputParser
from .reasoning_marks import MARKS, ReasoningMarks, reasoning_of, split_reasoning
from .tool_dialect import Dialect, DialectStep
from .tool_dialect_registry import DIALECTS, dialect_for, dialect_named, known_name, reasoning_named
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
    "ModelOutputParser",
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
    "OutputReader": "dialects.model_output_parser.ModelOutputParser",
    "Step": "dialects.tool_dialect.DialectStep",
    "Arguments": "dialects.model_output_events.ArgumentsDelta",
    "CallBegun": "dialects.model_output_events.ToolCallStart",
    "CallEnded": "dialects.model_output_events.ToolCallEnd",
    "Said": "dialects.model_output_events.ContentDelta",
    "Thought": "dialects.model_output_events.ReasoningDelta",
    "Reader": "dialects.model_output_parser.ModelOutputParser",
    "Marks": "dialects.reasoning_marks.ReasoningMarks",
    "Call": "dialects.tool_types.DialectToolCall",
}

__getattr__ = moved_names(__name__, _MOVED)
