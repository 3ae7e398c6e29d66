"""Translates other APIs' requests to chat requests; errors are reported in the terms of the original API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ...http.http_errors import RequestError
from ...http.validation_errors import validation_message
from ..chat.chat_types import MOST_MESSAGES

M = TypeVar("M", bound=BaseModel)


def parse_chat_request(kind: type[M], value: Any, *place: str | int) -> M:
    """The value as a model.

    Raises RequestError for the first thing that is wrong; `place` is where in the body it stands.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise validation_message(error.errors(include_url=False), kind, place) from None


def few(values: Sequence[Any], name: str) -> None:
    """Raise RequestError for more turns than are read."""
    if len(values) > MOST_MESSAGES:
        raise RequestError(f"{name} has {len(values)} entries; send at most {MOST_MESSAGES}", name)


@contextmanager
def translated_errors(names: Mapping[str, str]) -> Iterator[None]:
    """RequestErrors from within have other names for fields: patterns of those of a chat request, and what stands for
    them.
    """
    try:
        yield
    except RequestError as error:
        param = error.param and with_fields_renamed(error.param, names)
        raise RequestError(
            with_fields_renamed(error.message, names), param, error.code, error.status, error.retry_after
        ) from error


def with_fields_renamed(text: str, names: Mapping[str, str]) -> str:
    for pattern, name in names.items():
        text = re.sub(
            rf"(?<![\w.]){pattern}" if pattern.endswith(".") else rf"(?<![\w.])(?:{pattern})(?!\w)", name, text
        )
    return text
