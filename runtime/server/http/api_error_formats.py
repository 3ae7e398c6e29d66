"""The form of an error in each API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from ..observability.request_record import RECORD

NATIVE_PATHS = frozenset({"/generate", "/abort_request", "/encode", "/separate_reasoning"})
ANTHROPIC_PATH, OLLAMA_PATH = "/v1/messages", "/api/"
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class OpenAIProblem(BaseModel):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    error: OpenAIProblem


class AnthropicProblem(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    type: Literal["error"]
    error: AnthropicProblem
    request_id: str | None


class NativeProblem(BaseModel):
    message: str


class NativeError(BaseModel):
    error: NativeProblem


class OllamaError(BaseModel):
    error: str


def error_model(path: str) -> type[BaseModel]:
    """The form of the errors at this path."""
    if path in NATIVE_PATHS:
        return NativeError
    if _is_anthropic(path):
        return AnthropicError
    return OllamaError if path.startswith(OLLAMA_PATH) else OpenAIError


def error_in_api_shape(
    path: str, status: int, message: str, param: str | None, details: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """The JSON of an error at this path; None where it is OpenAI's."""
    if path in NATIVE_PATHS:
        return {"error": {"message": message}}
    if _is_anthropic(path):
        return anthropic_error(status, message, param, details)
    if path.startswith(OLLAMA_PATH):
        return {"error": _named(message, param)}
    return None


def _is_anthropic(path: str) -> bool:
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def anthropic_error(
    status: int, message: str, param: str | None, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Anthropic's: the message names the field at fault."""
    record = RECORD.get()
    error: dict[str, Any] = {"type": KINDS.get(status, "invalid_request_error"), "message": _named(message, param)}
    if details is not None:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": record.id if record is not None else None}


def _named(message: str, param: str | None) -> str:
    return message if param is None or param in message else f"{param}: {message}"
