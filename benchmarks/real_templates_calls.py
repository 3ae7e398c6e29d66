"""How calls, thoughts and texts of published chat templates are read, and whether what may be written is taken back as
history.

The oracle is the conversation itself: its own template renders it, the answer is what follows the prefix of every
answer, and the dialect that `dialect_for` finds must read from it what was put in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sgl.grammars import Vocabulary, compile_structural
from sgl.runtime.dialects import (
    ArgumentsDelta,
    ContentDelta,
    Dialect,
    DialectToolCall,
    ReasoningDelta,
    Tool,
    ToolCallEnd,
    ToolCallStart,
    dialect_for,
)
from sgl.runtime.errors import ConfigError
from sgl.runtime.text.chat_templates.hf_chat_template import ChatTemplate
from sgl.runtime.text.chat_templates.template_traits import traits_of

Json = dict[str, Any]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEXT = {"type": "string", "description": "Where."}
PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "city": TEXT,
        "days": {"type": "integer", "description": "How many."},
        "wet": {"type": "boolean", "description": "Rain too."},
        "tags": {"type": "array", "items": TEXT, "description": "Words."},
        "more": {
            "type": "object",
            "description": "More.",
            "properties": {"unit": TEXT, "exact": {"type": "boolean", "description": "So."}},
        },
    },
    "required": ["city"],
}
PLAIN: Json = {
    "type": "object",
    "properties": {"city": TEXT},
    "required": ["city"],
}  # for templates that read more of others
TOOLS = [Tool(name, "The weather.", PARAMETERS) for name in ("get_weather", "get_time")]
ROME = DialectToolCall(
    "get_weather",
    {"city": 'Rome, "Urbs" <N>', "days": 3, "wet": False, "tags": ["a b", "c"], "more": {"unit": "K", "exact": True}},
    "call00001",
)
OSLO, BARE = (
    DialectToolCall("get_time", {"city": "Oslo"}, "call00002"),
    DialectToolCall("get_time", {"city": "Ås"}, "call00003"),
)
SAID, THOUGHT, USER = "I look it up.", "Rome, then.", "Is it raining in Rome?"
BYTES = Vocabulary.from_bytes([bytes([i]) for i in range(256)] + [b""], [256])


class Answer(NamedTuple):
    said: str = ""
    thought: str = ""
    calls: tuple[DialectToolCall, ...] = ()


ANSWERS = {
    "a call": Answer(calls=(ROME,)),
    "text and a call": Answer(SAID, calls=(ROME,)),
    "a thought and a call": Answer(thought=THOUGHT, calls=(ROME,)),
    "two calls": Answer(calls=(ROME, OSLO)),
    "text": Answer(SAID),
    "a thought and text": Answer(SAID, THOUGHT),
}


class Row(NamedTuple):
    """How a template does. reason: what is not right, empty where all is."""

    template: str
    right: int
    of: int
    reason: str


class Cut(NamedTuple):
    """An answer as the template writes it; `prompt` is before it, `ending` after every answer."""

    prompt: str
    text: str
    ending: str


# --- renderings ------------------------------------------------------------------------------------------


class Template:
    """A published template (Jinja source), and the dialect that is found by it alone."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.chat = ChatTemplate(path.read_text(encoding="utf-8"), TOKENS)
        self.dialect = dialect_for("some/model", self.chat)
        self._traits = traits_of(self.chat.source)
        self._tools = TOOLS if self.rendered([], True) else [Tool(tool.name, tool.description, PLAIN) for tool in TOOLS]

    @property
    def writes_calls(self) -> bool:
        return self._traits.calls is not None

    def messages(self, answer: Answer) -> Json:
        found: Json = {"role": "assistant", "content": answer.said}
        if answer.thought:
            found["reasoning_content"] = answer.thought
        if answer.calls:
            found["tool_calls"] = [_openai(call) for call in answer.calls]
        return found

    def rendered(self, answers: Sequence[Json], asked: bool = False, **more: Any) -> str:
        """The conversation as the dialect hands it to the template; empty where the template refuses it."""
        dialect = self.dialect.templated(self._traits)
        tools = getattr(self, "_tools", TOOLS)
        try:
            messages = dialect.messages([{"role": "user", "content": USER}, *answers], tools)
            return self.chat.render(messages, asked, **({"tools": None} | dialect.variables(tools) | more))
        except ConfigError:
            return ""

    def cut(self, answer: Answer) -> Cut | None:
        """None where the template does not write the answer."""
        for more in ({}, {"enable_thinking": True, "thinking": True}):
            found = self._cut(answer, more)
            if found is not None and (not answer.thought or answer.thought in found.text):
                return found
        return None

    def _cut(self, answer: Answer, more: Json) -> Cut | None:
        full, asked = self.rendered([self.messages(answer)], **more), self.rendered([], True, **more)
        plain = self.rendered([self.messages(Answer(SAID))], **more)
        if not full or not asked:
            return None
        before, _, ending = plain.rpartition(SAID)
        prompt = next((text for text in (asked, before) if text and full.startswith(text)), None) or _shared(
            full, asked
        )
        text = full[len(prompt) :]
        marks = self.dialect.reasoning
        if answer.thought and marks is not None and asked[len(prompt) :].strip() == marks.begin:
            prompt = asked  # the prompt begins the thought in words that are not kept in history
        return Cut(prompt, self._one_turn(text, ending), ending)

    def _one_turn(self, text: str, ending: str) -> str:
        """The text up to where the turn ends, if that ends texts."""
        marks = self.dialect.reasoning
        end = ending.strip()
        if not end or (marks is not None and any(mark in end for mark in (marks.end, *marks.silent))):
            return text
        return text.partition(end)[0] + end


