"""The body of a /generate call of the native protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgl.runtime.text.chat_templates.quoted_text import QuotedText

from ...backend import GenRequest
from ...errors import UnsupportedByBackendError
from ...global_config import global_config
from ...sampling.option_table import FIRST_NAMES, PROGRAM_OPTIONS
from ...sampling.options import DEFAULTS, SamplingOptions
from ..remote.remote_prompt import RemotePrompt

Body = dict[str, Any]

_LOGPROB_OPTIONS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
_EXTRAS = {  # what newer servers know: only sent if the program asks for it
    name: option.names["native"]
    for name, option in PROGRAM_OPTIONS.items()
    if "native" in option.names and name not in (*FIRST_NAMES, *_LOGPROB_OPTIONS)
}


def check_options(options: SamplingOptions, server: Mapping[str, Any]) -> None:
    """Raise UnsupportedByBackendError for what the server does not do, as its model info has it."""
    if options.masked_logprobs and not server.get("masks_logprobs"):
        raise UnsupportedByBackendError(
            "this server has no masked_logprobs: it is not a server of `sgl serve` that has it; leave it out, or use "
            "an sgl.Engine in this process"
        )
    if not server.get("copies_values") and options.json_schema is not None and '"x-copied' in options.json_schema:
        raise UnsupportedByBackendError(
            "this server has no masks for values that are copied from a text: it is no `sgl serve` that has them; use "
            "one, or an sgl.Engine in this process"
        )
    if options.close_at_limit and not server.get("closes_at_limit"):
        raise UnsupportedByBackendError(
            "this server has no close_at_limit: it is not a server of `sgl serve` that has it; leave it out (a typed "
            "text that is cut is an error then), give more max_tokens, or use an sgl.Engine in this process"
        )


def generate_body(prompt: RemotePrompt, request: GenRequest, stream: bool) -> Body:
    """The body of one generation. Its `n` is 1: samples are separate calls."""
    options = request.options
    body = {**prompt_body(prompt), "sampling_params": sampling_body(request)}
    for name in _LOGPROB_OPTIONS:
        if (value := getattr(options, name)) is not None:
            body[name] = value
    return {**body, "stream": True} if stream else body


def prompt_body(prompt: RemotePrompt, copies: int | None = None) -> Body:
    """The text with its pictures; `copies`: the pictures for a batch of so many texts."""
    images = [_image_data(media.source) for media in prompt.media]
    if not images:
        return {"text": prompt.text}
    data: Any = images[0] if len(images) == 1 else images
    return {"text": prompt.text, "image_data": data if copies is None else [images] * copies}


def with_quotes(body: Body) -> Body:
    """The body with what is quoted of its text or texts, for servers that keep that from becoming special tokens."""
    text = body.get("text")
    quotes = [_quotes(one) for one in text] if isinstance(text, list) else _quotes(text)
    return {**body, "quoted": quotes} if text and any(quotes) else body


def _quotes(text: str | None) -> list[list[int]]:
    return [[start, stop, int(own)] for start, stop, own in text.quoted] if isinstance(text, QuotedText) else []


def sampling_body(request: GenRequest) -> Body:
    options, filled = request.options, request.options.over(DEFAULTS)
    extras = {native: _json(getattr(options, name)) for name, native in _EXTRAS.items() if options.asks(name)}
    return {
        "skip_special_tokens": global_config.skip_special_tokens_in_output,
        "spaces_between_special_tokens": global_config.spaces_between_special_tokens_in_out,
        **{name: _json(getattr(filled, name)) for name in FIRST_NAMES},
        "max_new_tokens": options.max_new_tokens,  # null: to the end of the context
        "n": 1,
        "stop": list(request.stops),
        "regex": None if options.json_schema is not None else options.pattern,
        **extras,
    }


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(token): bias for token, bias in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _image_data(url: str) -> str:
    """Base64 of a picture that we have, the URL of one that the server is to fetch."""
    return url.partition(",")[2] if url.startswith("data:") else url
