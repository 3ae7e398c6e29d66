"""How families of models see tools, call them and think: what they are shown, and their texts read as they come.

    dialect = dialect_for("Qwen/Qwen3-8B", template)
    messages = dialect.messages(openai_messages, tools)     # for the model's own chat template
    step = dialect.plan(tools, "auto", parallel=True)       # the gens of an answer, with their grammars
    reader = dialect.reader(tools, reasoning=True)
    for event in reader.feed(piece): ...                    # Said, Thought, CallBegun, Arguments, CallEnded
"""

from .dialect import Dialect, Step
from .events import Arguments, CallBegun, CallEnded, Event, Said, Thought
from .reader import Reader
from .reasoning import MARKS, Marks, reasoning_of, split_reasoning
from .table import DIALECTS, dialect_for, dialect_named, known_name, reasoning_named
from .tool import Call, Tool, tool_of

__all__ = [
    "DIALECTS",
    "MARKS",
    "Arguments",
    "Call",
    "CallBegun",
    "CallEnded",
    "Dialect",
    "Event",
    "Marks",
    "Reader",
    "Said",
    "Step",
    "Thought",
    "Tool",
    "dialect_for",
    "dialect_named",
    "known_name",
    "reasoning_named",
    "reasoning_of",
    "split_reasoning",
    "tool_of",
]
