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
from .mistral import FORMAT as MISTRAL
from .nano import FORMAT as NANO
from .running import TOOL_RULES
from .toolbox import Toolbox

__all__ = ["ToolCall", "ToolCalls", "Toolbox", "format_named", "register_format"]

# whoever imports anything of this room brings its rules to the interpreter, and the formats whose steps are several nodes
RULES.update(TOOL_RULES)
register_format("mistral", lambda: MISTRAL)
register_format("nano", lambda: NANO)
