"""Other APIs' requests are made chat requests: what is wrong with these is told in the words of the API they came by."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .chat.types import MOST_MESSAGES
from .errors import RequestError
from .fields import refusal

M = TypeVar("M", bound=BaseModel)

Aside = Callable[[Callable[[], Any]], Awaitable[Any]]  # does the work with a long body beside the event loop


def parsed(kind: type[M], value: Any, *place: str | int) -> M:
    """The value as a model. Raises RequestError for the first thing that is wrong; `place` is where in the body it stands."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        told: list[Any] = error.errors(include_url=False)
        raise refusal([{**one, "loc": (*place, *one["loc"])} for one in told], kind) from None


def few(values: Sequence[Any], name: str) -> None:
    """Raise RequestError for more turns than are read."""
    if len(values) > MOST_MESSAGES:
        raise RequestError(f"{name} has {len(values)} entries; send at most {MOST_MESSAGES}", name)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """RequestErrors from within have other names for fields: patterns of those of a chat request, and what stands for them."""
    try:
        yield
    except RequestError as error:
        param = error.param and renamed(error.param, names)
        raise RequestError(renamed(error.message, names), param, error.code, error.status, error.retry_after) from error


def renamed(text: str, names: Mapping[str, str]) -> str:
    for pattern, name in names.items():
        text = re.sub(rf"(?<![\w.]){pattern}" if pattern.endswith(".") else rf"(?<![\w.])(?:{pattern})(?!\w)", name, text)
    return text
