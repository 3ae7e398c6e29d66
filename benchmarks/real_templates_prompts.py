"""The prompts that `sgl serve` makes of chat requests, compared with transformers' `apply_chat_template`.

    python benchmarks/real_templates_prompts.py TEMPLATE.jinja ...

The oracle renders the request as it was sent. Where the rendering loses something, the request is rendered in the other
forms in which OpenAI's clients and transformers write the same thing: arguments as an object or as JSON text, a list of
text parts or one text, `developer` or `system`, a call without content or with an empty one. The first form that shows
everything is the right one. Where no form does, the dialect has to stand in, and its prompt has to show everything.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, meta

from sgl.runtime.dialects import dialect_for, tool_of
from sgl.runtime.server.protocols.chat.chat_prompt import conversation
from sgl.runtime.server.protocols.chat.chat_types import ChatRequest
from sgl.runtime.text.tokenizer import Tokenizer

Json = dict[str, Any]
BOS, EOS = "<s>", "</s>"
GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
PROPERTIES = {
    "city": {"type": "string", "description": "Where"},
    "days": {"type": "integer", "description": "How many"},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS},
    },
    {
        "type": "function",
        "function": {"name": "get_time", "description": "The time of a city.", "parameters": PARAMETERS},
    },
]
SYSTEM, USER = {"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Is it raining in Rome?"}
SAID, MORE = {"role": "assistant", "content": "It is dry."}, {"role": "user", "content": "And tomorrow?"}


class Row(NamedTuple):
    """How a template does.

    reasons: of the bodies that differ, by their names. stands_in: bodies in which the dialect has to.
    """

    template: str
    right: int
    of: int
    reasons: dict[str, str]
    stands_in: tuple[str, ...]


class Oracle(NamedTuple):
    """What transformers makes of a request. whole: every text, tool and call is shown."""

    text: str | Exception
    whole: bool


def _call(id: str, name: str, arguments: Json) -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


ROME, OSLO = (
    _call("call00001", "get_weather", {"city": "Trastevere", "days": 3}),
    _call("call00002", "get_time", {"city": "Oslo"}),
)
ASKED = {"role": "assistant", "content": None, "tool_calls": [ROME]}
ANSWER = {"role": "tool", "tool_call_id": "call00001", "content": "21 degrees"}
SECOND = {"role": "tool", "tool_call_id": "call00002", "content": "10 o'clock"}
ODD = (
    "{'type': 'text'",
    '{"type": "text"',
    "{'city': 'T",
    '{\\"city\\":',
)  # parts as data; arguments as Python writes them, or JSON in JSON
PARTS = [{"type": "text", "text": "Is it raining"}, {"type": "text", "text": " in Rome?"}]

BODIES: dict[str, Json] = {
    "plain": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, SAID, MORE]},
    "tools": {"messages": [SYSTEM, USER], "tools": TOOLS},
    "answered": {"messages": [USER, ASKED, ANSWER], "tools": TOOLS},
    "after a call": {"messages": [USER, ASKED, ANSWER, SAID, MORE], "tools": TOOLS},
    "two calls": {"messages": [USER, {**ASKED, "tool_calls": [ROME, OSLO]}, ANSWER, SECOND], "tools": TOOLS},
    "call with text": {"messages": [USER, {**ASKED, "content": "I look it up."}, ANSWER], "tools": TOOLS},
    "thought": {"messages": [USER, {**SAID, "reasoning_content": "Rome, so I guess."}, MORE]},
    "thought and call": {"messages": [USER, {**ASKED, "reasoning_content": "Rome, so I ask."}, ANSWER], "tools": TOOLS},
    "developer": {"messages": [{**SYSTEM, "role": "developer"}, USER]},
    "parts": {"messages": [{"role": "user", "content": PARTS}]},
    "no prompt": {"messages": [USER, SAID, MORE], "add_generation_prompt": False},
    "goes on": {"messages": [USER, {"role": "assistant", "content": "It is  "}], "continue_final_message": True},
    "thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": True}},
    "no thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    "no effort": {"messages": [USER], "reasoning_effort": "none"},
}


def rows(templates: Sequence[Path]) -> list[Row]:
    """One row for each template (Jinja source)."""
    return [_row(path) for path in templates]


def _row(path: Path) -> Row:
    source = path.read_text(encoding="utf-8")
    oracles = {name: oracle(source, body) for name, body in BODIES.items()}
    reasons = {name: difference(oracles[name], served(source, body), body) for name, body in BODIES.items()}
    wrong = {name: reason for name, reason in reasons.items() if reason}
    stands_in = tuple(name for name, found in oracles.items() if not found.whole)
    return Row(path.stem, len(BODIES) - len(wrong), len(BODIES), wrong, stands_in)


def difference(expected: Oracle, ours: str | Exception, body: Json) -> str:
    """In what the prompt differs from the right one; empty where it does not."""
    if isinstance(ours, Exception):
        return "" if isinstance(expected.text, Exception) else f"{_short(ours)} instead of {_short(expected.text)}"
    if not expected.whole:
        lost = [part for part in _texts(body) if part not in ours] + [part for part in ODD if part in ours]
        return f"{lost[0]!r} is lost or written as data" if lost else ""
    theirs = str(expected.text)
    if theirs == ours:
        return ""
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))
    return f"at {at}: {ours[at : at + 60]!r} instead of {theirs[at : at + 60]!r}"


def _short(found: str | Exception) -> str:
    return f"{found!r:.200}" if isinstance(found, Exception) else f"{found[-60:]!r}"


# --- ours ------------------------------------------------------------------------------------------------


def served(source: str, body: Json) -> str | Exception:
    """The prompt that the server makes of a request's body, or the error that it answers with."""
    try:
        request = ChatRequest.model_validate({"model": "m", **copy.deepcopy(body)})
        tools = [tool_of(tool) for tool in body.get("tools", ())]
        return conversation(_tokenizer(source), request, dialect_for("model", source), tools).text
    except Exception as error:
        return error


