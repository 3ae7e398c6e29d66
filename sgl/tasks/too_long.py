"""How backends say that a prompt does not fit the context of their model."""

from __future__ import annotations

from collections.abc import Iterator

from sgl.lang.errors import RemoteStatusError, error_message_of
from sgl.runtime.errors import ContextLengthError

_WORDS = (
    "context_length_exceeded",
    "maximum context length",
    "do not fit the context",
    "prompt is too long",
    "exceed context limit",
    "input token count",
)  # of OpenAI, vLLM and SGLang, sgl serve, Anthropic twice, Google


def is_too_long(error: BaseException) -> bool:
    """Whether a run failed because its prompt does not fit the context."""
    return any(map(_reports_it, _causes(error)))


def _reports_it(error: BaseException) -> bool:
    if isinstance(error, RemoteStatusError):
        return error.status in (400, 413, 422) and any(words in error_message_of(error) for words in _WORDS)
    return isinstance(error, ContextLengthError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
