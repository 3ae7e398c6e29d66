"""A set of tools as an expression."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import BadValueError, nearest
from ..interpreter.run_observer import observed_tool
from ..nodes.ir import SglExpr, SglTools
from ..nodes.primitives import assistant, gen, system, tool, user
from ..program.program import Program, ProgramCall
from ..program.program_run import RunSettings, run_program, split_options
from ..program.program_state import ProgramState
from ..program.run_options import RunOptions
from ..typed.typed_json import reasons
from .formats import ToolFormat, choose_format, format_named
from .python_tool import Tool, tool_of
from .tool_calls import ToolCall, ToolCalls
from .tool_nodes import SglToolCall, ToolCallsParser, ToolSet

if TYPE_CHECKING:
    from ..backend import Backend

ANY = ("auto", "required")


def tools(functions: Iterable[Any], format: Any = None) -> Toolbox:
    """Collect tools that the model may call. As an expression, the result describes them to the model.

    `functions`: Python functions (described by their signature and docstring), pydantic models, and tools in the
    format of chat APIs (`{"type": "function", "function": {"name": ..., "parameters": ...}}`).

        toolbox = sgl.tools([get_weather, search])
        s += toolbox                                     # or inside: sgl.system("Be brief." + toolbox)
        s += sgl.user("Is it raining in Rome?")
        s += sgl.assistant(toolbox.call("step"))         # text or calls; choice="required" or a tool's name
        for call in s.get("step").calls:
            s += sgl.tool(toolbox.run(call))

    `format` is the way the model writes calls: "hermes" (also Qwen), "llama", "mistral", "pythonic" or "nano". The
    default is the format of the backend's model. Raises BadValueError.
    """
    return Toolbox(functions, format)


class Toolbox(ToolSet):
    """Tools that a model may call. As an expression, their description; see `sgl.tools`."""

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
            raise BadValueError(f"two tools have the name {tool.name!r}; rename one")
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
        one call of it). `options` are those of `gen`, except constraints and `n`.

        Every call names one of the tools, and its arguments fit the tool's schema. A backend that cannot
        constrain text gives no such guarantee: there the text is parsed as the model wrote it.
        """
        if choice not in ANY and choice not in self.tools:
            known = nearest(choice, [*ANY, *self.tools])
            raise BadValueError(f"call({name!r}): choice is {choice!r}, which is not a tool; {known}")
        if options.get("n") not in (None, 1):
            raise BadValueError(f"call({name!r}): n is {options['n']!r}; fork the state to get several answers")
        plain: Any = gen(name, **options)
        return SglToolCall(name, plain.sampling_params, ToolCallsParser(self, choice))

    def run(self, call: ToolCall, raise_errors: bool = False) -> Any:
        """Check the arguments and call the tool's function; for a pydantic model, return an instance.

        An unknown tool, wrong arguments and errors of the function are returned as `{"error": ...}` for the
        model to read; with `raise_errors` they are raised.
        """
        try:
            tool, arguments = self._checked(call)
            with observed_tool(call.name, call.arguments, call.id) as done:
                if tool.is_async:
                    result = asyncio.run(tool.function(**arguments))  # type: ignore[misc]
                else:
                    result = tool.function(**arguments)  # type: ignore[misc]
                done(result)
            return result
        except Exception as error:
            return _answer(error, raise_errors)

    async def arun(self, call: ToolCall, raise_errors: bool = False) -> Any:
        """`run` for event loops: `async def` tools are awaited, others run in a thread."""
        try:
            tool, arguments = self._checked(call)
            with observed_tool(call.name, call.arguments, call.id) as done:
                if tool.is_async:
                    result = await tool.function(**arguments)  # type: ignore[misc]
                else:
                    result = await asyncio.to_thread(tool.function, **arguments)  # type: ignore[arg-type]
                done(result)
            return result
        except Exception as error:
            return _answer(error, raise_errors)

    def loop(self, question: str, most_steps: int = 8, **options: Unpack[RunOptions]) -> ProgramState[str | None]:
        """Run an agent: the model calls tools and reads their results until it answers, for at most `most_steps` steps.

            state = sgl.tools([get_weather, search]).loop("Is it raining in Rome?", temperature=0)
            state.ret_value                                  # the answer; None if the steps ran out
            print(state.text())                              # the whole conversation, with calls and results

        `options` are those of `run`, such as backend, max_tokens, temperature, timeout, budget. If you need other
        turns, or tools that must not run again when a journal is resumed, write the loop yourself: see docs/tools.md.

        Raises BadValueError, UnknownOptionError; errors of tools are sent to the model. It gets a result that is only a
        number as `{"result": 31.0}`.
        """
        if not isinstance(question, str):
            raise BadValueError(f"loop({question!r:.60}): the question must be a text")
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

    def nodes_of(self, call: SglToolCall, backend: Backend) -> list[SglExpr] | None:
        return self.format_for(backend).nodes(call, backend)

    def describe(self, backend: Backend) -> str:
        """The text that describes the tools to the model."""
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
        """Parse the calls in any text. Never raises; anything that is not a call stays text."""
        return self.format_for(backend).parse(text, {name: tool.parameters for name, tool in self.tools.items()})


def _answer(error: Exception, raise_errors: bool) -> dict[str, str]:
    if raise_errors:
        raise error
    return {"error": "; ".join(reasons(error)) or _message(error) or type(error).__name__}


def _message(error: Exception) -> str:
    """A KeyError has only the key, which does not help a model."""
    return f"{error} was not found" if type(error) is KeyError and len(error.args) == 1 else str(error)


def agent(s: ProgramState, question: str, toolbox: ToolSet, most_steps: int) -> str | None:
    """The model calls tools until it answers: the answer; None where the last step that is allowed was a call."""
    s += system(toolbox)
    s += user(question)
    for _ in range(most_steps):
        s += assistant(toolbox.call("step"))
        step = s.get("step")
        if not step:
            return str(step.text)
        for call in step:
            s += tool(_as_result(toolbox.run(call)))
    return None


def _as_result(result: Any) -> Any:
    """A single number as an object: the bundled model was trained on those, and does not take a number as an answer."""
    return {"result": result} if isinstance(result, int | float) else result


def run_agent(toolbox: ToolSet, question: str, most_steps: int, options: RunOptions) -> ProgramState[str | None]:
    program = Program(agent)
    _, run_options = split_options(program, {**options})
    return run_program(program, ProgramCall((question, toolbox, most_steps)), RunSettings.of(run_options))