@lru_cache(maxsize=1)
def _tokenizer(source: str) -> Tokenizer:
    return Tokenizer(_backend(), {"bos_token": BOS, "eos_token": EOS, "chat_template": {"default": source}})


def _backend() -> Any:
    """A vocabulary of the 256 bytes."""
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.BPE({char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in (BOS, EOS)])
    return backend


# --- transformers ----------------------------------------------------------------------------------------


def oracle(source: str, body: Json) -> Oracle:
    """transformers' text of the first form of the request that shows everything, else of the first that renders."""
    found: list[str | Exception] = []
    for form in _forms(body):
        text = _rendered(source, form)
        if (
            isinstance(text, str)
            and all(part in text for part in _texts(body))
            and not any(part in text for part in ODD)
        ):
            return Oracle(text, True)
        found.append(text)
    return Oracle(next((text for text in found if isinstance(text, str)), found[0]), False)


def _forms(body: Json) -> Iterator[Json]:
    seen = []
    for developer, joined, objects, empty in product(
        ("developer", "system"), (False, True), (True, False), (False, True)
    ):
        form = {
            **body,
            "messages": [_formed(message, developer, joined, objects, empty) for message in body["messages"]],
        }
        if form not in seen:
            seen.append(form)
            yield form


def _formed(message: Json, developer: str, joined: bool, objects: bool, empty: bool) -> Json:
    found = copy.deepcopy(message)
    found["role"] = developer if found["role"] == "developer" else found["role"]
    found["content"] = "" if empty and found["content"] is None else found["content"]
    if joined and isinstance(found["content"], list):
        found["content"] = "".join(part["text"] for part in found["content"])
    for call in found.get("tool_calls", ()) if objects else ():
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return found


def _texts(body: Json) -> list[str]:
    """What the prompt must show: texts, tools and calls. What an assistant says
    with its calls, transformers may leave out.
    """
    contents = [
        message["content"] for message in body["messages"] if message["content"] and not message.get("tool_calls")
    ]
    said = [
        text.strip()
        for content in contents
        for text in ([content] if isinstance(content, str) else [part["text"].strip() for part in content])
    ]
    calls = [call["function"] for message in body["messages"] for call in message.get("tool_calls", ())]
    named = [each["function"][key] for each in body.get("tools", ()) for key in ("name", "description")] + [
        call["name"] for call in calls
    ]
    return [*said, *named, *(json.loads(call["arguments"])["city"] for call in calls)]


def _rendered(source: str, body: Json) -> str | Exception:
    goes_on = body.get("continue_final_message", False)
    prompt = body.get("add_generation_prompt", True) and not goes_on
    given = {**body.get("chat_template_kwargs", {}), **_effort(source, body)}
    try:
        return _transformers().apply_chat_template(
            body["messages"],
            body.get("tools"),
            chat_template=source,
            tokenize=False,
            add_generation_prompt=prompt,
            continue_final_message=goes_on,
            **given,
        )
    except Exception as error:
        return error


def _effort(source: str, body: Json) -> Json:
    """As SGLang has it: a template that reads no effort gets none by its switch."""
    switch = next(
        (name for name in ("reasoning_effort", "enable_thinking", "thinking") if name in _variables(source)), None
    )
    if "reasoning_effort" not in body or switch is None:
        return {}
    return {switch: body["reasoning_effort"] if switch == "reasoning_effort" else False}


@lru_cache(maxsize=1)
def _variables(source: str) -> set[str]:
    return meta.find_undeclared_variables(
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(GENERATION.sub("", source))
    )


@lru_cache(maxsize=1)
def _transformers() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=_backend(), bos_token=BOS, eos_token=EOS)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    found = rows([Path(name) for name in sys.argv[1:]])
    for row in found:
        print(
            f"{row.right:3} of {row.of}  {row.template}",
            f"(stands in: {', '.join(row.stands_in)})" if row.stands_in else "",
        )
        for name, reason in row.reasons.items():
            print(f"        {name}: {reason}")
    print(f"{sum(row.right for row in found)} of {sum(row.of for row in found)}")