def _shared(full: str, asked: str) -> str:
    """What both begin with, up to where the last mark ends."""
    at = next((i for i, (a, b) in enumerate(zip(full, asked, strict=False)) if a != b), min(len(full), len(asked)))
    return full[: max(full.rfind(char, 0, at) + 1 for char in ">]}\n")]


def _openai(call: DialectToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}


@lru_cache(maxsize=128)
def template_of(path: Path) -> Template:
    return Template(path)


# --- the second table: what is written is read -----------------------------------------------------------


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """One row for each template that writes calls: of the answers that it writes, how many are read as they were."""
    return [_row(template, dict(_read(template))) for template in map(template_of, paths) if template.writes_calls]


def _row(template: Template, found: dict[str, str]) -> Row:
    wrong = {name: reason for name, reason in found.items() if reason}
    return Row(
        template.name,
        len(found) - len(wrong),
        len(found),
        "; ".join(f"{name}: {reason}" for name, reason in wrong.items()),
    )


def _read(template: Template) -> Iterator[tuple[str, str]]:
    """(kind of answer, what is wrong with how it is read)."""
    for name, answer in ANSWERS.items():
        cut = template.cut(answer)
        if cut is None or not all(call.name in cut.text for call in answer.calls):
            continue
        yield name, _difference(_written(answer, cut, template.dialect), read(template.dialect, cut))


def _written(answer: Answer, cut: Cut, dialect: Dialect) -> Answer:
    """What is in the text: templates leave out text next to calls, write it in a turn after them, or as a thought."""
    marks = dialect.reasoning
    if not answer.said or answer.said not in cut.text:
        return answer._replace(said="")
    before = (cut.prompt + cut.text.partition(answer.said)[0]).rstrip()
    if marks is not None and marks.begin.strip() and before.endswith(marks.begin.strip()) and not answer.thought:
        return answer._replace(said="", thought=answer.said)
    return answer


def read(dialect: Dialect, cut: Cut) -> Answer:
    """What a reader makes of an answer, without the end of the turn."""
    reader = dialect.reader(TOOLS, True, cut.prompt)
    said, thought, calls = "", "", list[DialectToolCall]()
    name = arguments = ""
    for event in reader.feed(cut.text, last=True):
        match event:
            case ContentDelta(text):
                said += text
            case ReasoningDelta(text):
                thought += text
            case ToolCallStart(_, _, name):
                arguments = ""
            case ArgumentsDelta(_, text):
                arguments += text
            case ToolCallEnd(_, complete, _, text) if complete:
                calls.append(DialectToolCall(name, json.loads(arguments)))
            case ToolCallEnd(_, _, _, text):
                said += text
    return Answer(_without_end(said, cut.ending), _without_end(thought, cut.ending), tuple(calls))


ENDS = (
    "<|eom_id|>",
    "<|tool_response>",
    "<|call|>",
    "<|calls|>",
    "<｜hy_eos:opensource｜>",
    "</s>",
)  # of turns with calls: tokens that end a text


