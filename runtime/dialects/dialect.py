"""How a family of models sees tools and calls them, and how it thinks: the base of all dialects."""

from __future__ import annotations

import copy
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sgl.runtime.errors import ConfigError

from .events import Arguments, CallBegun, CallEnded, Said
from .grammars import thinking_first
from .reader import Form, Reader
from .reasoning import Marks
from .tool import Call, Tool

Message = dict[str, Any]


def ends(text: str) -> Step | None:
    """What follows a last step: nothing."""
    return None


class Step(NamedTuple):
    """One gen of an answer.

    Attributes:
        prefix: what is put behind the prompt, or behind the gen before, ahead of this gen.
        constraint: ("structural_tag" or "json_schema", its JSON text), or ("choices", the texts of which the likeliest
            one is taken: highest mean log-probability of its tokens, as `select` of the language has it), or None.
        stop: texts that end this gen, besides what ends every one. A text may be a special token of the model.
        free: the gen writes what is said to the user, so a request's own stops apply, and its own constraint
            where the step has none.
        then: what follows, given the text of the gen, and behind it the one of `stop` that ended it; None: nothing.
    """

    prefix: str
    constraint: tuple[str, Any] | None
    stop: tuple[str, ...] = ()
    free: bool = False
    then: Callable[[str], Step | None] = ends


FREE = Step("", None, free=True)


