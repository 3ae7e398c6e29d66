"""Probe conversations and what a chat template makes of them: an answer with text, with a thought, with one call, with
two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.chat_templates.hf_chat_template import ChatTemplate

from ..tool_types import DialectToolCall, Tool

USER, SAID, THOUGHT = "Probe xq question.", "Probe xq answer.", "Probe xq thought."
_TEXT = {"type": "string", "description": "A text."}
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "alpha": _TEXT,
        "beta": _TEXT,
        "gamma": {"type": "integer", "description": "A number."},
        "delta": {"type": "array", "items": _TEXT, "description": "Texts."},
        "epsilon": {
            "type": "object",
            "description": "An object.",
            "properties": {"inner": {"type": "boolean", "description": "Inner."}},
        },
        "zeta": {"type": "boolean", "description": "A flag."},
    },
    "required": ["alpha"],
}
FIRST, SECOND = "probe_one", "probe_two"
TOOLS = [Tool(name, f"The tool {name}.", _PARAMETERS) for name in (FIRST, SECOND)]
_FLAT = [
    Tool(name, f"The tool {name}.", {"type": "object", "properties": {"alpha": _TEXT}}) for name in (FIRST, SECOND)
]
ARGUMENTS: dict[str, Any] = {
    "alpha": "one xq",
    "beta": "two xq",
    "gamma": 37,
    "delta": ["three xq", "four xq"],
    "epsilon": {"inner": True},
    "zeta": True,
}
IDS = ("probeid11", "probeid22")  # nine letters and digits, as Mistral's templates insist on
CALL, BARE = DialectToolCall(FIRST, ARGUMENTS, IDS[0]), DialectToolCall(FIRST, {}, IDS[0])
OTHER = DialectToolCall(SECOND, {"alpha": "five xq"}, IDS[1])
VARIABLES: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True, "thinking": True, "thinking_mode": "thinking"})
MOST_HOPELESS = 2  # renderings that may run out of their budget


@dataclass(frozen=True)
class TemplateProbe:
    """What a template wrote; a rendering that it refused is missing.

    plain: the conversation without tools.  shown: with tools, its last message the user's.
    base: with the answer's text alone.
    calls: by name, answers with calls: "one", "said" (text and a call), "bare" (a call without arguments), "two".
    generation_prompt: the conversation up to where the model is to answer; once for each of `VARIABLES`.
    thought: with a thought and text, and where the template needs it, a call.
    single: a message with two calls is refused, or loses one.
    """

    plain: str = ""
    shown: str = ""
    base: str = ""
    calls: Mapping[str, str] = field(default_factory=dict)
    generation_prompt: tuple[str, ...] = ()
    thought: str = ""
    thought_base: str = ""
    single: bool = False


def probe_template(template: str | ChatTemplate, tokens: Mapping[str, str] | None = None) -> TemplateProbe:
    """Never raises; a template that does not compile writes nothing.

    Args:
        template: Jinja source, or what was made of it.
        tokens: the special tokens that the source reads by name.
    """
    if isinstance(template, ChatTemplate):
        return _of_template(template)
    return _of_source(template, tuple(sorted((tokens or {}).items())))


@lru_cache(maxsize=64)
def _of_source(source: str, tokens: tuple[tuple[str, str], ...]) -> TemplateProbe:
    try:
        return _of_template(ChatTemplate(source, dict(tokens)))
    except ConfigError:
        return TemplateProbe()


@lru_cache(maxsize=64)
def _of_template(template: ChatTemplate) -> TemplateProbe:
    return _Renderer(template).probe()


class _Renderer:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._hopeless = 0
        self._tools: list[Tool] = []

    def probe(self) -> TemplateProbe:
        plain, shown = self._made([]), ""
        for tools in (TOOLS, _FLAT):  # there are templates that read more of tools than they must have
            self._tools = tools
            shown = shown or self._made([])
            if shown:
                break
        else:
            self._tools = []
        base = self._made([_answer(SAID)])
        calls = self._calls(base)
        thought, thought_base = self._thought()
        return TemplateProbe(
            plain,
            shown,
            base,
            calls,
            tuple(self._made([], True, **more) for more in VARIABLES),
            thought,
            thought_base,
            FIRST in text_after_call(calls.get("one", "")) and SECOND not in text_after_call(calls.get("two", "")),
        )

    def _calls(self, base: str) -> dict[str, str]:
        """Answers with calls; with arguments as objects where the template can write them, else as JSON text."""
        differing: dict[str, str] = {}
        for kind in ("object", "text"):
            made = self._answers(kind)
            if any(_whole(text) for text in made.values()):
                return made
            if not differing and _differs(made, base):
                differing = made
        return differing

    def _answers(self, kind: str) -> dict[str, str]:
        """By name, those that the template writes."""
        given = {"one": ("", [CALL]), "said": (SAID, [CALL]), "bare": ("", [BARE]), "two": ("", [CALL, OTHER])}
        made = {
            name: self._made([_answer(answer_text, calls=[_openai(call, kind) for call in calls])])
            for name, (answer_text, calls) in given.items()
        }
        return {name: text for name, text in made.items() if text}

    def _thought(self) -> tuple[str, str]:
        """An answer with a thought, and the same without, where the thought is written."""
        for more in VARIABLES:
            for answer_text, calls in ((SAID, []), ("", [_openai(BARE, "object")]), ("", [_openai(BARE, "text")])):
                text = self._made([_answer(answer_text, THOUGHT, calls)], **more)
                if THOUGHT in text:
                    return text, self._made([_answer(answer_text, "", calls)], **more)
        return "", ""

    def _made(self, answers: list[dict[str, Any]], generation_prompt: bool = False, **more: Any) -> str:
        """A conversation as the template writes it; empty where it refuses."""
        if self._hopeless >= MOST_HOPELESS:
            return ""
        given = [tool.openai for tool in self._tools] or None
        try:
            return self._template.render(
                [{"role": "user", "content": USER}, *answers],
                generation_prompt,
                **{"tools": given, "documents": None, **more},
            )
        except ConfigError as error:
            self._hopeless += bool(getattr(error, "hopeless", False))
            return ""


def text_after_call(text: str) -> str:
    """What a rendering has after the user's message."""
    return text.rpartition(USER)[2]


def _answer(answer_text: str, thought: str = "", calls: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": answer_text}
    if thought:
        found |= {"reasoning_content": thought, "reasoning": thought}
    return {**found, "tool_calls": list(calls)} if calls else found


def _openai(call: DialectToolCall, kind: str) -> dict[str, Any]:
    given = json.dumps(call.arguments) if kind == "text" else call.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": given}}


def _whole(text: str) -> bool:
    """Whether the call was written with its arguments, not as JSON text inside of JSON."""
    answer = text_after_call(text)
    return FIRST in answer and ARGUMENTS["alpha"] in answer and '\\"' not in answer


def _differs(made: Mapping[str, str], base: str) -> bool:
    """Whether the template writes anything of calls."""
    nothing = ("", text_after_call(base), text_after_call(base).replace(SAID, ""))
    return any(text_after_call(text) not in nothing for text in made.values())