def _without_end(said: str, ending: str) -> str:
    """Without the tokens that end a turn, after which a model writes nothing."""
    said = said.strip()
    for mark in (ending.strip(), *_marks(ending), *ENDS):
        said = said.partition(mark)[0].strip() if mark else said
    return said


def _marks(ending: str) -> list[str]:
    return [f"<{part.partition('>')[0]}>" for part in ending.split("<")[1:] if ">" in part]


def _difference(written: Answer, found: Answer) -> str:
    calls = [(call.name, call.arguments) for call in written.calls]
    if [(call.name, call.arguments) for call in found.calls] != calls:
        return f"calls are read as {[(call.name, call.arguments) for call in found.calls]!r:.160}"
    if found.said != written.said:
        return f"text is read as {found.said!r:.120}"
    return "" if found.thought == written.thought else f"the thought is read as {found.thought!r:.120}"


# --- the third table: what may be written is history ------------------------------------------------------


def history_rows(paths: Sequence[Path]) -> list[Row]:
    """One row for each template that writes calls: the grammar, its texts read, and these rendered again."""
    return [_row(template, dict(_history(template))) for template in map(template_of, paths) if template.writes_calls]


def _history(template: Template) -> Iterator[tuple[str, str]]:
    dialect = template.dialect
    answers = {"a call": (ROME,)} if dialect.single else {"a call": (ROME,), "two calls": (ROME, OSLO)}
    for name, calls in answers.items():
        cut = template.cut(Answer(calls=calls))
        if cut is not None:
            yield f"{name} as the template writes it", _allowed(dialect, cut)
        yield f"{name} as the grammar writes it", _taken_back(template, calls)


@lru_cache(maxsize=256)
def _grammar(source: str) -> Any:
    return compile_structural(source, BYTES)


def _allowed(dialect: Dialect, cut: Cut) -> str:
    """Whether the grammar lets a model write the answer; the turn's own end is no part of it."""
    source = _source(dialect, "auto")
    if source is None:
        return ""
    matcher = _grammar(source).matcher()
    text = cut.text.lstrip("\n").encode()
    for at, byte in enumerate(text):
        if not matcher.accept(byte):
            rest = text[at:].decode(errors="replace").strip()
            ended = matcher.can_end and (
                not rest or rest.startswith(tuple(mark for mark in (cut.ending.strip(), *ENDS) if mark))
            )
            return "" if ended else f"not allowed from {text[max(0, at - 20) : at + 30]!r} on"
    return ""


def _source(dialect: Dialect, choice: str) -> str | None:
    """The structural tag of the gen with calls; None where a step before it is free."""
    step = dialect.plan(TOOLS, choice)
    return None if step.constraint is None else str(step.constraint[1])


def _taken_back(template: Template, calls: tuple[DialectToolCall, ...]) -> str:
    """Whether what the dialect writes is allowed, read as it was, and shown again where it is history."""
    dialect = template.dialect
    written, step = dialect.write("", list(calls)), dialect.plan(TOOLS, "required")
    matcher = _grammar(str(step.constraint[1]) if step.constraint else "").matcher()
    if not all(matcher.accept(byte) for byte in written.removeprefix(step.prefix).encode()):
        return f"{written!r:.160} is not allowed"
    found = dialect.parse(written, {tool.name: tool.parameters for tool in TOOLS})[1]
    if [(call.name, call.arguments) for call in found] != [(call.name, call.arguments) for call in calls]:
        return f"{written!r:.160} is read as {found!r:.160}"
    answered = [{"role": "tool", "tool_call_id": call.id, "content": "dry"} for call in calls]
    text = template.rendered(
        [
            template.messages(Answer(calls=calls)),
            *answered,
            {"role": "assistant", "content": SAID},
            {"role": "user", "content": "And now?"},
        ],
        True,
    )
    shown = all(call.name in text and str(call.arguments["city"])[:4] in text for call in calls)
    if not shown:
        return "the template does not show it as history"
    return "" if "".join(written.split()) in "".join(text.split()) else "as history it is written in another way"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    import sys

    for rows in (read_rows, history_rows):
        found = rows([Path(name) for name in sys.argv[1:]])
        for row in found:
            print(f"{row.right:3} of {row.of}  {row.template}  {row.reason}")
        print(f"{sum(row.right == row.of for row in found)} of {len(found)} wholly\n")
