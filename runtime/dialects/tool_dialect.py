"""How a family of models sees tools and calls them, and how it thinks: the base of all dialects."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from sgl.runtime.errors import ConfigError

from .model_output_events import ArgumentsDelta, ContentDelta, ToolCallEnd, ToolCallStart
from .model_output_parser import ModelOutputParser, ToolCallSyntax
from .reasoning_marks import ReasoningMarks
from .tool_call_grammars import thinking_first
from .tool_prompt import DialectPrompt, json_object
from .tool_types import DialectToolCall, Tool


def ends(text: str) -> DialectStep | None:
    """What follows a last step: nothing."""
    return None


class DialectStep(NamedTuple):
    """One gen of an answer.

    Attributes:
        prefix: what is appended to the prompt, or to the gen before, ahead of this gen.
        constraint: ("structural_tag" or "json_schema", its JSON text), or ("choices", the texts of which the likeliest
            one is taken: highest mean log-probability of its tokens, as `select` of the language has it), or None.
        stop: texts that end this gen, besides what ends every one. A text may be a special token of the model.
        free: the gen writes what is said to the user, so a request's own stops apply, and its own constraint
            where the step has none.
        then: what follows, given the text of the gen, followed by the one of `stop` that ended it; None: nothing.
    """

    prefix: str
    constraint: tuple[str, Any] | None
    stop: tuple[str, ...] = ()
    free: bool = False
    then: Callable[[str], DialectStep | None] = ends


FREE = DialectStep("", None, free=True)


class Dialect(DialectPrompt):
    """One way to write tools, and the marks around thoughts. `parse(write(text, calls))` gives the same calls."""

    form: ToolCallSyntax
    single = False  # the model's template takes one call in a message
    note = ""  # how the dialect was found, where neither the settings nor the template determine it

    def thinking(self, marks: ReasoningMarks | None) -> Dialect:
        """The same dialect with other marks around thoughts."""
        other = copy.copy(self)
        other.reasoning = marks
        return other

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that a reader must see; where they are special tokens of the model, gens must not leave them out."""
        thoughts = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end, *self.reasoning.silent)
        return (*(mark for mark in (*self.form.marks, self.form.close) if len(mark) > 1), *thoughts)

    @property
    def spelled(self) -> str:
        """A text with every mark that calls may have."""
        return self.write("text", [DialectToolCall("name", {"key": "value", "other": 1}), DialectToolCall("name", {})])

    # --- what the model writes ---------------------------------------------------------------------------

    def plan(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> DialectStep:
        """The first gen of an answer.

        Args:
            tools: those that there are.
            choice: "auto" (text, calls or both), "required" (one call or more), "none", or the name of a tool (one
                call).
            parallel: whether there may be several calls; never where the template takes one in a message.

        Raises:
            ConfigError: there is no tool of that name.
        """
        if choice == "none" or not tools:
            return FREE
        if choice in ("auto", "required"):
            return self._plan(tools, choice, parallel and not self.single)
        chosen = [tool for tool in tools if tool.name == choice]
        if not chosen:
            raise ConfigError(f"there is no tool {choice!r}; there are {', '.join(tool.name for tool in tools)}")
        return self._plan(chosen, choice, False)

    def _plan(self, tools: Sequence[Tool], choice: str, parallel: bool) -> DialectStep:
        source = self.grammar(tools, choice, parallel)
        if choice == "auto" and source is not None:
            source = thinking_first(source, self.reasoning)
        return DialectStep("", ("structural_tag", source), free=choice == "auto")

    @abstractmethod
    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str | None:
        """The structural tag of a gen in which the tools may be called ("auto") or must be (all else).

        None for a dialect whose calls take several gens.
        """

    @abstractmethod
    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> ModelOutputParser:
        """A reader that knows tools by these names (none: any) and thoughts by these marks.

        `names` may be a mapping to the schemas of the parameters, which some formats need to tell 3 from "3".
        """

    def reader(self, tools: Sequence[Tool], reasoning: bool, prompt: str | None = None) -> ModelOutputParser:
        """A reader of one answer, which is to be fed the prefixes of its steps too. Without tools, calls are text.

        `reasoning`: thoughts are separated. `prompt`: the text before the answer; its end shows whether the template
        began a thought. Without it the marks show it.
        """
        marks = self.reasoning if reasoning else None
        if marks is not None and prompt is not None:
            marks = marks.after(prompt)
        return (
            self.read({tool.name: tool.parameters for tool in tools}, marks)
            if tools
            else ModelOutputParser(ToolCallSyntax(""), marks=marks)
        )

    def parse(self, text: str, names: Collection[str] = ()) -> tuple[str, list[DialectToolCall]]:
        """What a whole text says, and its calls.

        Raises nothing; a call that is cut stays text. `names` as for `read`.
        """
        parts, found, name = [""], [], ""
        for event in self.read(names, None).feed(text, last=True):
            match event:
                case ContentDelta(said):
                    parts[-1] += said
                case ToolCallStart(_, _, name):
                    arguments = ""
                case ArgumentsDelta(_, more):
                    arguments += more
                case ToolCallEnd(_, complete, id, written):
                    given = json_object(arguments) if complete else None
                    if given is not None:
                        found.append(DialectToolCall(name, given, id))
                        parts.append("")
                    else:
                        parts[-1] += written
        return "\n".join(part for part in (part.strip() for part in parts) if part), found
