"""Tools as expressions: described in the model's own format, called under their schemas, run with checked arguments.

toolbox = sgl.tools([get_weather, search])
s += sgl.system("You are helpful.\\n\\n" + toolbox)
s += sgl.user(question)
s += sgl.assistant(toolbox.call("step"))
for call in s.get("step").calls:
    s += sgl.tool(toolbox.run(call))
"""

from __future__ import annotations

from ..interpreter.node_handlers import register
from .formats import format_named, register_format
from .mistral_tool_format import FORMAT as MISTRAL
from .nano_tool_format import FORMAT as NANO
from .tool_calls import ToolCall, ToolCalls
from .tool_node_handlers import TOOL_RULES
from .toolbox import Toolbox

__all__ = ["ToolCall", "ToolCalls", "Toolbox", "format_named", "register_format"]

# each import from this room registers its rules at the interpreter, and the formats whose steps are several nodes
register(TOOL_RULES)
register_format("mistral", lambda: MISTRAL)
register_format("nano", lambda: NANO)
