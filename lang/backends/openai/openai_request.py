"""The body of a call of OpenAI's protocol: of chat completions and of text completions."""

from __future__ import annotations

from typing import Any

from ...backend import GenRequest
from ...errors import UnsupportedByBackendError
from ...media.message_content import Message
from ...sampling.option_table import PROGRAM_OPTIONS
from ...sampling.options import SamplingOptions
from ..remote.remote_prompt import RemotePrompt
from .openai_constraints import OpenAIConstraint, ServerCapabilities

Body = dict[str, Any]

MOST_COMPLETION = (
    1024  # tokens of a typed text completion without max_tokens: with the prompt they must fit the context
)
MOST_STOPS = 4  # that the API takes; the others are cut here

_NEEDED = {name: option for name, option in PROGRAM_OPTIONS.items() if option.needed}
_EXTRAS = {name: option for name, option in _NEEDED.items() if option.servers}  # what declared servers take besides
_STANDARD = [name for name, option in _NEEDED.items() if option.standard_in("openai")]
_NEVER = _NEEDED.keys() - _EXTRAS.keys() - {*_STANDARD}
_NOT_FOR_REASONING = [name for name in _STANDARD if name not in ("max_new_tokens", "stop", "seed")]
_NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")


def check_options(options: SamplingOptions, traits: ServerCapabilities) -> None:
    """Raise UnsupportedByBackendError for the first option that the server has no word for."""
    for name, option in _EXTRAS.items():
        if options.asks(name) and not option.servers & traits.constrained:
            names = " or ".join(repr(server) for server in sorted(option.servers))
            raise traits.refuse(
                f"has no {name} (given: {getattr(options, name)!r})",
                f"leave it out, or say OpenAI(..., constrained={names}) if the server has that protocol",
            )
    if options.close_at_limit:
        raise cannot_close(traits)
    for name in (*_NEVER, *(_NOT_FOR_REASONING if traits.reasoning else ())):
        if options.asks(name):
            raise traits.refuse(f"takes no {name} (given: {getattr(options, name)!r})", "leave it out")
    start = options.logprob_start_len
    if options.return_logprob and start is not None and start >= 0:
        raise traits.refuse("gives no log-probabilities of the prompt", "leave logprob_start_len out")


def cannot_close(traits: ServerCapabilities) -> UnsupportedByBackendError:
    return traits.refuse(
        "cannot close a text at its limit (close_at_limit=True)",
        "leave it out (a typed text that is cut is an error then), or give more max_tokens",
    )


def stops_of(request: GenRequest, traits: ServerCapabilities, form: OpenAIConstraint) -> tuple[str, ...]:
    """What ends the answer. A chat server ends turns by its own template's marks."""
    if form.closed:
        return ()
    asked = request.options.stops if traits.chat else request.stops
    return tuple(stop for stop in dict.fromkeys((*form.stops, *asked)) if stop)


def body_of(prompt: RemotePrompt, request: GenRequest, traits: ServerCapabilities, form: OpenAIConstraint) -> Body:
    """All fields of the call but model and stream. Raises UnsupportedByBackendError."""
    options = request.options
    start = chat_start(prompt, traits) if traits.chat else {"prompt": prompt.text + form.opening}
    body = {**start, **_limit(options, traits), **_sampling(options, traits), **form.body}
    if stops := stops_of(request, traits, form):
        body["stop"] = list(stops[:MOST_STOPS])
    if traits.reasoning:
        body.pop("stop", None)  # all are cut here
    if options.logit_bias:
        own = {str(token): bias for token, bias in options.logit_bias.items()}
        body["logit_bias"] = {**body.get("logit_bias", {}), **own}
    return {**body, **_logprobs(options, traits), **_extras(options, traits)}


def _limit(options: SamplingOptions, traits: ServerCapabilities) -> Body:
    """How many tokens there may be. Without a limit, chat servers go up to the context; text completions stop at the
    protocol's 16, which no form of any length fits."""
    most = options.max_new_tokens
    if most is None and traits.chat:
        return {}
    return {"max_completion_tokens" if traits.reasoning else "max_tokens": max(1, _or(most, MOST_COMPLETION))}


def limit_of(body: Body) -> int | None:
    """The limit that a body has, if any."""
    found: int | None = body.get("max_completion_tokens", body.get("max_tokens"))
    return found


def _sampling(options: SamplingOptions, traits: ServerCapabilities) -> Body:
    always = () if traits.reasoning or traits.sparse else ("temperature", "top_p")
    return {name: getattr(options, name) for name in _NUMBERS if name in always or options.asks(name)}


def _logprobs(options: SamplingOptions, traits: ServerCapabilities) -> Body:
    if not options.return_logprob:
        return {}
    count = options.top_logprobs_num or 0
    return {"logprobs": True, "top_logprobs": count} if traits.chat else {"logprobs": max(count, 1)}


def _extras(options: SamplingOptions, traits: ServerCapabilities) -> Body:
    found = {
        option.names["openai"]: getattr(options, name)
        for name, option in _EXTRAS.items()
        if options.asks(name) and option.servers & traits.constrained
    }
    return {word: list(value) if isinstance(value, tuple) else value for word, value in found.items()}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


# --- chat ------------------------------------------------------------------------------------------------


def chat_start(prompt: RemotePrompt, traits: ServerCapabilities) -> Body:
    """The messages: the turns or, without turns, the text as one turn of the user.

    Raises UnsupportedByBackendError for text outside of turns, and for a gen elsewhere than in the assistant's.
    """
    if not prompt.spoken and not prompt.media and prompt.text.strip():
        return {"messages": [{"role": "user", "content": str(prompt.text)}]}
    _check_turns(prompt, traits)
    messages = [message for message in prompt.messages if message["content"] or message["role"] != "system"]
    if not traits.constrained:
        messages = [_without_tool_role(message) for message in messages]
    if not prompt.partial.strip():
        return {"messages": messages}
    if not traits.prefill:
        raise traits.refuse(
            f"starts its turns itself, but the assistant's turn has text already: {prompt.partial!r}",
            "put the text into the user's turn, or write one gen a turn, or say num_api_spec_tokens= at "
            "@sgl.function, or prefill=True if the server goes on with a last message (vLLM, SGLang)",
        )
    last: Message = {"role": "assistant", "content": prompt.partial.lstrip()}
    return {"messages": [*messages, last], "continue_final_message": True, "add_generation_prompt": False}


def _without_tool_role(message: Message) -> Message:
    """The providers take that role only as the answer to a call of their tools interface."""
    if message["role"] != "tool":
        return message
    content = message["content"]
    said = f"<tool_response>\n{content}\n</tool_response>" if isinstance(content, str) else content
    return {"role": "user", "content": said}


def _check_turns(prompt: RemotePrompt, traits: ServerCapabilities) -> None:
    advice = 's += sgl.user("...") and then s += sgl.assistant(sgl.gen("name"))'
    if prompt.loose.strip():
        raise traits.refuse(
            f"is a chat model and takes turns only, but this text stands outside of all: {prompt.loose[:80]!r}",
            f"write {advice}; a completion model is OpenAI(..., is_chat_model=False)",
        )
    if prompt.role != "assistant":
        where = f"inside the turn of {prompt.role!r}" if prompt.role else "outside of all turns"
        raise traits.refuse(
            f"is a chat model and answers in the assistant's turn, but the gen stands {where}", f"write {advice}"
        )
