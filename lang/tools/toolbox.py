"""A set of tools as an expression."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import BadValueError, nearest
from ..nodes.ir import SglExprList, SglTools
from ..nodes.primitives import gen
from ..typed.json_text import reasons
from .calls import ToolCall, ToolCalls
from .formats import ToolFormat, choose_format, format_named
from .loop import run_agent
from .nodes import SglToolCall, ToolReading
from .tool import Tool, tool_of

if TYPE_CHECKING:
    from ..backend import Backend
    from ..program.state import ProgramState

ANY = ("auto", "required")


def tools(functions: Iterable[Any], format: Any = None) -> Toolbox:
    """Tools that the model may call, as an expression that describes them to it.

    `functions`: python functions (the signature and docstring tell the model what they want), pydantic models,
    and tools as chat APIs have them (`{"type": "function", "function": {"name": ..., "parameters": ...}}`).

        toolbox = sgl.tools([get_weather, search])
        s += toolbox                                     # or inside: sgl.system("Be brief." + toolbox)
        s += sgl.user("Is it raining in Rome?")
        s += sgl.assistant(toolbox.call("step"))         # text or calls; choice="required" or a tool's name
        for call in s.get("step").calls:
            s += sgl.tool(toolbox.run(call))

    `format` is how the model writes calls: "hermes" (also Qwen), "llama", "mistral", "pythonic" or "nano"; by
    default that of the backend's model. Raises BadValueError.
    """
    return Toolbox(functions, format)


class Toolbox(SglExprList):
    """Tools that a model may call. As an expression it is their description; see `sgl.tools`."""

    def __init__(self, sources: Iterable[Any], format: str | ToolFormat | None = None) -> None:
        self.tools: dict[str, Tool] = {}
        if callable(sources) or isinstance(sources, dict | str):
            raise BadValueError(f"tools({sources!r:.60}): give a list, as tools([search])")
        for source in sources:
            self._add(tool_of(source))
        if not self.tools:
            raise BadValueError("tools() got no tools; give functions, pydantic models or OpenAI tool dicts")
        self.format = format_named(format) if isinstance(format, str) else format
        self._described: dict[ToolFormat, str] = {}
        self._grammars: dict[tuple[ToolFormat, str], str | None] = {}
        super().__init__([SglTools(self)])

    def _add(self, tool: Tool) -> None:
        if tool.name in self.tools:
            raise BadValueError(f"two tools are called {tool.name!r}")
        self.tools[tool.name] = tool

    def __repr__(self) -> str:
        return f"tools({', '.join(self.tools)})"

    def __str__(self) -> str:
        """For print(): what it is. An f-string is refused, as it would put this into a prompt."""
        return (
            f"{self!r}, as a part of a prompt. Their description is written in a program, for the model that runs it: "
            f"s += sgl.system(toolbox). toolbox.loop(question) runs an agent with them"
        )

    # --- in a program ------------------------------------------------------------------------------------

    def call(self, name: str | None = None, choice: str = "auto", **options: Any) -> SglToolCall:
        """Let the model answer or call tools; `s.get(name)` is a ToolCalls, `s[name]` the text.

        `choice`: "auto" (text, calls or both), "required" (one call or more), or the name of a tool (exactly
        one call of it). `options` are those of `gen`, without constraints of its own and without `n`.

        However the model decides, a call names one of the tools and its arguments fit the tool's schema,
        unless the backend cannot constrain text; there the text is read as it comes.
        """
        if choice not in ANY and choice not in self.tools:
            known = nearest(choice, [*ANY, *self.tools])
            raise BadValueError(f"call({name!r}): choice is {choice!r}, which is no tool; {known}")
        if options.get("n") not in (None, 1):
            raise BadValueError(
                f"call({name!r}): n is {options['n']!r}; fork the state to get several answers"
            )
        plain: Any = gen(name, **options)
        return SglToolCall(name, plain.sampling_params, ToolReading(self, choice))

    def run(self, call: ToolCall, raise_errors: bool = False) -> Any:
        """Call the function of a tool with checked arguments; for a pydantic model, the model with its values.

        An unknown tool, arguments that do not fit and what the function raises are answered as
        `{"error": ...}`, for the model to read, unless `raise_errors`.
        """
        try:
            tool, arguments = self._checked(call)
            if tool.is_async:
                return asyncio.run(tool.function(**arguments))  # type: ignore[misc]
            return tool.function(**arguments)  # type: ignore[misc]
        except Exception as error:
            return _answer(error, raise_errors)

    async def arun(self, call: ToolCall, raise_errors: bool = False) -> Any:
        """`run` for event loops: `async def` tools are awaited, others run in a thread."""
        try:
            tool, arguments = self._checked(call)
            if tool.is_async:
                return await tool.function(**arguments)  # type: ignore[misc]
            return await asyncio.to_thread(tool.function, **arguments)  # type: ignore[arg-type]
        except Exception as error:
            return _answer(error, raise_errors)

    def loop(self, question: str, most_steps: int = 8, **options: Any) -> ProgramState:
        """Run an agent: the model calls tools and reads their results until it answers, for at most `most_steps` steps.

            state = sgl.tools([get_weather, search]).loop("Is it raining in Rome?", temperature=0)
            state.ret_value                                  # the answer; None where the steps ran out
            print(state.text())                              # all that was asked, called and answered

        `options` are those of `run`, such as backend, max_tokens, temperature, timeout, budget. For turns of your own, or
        tools that must not run again when a journal is resumed, write the loop out: docs/tools.md shows it.

        Raises BadValueError, UnknownOptionError; what a tool raises is told to the model.
        """
        if not isinstance(question, str):
            raise BadValueError(f"loop({question!r:.60}): the question is a text")
        if isinstance(most_steps, bool) or not isinstance(most_steps, int) or most_steps < 1:
            raise BadValueError(f"loop(..., most_steps={most_steps!r}): give a whole number from 1")
        return run_agent(self, question, most_steps, options)

    def _checked(self, call: ToolCall) -> tuple[Tool, dict[str, Any]]:
        if call.name not in self.tools:
            raise BadValueError(f"there is no tool {call.name!r}; {nearest(call.name, self.tools)}")
        tool = self.tools[call.name]
        if tool.function is None:
            raise BadValueError(f"the tool {call.name!r} was given as a schema and has no function to run")
        return tool, tool.check(call.arguments)

    # --- for the interpreter ---------------------------------------------------------------------------------

    def format_for(self, backend: Backend) -> ToolFormat:
        return self.format or choose_format(backend)

    def describe(self, backend: Backend) -> str:
        """The text that tells the model of the tools."""
        format = self.format_for(backend)
        if format not in self._described:
            self._described[format] = format.describe(list(self.tools.values()))
        return self._described[format]

    def grammar(self, choice: str, backend: Backend) -> str | None:
        """The structural tag of a step, None where a step is several nodes."""
        format = self.format_for(backend)
        if (format, choice) not in self._grammars:
            self._grammars[format, choice] = format.grammar(self.chosen(choice), choice)
        return self._grammars[format, choice]

    def chosen(self, choice: str) -> list[Tool]:
        """The tools that may be called."""
        return [self.tools[choice]] if choice in self.tools else list(self.tools.values())

    def parse(self, text: str, backend: Backend) -> ToolCalls:
        """The calls in any text. Raises nothing; what is no call stays text."""
        return self.format_for(backend).parse(text, list(self.tools))


def _answer(error: Exception, raise_errors: bool) -> dict[str, str]:
    if raise_errors:
        raise error
    return {"error": "; ".join(reasons(error)) or _told(error) or type(error).__name__}


def _told(error: Exception) -> str:
    """A KeyError says the key alone, which tells a model nothing."""
    return f"{error} was not found" if type(error) is KeyError and len(error.args) == 1 else str(error)
