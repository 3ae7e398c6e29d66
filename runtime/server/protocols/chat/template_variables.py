"""What a request tells the chat template besides messages and tools."""

from __future__ import annotations

from typing import Any

from sgl.runtime.text.tokenizer import Tokenizer

from ...http.http_errors import RequestError
from .chat_types import SETTLED, ChatRequest

SWITCHES = ("enable_thinking", "thinking")  # by which templates learn whether to think


def template_variables_of(tokenizer: Tokenizer, body: ChatRequest) -> dict[str, Any]:
    """Raises RequestError for what the template does not read.

    A switch of thoughts that it does not read changes nothing.
    """
    known = tokenizer.chat_variables - SETTLED
    found: dict[str, Any] = {}
    for name, value in body.chat_template_kwargs.items():
        if name in known:
            found[name] = value
        elif name not in SWITCHES:
            words = ", ".join(sorted(tokenizer.chat_inputs - SETTLED)) or "none"
            raise RequestError(
                f"this model's template reads no {name!r}; it reads: {words}", param=f"chat_template_kwargs.{name}"
            )
        elif value:
            tokenizer.chat_traits().add_note(f"reads no {name}: it is of no effect")
    return {**_effort(tokenizer, known, body.reasoning_effort), **found}


def _effort(tokenizer: Tokenizer, known: frozenset[str], effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    if "reasoning_effort" in known:
        return {"reasoning_effort": effort}
    if effort != "none":
        raise RequestError("this model's template knows no reasoning_effort; leave it out", param="reasoning_effort")
    return switched(False, known)


def switched(on: bool, known: frozenset[str]) -> dict[str, Any]:
    """The variable that makes a template that reads `known` think or not; none where it reads none."""
    return next(({name: on} for name in SWITCHES if name in known), {})
