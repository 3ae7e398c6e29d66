"""Routes that say in /openapi.json what they answer, and by which statuses they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute

from .api_error_formats import error_model

STATUSES = {
    400: "what the request asks for cannot be done; the message says what and why",
    401: "no key of this server",
    403: "not for one of several API keys to do",
    404: "there is no such model or route",
    408: "the body did not come in time",
    409: "it is in use",
    413: "the body is too long",
    429: "too many requests wait already; the header Retry-After says when to come again",
    499: "the request was aborted",
    503: "the engine does not answer, or the server shuts down",
    504: "the request took longer than the server allows",
}
OF_BODIES = (400, 408, 413, 429, 499, 503, 504)  # of every route that takes a body
OF_MODELS = (404, *OF_BODIES)  # of every route whose body names a model


def answers(form: Any, *refusals: int, media: str | None = None) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: `form` is the type of its JSON, None where it answers with text.

    media: of the text, or of the stream that clients can have instead of JSON.
    """
    answer: dict[str, Any] = {"description": "what was asked for"}
    if form is not None:
        answer["model"] = form
    if media is not None:  # OpenAPI 3.1 has no words for the form of events
        answer["content"] = {media: {} if form is not None else {"schema": {"type": "string"}}}
    return {200: answer, **{status: {"description": STATUSES[status]} for status in sorted(refusals)}}


class DocumentedRoute(APIRoute):
    """Its refusals have the shape of the API that its path is of; 401 is one of them, for servers with keys."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        responses: dict[int | str, dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        declared = {**(responses or {}), 401: {"description": STATUSES[401]}}
        error = {"model": error_model(path)}
        super().__init__(
            path,
            endpoint,
            responses={status: answer if status == 200 else error | answer for status, answer in declared.items()},
            **{**options, "response_model": None},  # a type in `responses` is said, not checked
        )


def operation_name(route: APIRoute) -> str:
    """The operationId of a route."""
    return f"{min(route.methods or ()).lower()}{route.path_format}".translate(_AS_NAME)


_AS_NAME = str.maketrans("/{}:", "____")