class Dialect(ABC):
    """One way to write tools, and the marks around thoughts. `parse(write(text, calls))` gives the same calls."""

    name: str
    form: Form
    reasoning: Marks | None = None
    tool_role = "tool"
    arguments = ""  # of calls in messages, for templates that write calls themselves: "object" or "text"; else they do not
    tools_in_template = calls_in_template = False
    single = False  # the model's template takes one call in a message
    note = ""  # how the dialect was found, where neither the settings nor the template told

    def thinking(self, marks: Marks | None) -> Dialect:
        """The same dialect with other marks around thoughts."""
        other = copy.copy(self)
        other.reasoning = marks
        return other

    def templated(self, template: str | None) -> Dialect:
        """The same dialect, for a chat template (Jinja source) that describes tools or writes calls itself, if it does."""
        if not self.arguments or template is None:
            return self
        other = copy.copy(self)
        other.tools_in_template = re.search(r"\btools\b", template) is not None
        other.calls_in_template = re.search(r"\btool_calls\b", template) is not None
        return other

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that a reader must see; where they are special tokens of the model, gens must not leave them out."""
        thoughts = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end, *self.reasoning.silent)
        return (*(mark for mark in (*self.form.marks, self.form.close) if len(mark) > 1), *thoughts)

    @property
    def spelled(self) -> str:
        """A text with every mark that calls may have."""
        return self.write("text", [Call("name", {"key": "value", "other": 1}), Call("name", {})])

    # --- what the model sees -----------------------------------------------------------------------------

    @abstractmethod
    def describe(self, tools: Sequence[Tool]) -> str:
        """What the system turn says of the tools."""

    @abstractmethod
    def write(self, text: str, calls: Sequence[Call]) -> str:
        """The text of a step: what is said, then the calls."""

    def messages(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[Message]:
        """OpenAI's messages as the model's template takes them: role and content, tools in the system turn.

        A template that knows calls gets them as `tool_calls`, with arguments of the kind that it takes; one that knows
        tools gets them by `variables`.

        Thoughts stay where the assistant is still at work, behind the last message of the user.

        Raises:
            ConfigError: a call whose arguments are no JSON object; says which.
        """
        last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
        turns: list[Message] = []
        for i, message in enumerate(messages):
            turns += self._turns(message, i > last)
        described = tools and not self.tools_in_template
        return self._described(_merged(turns), tools) if described else _merged(turns)

    def variables(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """What the template is to be given beside the messages."""
        return {"tools": [tool.openai for tool in tools]} if tools and self.tools_in_template else {}

    def _turns(self, message: Mapping[str, Any], working: bool) -> list[Message]:
        role, text = message["role"], message.get("content") or ""
        if role == "tool" and not self.calls_in_template:
            return [self._answer(text, message)]
        if role == "tool":
            return [{"role": role, "content": text, **{key: message[key] for key in ("tool_call_id", "name") if key in message}}]
        if role == "assistant":
            calls = [_call_of(call) for call in message.get("tool_calls") or ()]
            if self.calls_in_template:
                return [self._with_calls(text, calls, message.get("reasoning_content"))]
            thought = message.get("reasoning_content") if working else None
            return self._assistant(self._thought(thought), text, calls)
        return [{"role": "system" if role == "developer" else role, "content": text}]

    def _assistant(self, thought: str, text: str, calls: list[Call]) -> list[Message]:
        return [{"role": "assistant", "content": thought + (self.write(text, calls) if calls else text)}]

    def _with_calls(self, text: str, calls: list[Call], thought: str | None) -> Message:
        """The turn of an assistant as templates read it that write calls."""
        found: Message = {"role": "assistant", "content": text}
        if calls:
            found["tool_calls"] = [{"id": call.id, "type": "function", "function": self._function(call)} for call in calls]
        return {**found, "reasoning_content": thought} if thought else found

    def _function(self, call: Call) -> dict[str, Any]:
        given = json.dumps(call.arguments, ensure_ascii=False) if self.arguments == "text" else call.arguments
        return {"name": call.name, "arguments": given}

    def _answer(self, text: str, message: Mapping[str, Any]) -> Message:
        """The turn of what a tool answered."""
        return {"role": self.tool_role, "content": text}

    def _thought(self, thought: str | None) -> str:
        marks = self.reasoning
        return f"{marks.begin}\n{thought}\n{marks.end}\n\n" if thought and marks is not None else ""

    def _described(self, turns: list[Message], tools: Sequence[Tool]) -> list[Message]:
        first, rest = (turns[0]["content"], turns[1:]) if turns and turns[0]["role"] == "system" else ("", turns)
        return [{"role": "system", "content": self._system(first, tools)}, *rest]

    def _system(self, text: str, tools: Sequence[Tool]) -> str:
        return f"{text}\n\n{self.describe(tools)}" if text else self.describe(tools)

    # --- what the model writes ---------------------------------------------------------------------------

    def plan(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> Step:
        """The first gen of an answer.

        Args:
            tools: those that there are.
            choice: "auto" (text, calls or both), "required" (one call or more), "none", or the name of a tool (one call).
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

    def _plan(self, tools: Sequence[Tool], choice: str, parallel: bool) -> Step:
        source = self.grammar(tools, choice, parallel)
        if choice == "auto" and source is not None:
            source = thinking_first(source, self.reasoning)
        return Step("", ("structural_tag", source), free=choice == "auto")

    @abstractmethod
    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str | None:
        """The structural tag of a gen in which the tools may be called ("auto") or must be (all else).

        None for a dialect whose calls take several gens.
        """

    @abstractmethod
    def read(self, names: Collection[str], marks: Marks | None) -> Reader:
        """A reader that knows tools by these names (none: any) and thoughts by these marks.

        `names` may be a mapping to the schemas of the parameters, which some formats need to tell 3 from "3".
        """

    def reader(self, tools: Sequence[Tool], reasoning: bool, prompt: str | None = None) -> Reader:
        """A reader of one answer, which is to be fed the prefixes of its steps too. Without tools, calls are text.

        `reasoning`: thoughts are told apart. `prompt`: the text before the answer; its end tells whether the template
        began a thought. Without it the marks tell.
        """
        marks = self.reasoning if reasoning else None
        if marks is not None and prompt is not None:
            marks = marks._replace(open=prompt.rstrip().endswith(marks.begin))
        return self.read({tool.name: tool.parameters for tool in tools}, marks) if tools else Reader(Form(""), marks=marks)

    def parse(self, text: str, names: Collection[str] = ()) -> tuple[str, list[Call]]:
        """What a whole text says, and its calls. Raises nothing; a call that is cut stays text. `names` as for `read`."""
        parts, found, name = [""], [], ""
        for event in self.read(names, None).feed(text, last=True):
            match event:
                case Said(said):
                    parts[-1] += said
                case CallBegun(_, _, name):
                    arguments = ""
                case Arguments(_, more):
                    arguments += more
                case CallEnded(_, complete, id, written):
                    given = _object(arguments) if complete else None
                    if given is not None:
                        found.append(Call(name, given, id))
                        parts.append("")
                    else:
                        parts[-1] += written
        return "\n".join(part for part in (part.strip() for part in parts) if part), found


def _merged(turns: list[Message]) -> list[Message]:
    """Turns of users that only hold what tools answered, as one."""
    found: list[Message] = []
    for turn in turns:
        if found and turn.get("answers") and found[-1].get("answers"):
            found[-1] = {**turn, "content": f"{found[-1]['content']}\n{turn['content']}"}
        else:
            found.append(turn)
    return [{key: value for key, value in turn.items() if key != "answers"} for turn in found]


def _call_of(call: Mapping[str, Any]) -> Call:
    about = call["function"]
    given = about.get("arguments") or "{}"
    arguments = _object(given) if isinstance(given, str) else given
    if not isinstance(arguments, dict):
        raise ConfigError(f"the arguments of the call {about['name']!r} are {given!r:.200}; send a JSON object as text")
    return Call(about["name"], arguments, call.get("id") or "")


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
