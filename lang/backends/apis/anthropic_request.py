"""The body of a call of Anthropic's messages API."""

from __future__ import annotations

import re
from typing import Any

from ...backend import GenRequest
from ...media.message_content import Message
from ...sampling.option_table import PROGRAM_OPTIONS
from ...sampling.options import SamplingOptions
from ..openai.openai_constraints import OpenAIConstraint, ServerCapabilities
from ..openai.openai_request import cannot_close, chat_start, stops_of
from ..remote.remote_prompt import RemotePrompt

Body = dict[str, Any]

_NEEDED = {name: option for name, option in PROGRAM_OPTIONS.items() if option.needed}
_UNKNOWN = [name for name, option in _NEEDED.items() if not option.standard_in("messages")]
_KNOWN = [name for name in _NEEDED if name not in ("max_new_tokens", "stop", *_UNKNOWN)]

_OLDEST = re.compile(r"claude-(2|instant|3-(opus|sonnet|haiku))")


def check_options(options: SamplingOptions, traits: ServerCapabilities) -> None:
    """Raise UnsupportedByBackendError for the first option that the API has no word for."""
    if options.close_at_limit:
        raise cannot_close(traits)
    for name in _UNKNOWN:
        if options.asks(name):
            raise traits.refuse(f"has no {name} (given: {getattr(options, name)!r})", "leave it out")


def most_of(model: str) -> int:
    """The limit of a text that has none: the API demands a number, and refuses one above what the model can write."""
    return 4096 if _OLDEST.search(model) else 8192


def messages_body(
    prompt: RemotePrompt, request: GenRequest, traits: ServerCapabilities, form: OpenAIConstraint
) -> Body:
    """All fields of the call but model and stream. Raises UnsupportedByBackendError."""
    options = request.options
    messages = chat_start(prompt, traits)["messages"]
    system = [message["content"] for message in messages if message["role"] == "system"]
    talk = [_message(message) for message in messages if message["role"] != "system" and message["content"]]
    body: Body = {"messages": _unspaced(talk), "max_tokens": options.max_new_tokens or most_of(traits.name)}
    if system:
        body["system"] = "\n\n".join(str(text) for text in system)
    stops = [stop for stop in stops_of(request, traits, form) if stop.strip()]  # the API takes no blank ones: cut here
    if stops:
        body["stop_sequences"] = stops
    body |= {_NEEDED[name].names["messages"]: getattr(options, name) for name in _KNOWN if options.asks(name)}
    if form.body:
        schema = form.body["response_format"]["json_schema"]["schema"]
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return body


def _unspaced(messages: list[Message]) -> list[Message]:
    """A last message of the assistant's must not end with white space."""
    if messages and messages[-1]["role"] == "assistant" and isinstance(messages[-1]["content"], str):
        last = {**messages[-1], "content": messages[-1]["content"].rstrip()}
        return [*messages[:-1], last] if last["content"] else messages[:-1]
    return messages


def _message(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": [_part(part) for part in content]}


def _part(part: Message) -> Message:
    if part["type"] == "text":
        return part
    url = part["image_url"]["url"]
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    head, _, data = url.partition(",")
    kind = head.removeprefix("data:").removesuffix(";base64")
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
