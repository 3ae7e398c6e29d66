"""What a chat template does with roles, parts, tools and calls, found by rendering short probe conversations with it.

A template that leaves something out says nothing. So each question is asked by a conversation of known words: what
stands in the rendered text is taken, what does not is left out. A probe that the template refuses answers nothing.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from sgl.runtime.errors import ConfigError

from .hf_chat_template import BadTemplate, ChatTemplate, TemplateTooCostly

log = logging.getLogger("sgl.runtime")

Message = dict[str, Any]
SECONDS = 2.0  # of all probes of a template; a template that takes longer is asked no more
TOOL_NAMES = ("tools", "xml_tools")  # variables by which templates take tools
ONE, TWO, THREE, NAME, FIELD, KEY, VALUE = (
    f"sglprobe{word}" for word in ("one", "two", "three", "name", "field", "key", "value")
)
ODD = "sglproberole"
SHORT, LONG = "sglCall01", "call_sglProbe0123456789"  # ids of calls
NOT_TEXT = re.compile(r"""["']type\\?["']\s*:\s*\\?["']text|\{\\?['"]text""")  # parts as Python or JSON writes them
NOT_JSON = re.compile(rf"""\{{'{KEY}'|\{{\\+"{KEY}""")  # arguments as Python writes them, or as JSON inside of JSON
_USER, _SAID = {"role": "user", "content": THREE}, {"role": "assistant", "content": THREE}
_STAND_INS = {name: f"<|{name}|>" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}


class TemplateMessageEffect(Enum):
    """What comes of a message."""

    SHOWN = "shown"
    LEFT_OUT = "left out"
    REFUSED = "refused"


class ToolCallSupport(NamedTuple):
    """How a template takes the calls of an assistant.

    Attributes:
        text: arguments as JSON text, else as an object.
        empty: a call without text has the content "", else it has none.
    """

    text: bool
    empty: bool


class TemplateTraits:
    """Of one template. Each answer is found when it is first asked for, and kept. Nothing is raised.

    template: Jinja source, which is compiled for the first answer, or what was made of it. Of source that does not
    compile nothing is shown.
    """

    def __init__(self, template: ChatTemplate | str) -> None:
        self._template = template
        self._left = SECONDS
        self._fates: dict[Any, TemplateMessageEffect] = {}
        self._notes_added: set[str] = set()

    @cached_property
    def _chat(self) -> ChatTemplate:
        if isinstance(self._template, ChatTemplate):
            return self._template
        try:
            return ChatTemplate(self._template, _STAND_INS)
        except BadTemplate:
            return ChatTemplate("", {})

    # --- roles and parts ---------------------------------------------------------------------------------

    def reads_parts(self, role: str, first: bool, parts: bool, tools: bool) -> bool:
        """Whether a content of text parts, or else a text, goes to the template as
        parts: as it was sent where that is shown.
        """
        other = (
            self.fate(role, first, parts, tools) is not TemplateMessageEffect.SHOWN
            and self.fate(role, first, not parts, tools) is TemplateMessageEffect.SHOWN
        )
        return parts != other

    def taken(self, role: str, first: bool, tools: bool = False) -> TemplateMessageEffect:
        """What comes of a message of `role` in the better of the two forms of content."""
        found = {self.fate(role, first, parts, tools) for parts in (False, True)}
        return next(fate for fate in TemplateMessageEffect if fate in found)

    def fate(self, role: str, first: bool, parts: bool = False, tools: bool = False) -> TemplateMessageEffect:
        """What comes of a message of `role`, at the beginning or later, with its content as a text or as text parts.

        tools: the request has tools.
        """
        key = (role, first, parts, tools)
        if key not in self._fates:
            self._fates[key] = self._fate(role, first, parts, tools)
        return self._fates[key]

    def _fate(self, role: str, first: bool, parts: bool, tools: bool) -> TemplateMessageEffect:
        variables, calls = self._with_tools if tools else {}, self.calls if role == "tool" else None
        for others in (False, True):  # whose contents are texts, or parts where the template refuses texts
            messages = _conversation(role, first, calls)
            text = self._text(
                [_as_parts(one) if (parts if one["role"] == role else others) else one for one in messages], **variables
            )
            if text is not None:
                return (
                    TemplateMessageEffect.SHOWN
                    if _shows(text, role, messages, parts)
                    else TemplateMessageEffect.LEFT_OUT
                )
        return TemplateMessageEffect.REFUSED

    # --- tools and calls ---------------------------------------------------------------------------------

    @cached_property
    def tools(self) -> str:
        """The variable by which the template takes tools; empty where it shows none."""
        for name in TOOL_NAMES:
            text = self._text([_USER], **{name: [_TOOL]}) if name in self._chat.variables else None
            if text is not None and NAME in text:
                return name
        return ""

    @property
    def _with_tools(self) -> dict[str, Any]:
        return {self.tools: [_TOOL]} if self.tools else {}

    @cached_property
    def calls(self) -> ToolCallSupport | None:
        """None where the template shows no calls, or refuses the role `tool` after them."""
        if "tool_calls" not in self._chat.source:
            return None
        forms = [ToolCallSupport(text, empty) for text in (False, True) for empty in (False, True)]
        return next((form for form in forms if self._takes(form)), None)

    def _takes(self, form: ToolCallSupport) -> bool:
        text = self._called(form)
        return text is not None and all(word in text for word in (NAME, VALUE, TWO)) and not NOT_JSON.search(text)

    def _called(self, form: ToolCallSupport, id: str = SHORT, **fields: Any) -> str | None:
        """The text of a conversation with a call and its answer."""
        answer = {"role": "tool", "tool_call_id": id, "content": TWO}
        return self._text([_USER, _asking(form, id, **fields), answer], **self._with_tools)

    @cached_property
    def responses(self) -> bool:
        """Whether answers belong into the call's message, as `tool_responses`: the role `tool` is shown as any word
        would be.
        """
        if self.calls is None or "tool_responses" not in self._chat.source:
            return False
        asked = _asking(self.calls, SHORT)
        inside = self._text([_USER, {**asked, "tool_responses": [{"name": NAME, "response": TWO}]}], **self._with_tools)
        known, odd = (
            self._text([_USER, asked, {"role": role, "content": TWO}], **self._with_tools) for role in ("tool", ODD)
        )
        return inside is not None and TWO in inside and odd is not None and odd.replace(ODD, "tool") == known

    @cached_property
    def text_with_calls(self) -> bool:
        """Whether the text is shown that an assistant says with its calls."""
        text = None if self.calls is None else self._called(self.calls, content=ONE)
        return text is not None and ONE in text

    @cached_property
    def calls_with_text(self) -> bool:
        """Whether the calls are shown of an assistant that says something with them."""
        text = None if self.calls is None else self._called(self.calls, content=ONE)
        return text is not None and VALUE in text

    @cached_property
    def one_call(self) -> bool:
        """Whether of two calls in a message one is left out. A template that refuses two says so itself."""
        if self.calls is None:
            return False
        calls = [
            {**call, "id": id}
            for call, id in zip(_asking(self.calls, SHORT)["tool_calls"] * 2, (SHORT, SHORT[::-1]), strict=True)
        ]
        calls[1]["function"] = {"name": ODD, "arguments": calls[0]["function"]["arguments"]}
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": TWO} for call in calls]
        text = self._text([_USER, {**_asking(self.calls, SHORT), "tool_calls": calls}, *answers], **self._with_tools)
        return text is not None and ODD not in text

    @cached_property
    def short_ids(self) -> bool:
        """Whether ids of calls must have nine letters and digits."""
        return (
            self.calls is not None and self._called(self.calls) is not None and self._called(self.calls, LONG) is None
        )

    @cached_property
    def thoughts(self) -> bool:
        """Whether `reasoning_content` is shown of the message with which the assistant is still at work."""
        text = self._text(
            [_USER, {"role": "assistant", "content": ONE, "reasoning_content": TWO}, {"role": "tool", "content": THREE}]
        )
        return text is not None and ONE in text and TWO in text

    # --- how it is asked ---------------------------------------------------------------------------------

    def add_note(self, what: str) -> None:
        """A note in the log, once."""
        if what not in self._notes_added:
            self._notes_added.add(what)
            log.warning("the model's chat template %s", what)

    def _text(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str | None:
        """What the template makes of the messages; None where it refuses them or has taken too long."""
        if self._left <= 0:
            return None
        begun = time.thread_time()
        try:
            return self._chat.render(messages, True, **({"tools": None, "documents": None} | variables))
        except TemplateTooCostly:
            self._left = 0
        except ConfigError:
            pass
        finally:
            self._left -= time.thread_time() - begun
        return None


@lru_cache(maxsize=64)
def traits_of(source: str) -> TemplateTraits:
    """The traits of a template (Jinja source) without its tokenizer: special tokens have stand-ins."""
    return TemplateTraits(source)


def _conversation(role: str, first: bool, calls: ToolCallSupport | None) -> list[Message]:
    """One with a message of the role, at the beginning or later. Later ones stand where they may."""
    asked = {"role": role, "content": ONE + TWO}
    if first:
        return [asked] if role == "user" else [asked, _USER]
    if role == "tool" and calls is not None:
        return [_USER, _asking(calls, SHORT), {**asked, "tool_call_id": SHORT}]
    if role == "assistant":
        return [_USER, asked, _USER]
    if role in ("system", "developer"):
        return [{"role": role, "content": KEY}, _USER, _SAID, asked, _USER]
    return [_USER, _SAID, asked]


def _as_parts(message: Message) -> Message:
    """The message, its content in two text parts."""
    content = message.get("content")
    if not content:
        return message
    middle = len(content) // 2
    return {**message, "content": [{"type": "text", "text": text} for text in (content[:middle], content[middle:])]}


def _shows(text: str, role: str, messages: Sequence[Message], parts: bool) -> bool:
    """Whether the contents of that role are in the text, and not as Python or JSON writes parts."""
    contents = [str(message["content"]) for message in messages if message["role"] == role]
    words = [
        word
        for content in contents
        for word in ((content[: len(content) // 2], content[len(content) // 2 :]) if parts else (content,))
    ]
    return all(word in text for word in words) and not (parts and NOT_TEXT.search(text))


def _asking(form: ToolCallSupport, id: str, **fields: Any) -> Message:
    """The message of an assistant that calls the tool."""
    given = f'{{"{KEY}": "{VALUE}"}}' if form.text else {KEY: VALUE}
    content = {"content": ""} if form.empty else {}
    call = {"id": id, "type": "function", "function": {"name": NAME, "arguments": given}}
    return {"role": "assistant", **content, "tool_calls": [call], **fields}


_PARAMETERS = {
    "type": "object",
    "properties": {FIELD: {"type": "string", "description": "A word."}},
    "required": [FIELD],
}
_TOOL = {"type": "function", "function": {"name": NAME, "description": "A tool.", "parameters": _PARAMETERS}}
