"""Tools as expressions: described in the model's own format, called under their schemas, run with checked arguments.

toolbox = sgl.tools([get_weather, search])
s += sgl.system("You are helpful.\\n\\n" + toolbox)
s += sgl.user(question)
s += sgl.assistant(toolbox.call("step"))
for call in s.get("step").calls:
    s += sgl.tool(toolbox.run(call))
"""

from __future__ import annotations

from ..interpreter.rules import RULES
from .calls import ToolCall, ToolCalls
from .formats import format_named, register_format
from .running import TOOL_RULES
from .toolbox import Toolbox

__all__ = ["ToolCall", "ToolCalls", "Toolbox", "format_named", "register_format"]

RULES.update(TOOL_RULES)  # the interpreter knows the nodes of this room once anything of it is imported
