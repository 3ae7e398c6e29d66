"""How families of models describe and call tools: the base of all formats, and the table that finds them."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BadValueError, nearest
from ..ir import SglExpr
from .calls import ToolCall, ToolCalls
from .tool import Tool

if TYPE_CHECKING:
    from ..backend import Backend
    from .nodes import SglToolCall

log = logging.getLogger("sgl.lang")


class ToolFormat(ABC):
    """One way to write tools. `parse(render(text, calls))` gives the same calls."""

    name: str

    @abstractmethod
    def describe(self, tools: Sequence[Tool]) -> str:
        """What the system turn says of the tools."""

    @abstractmethod
    def grammar(self, tools: Sequence[Tool], choice: str) -> str | None:
        """The structural tag of a step: free text or calls for "auto", else calls alone, one of a named tool.

        None if a step is no single text; then `nodes` says what it is.
        """

    @abstractmethod
    def parse(self, text: str, names: Sequence[str] = ()) -> ToolCalls:
        """The calls in any text. Raises nothing and loses nothing: what is no call stays in `text`."""

    @abstractmethod
    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        """The text of a step: what is said, then the calls."""

    def nodes(self, call: SglToolCall, backend: Backend) -> list[SglExpr] | None:
        """The nodes of a step that is more than one gen, None for one that is one gen."""
        return None


_HOMES = {
    "nano": "nano", "hermes": "hermes", "qwen": "hermes", "llama": "llama", "mistral": "mistral", "pythonic": "pythonic",
}  # fmt: skip
_MADE: dict[str, Callable[[], ToolFormat]] = {}
_MODELS = (
    (r"sgl[-_]?nano|runtime/nano", "nano"),
    (r"llama[-_. ]?4|llama[-_. ]?3[-_.]2.*\b[13]b|pythonic", "pythonic"),
    (r"llama[-_. ]?3", "llama"),
    (r"mi[sx]tral|ministral|magistral|devstral", "mistral"),
    (r"qwen|qwq|hermes|smollm", "hermes"),
)
_TEMPLATES = {
    "qwen": "hermes", "qwen2-vl": "hermes", "llama-3-instruct": "llama", "llama-3-instruct-llava": "llama",
    "llama-4": "pythonic", "mistral": "mistral",
}  # fmt: skip


def register_format(name: str, make: Callable[[], ToolFormat]) -> None:
    """Make a format of your own known by its name."""
    _MADE[name] = make


def format_named(name: str) -> ToolFormat:
    """The format of that name. Raises BadValueError."""
    if name in _MADE:
        return _MADE[name]()
    if name not in _HOMES:
        raise BadValueError(f"there is no tool format {name!r}; {nearest(name, [*_MADE, *_HOMES])}")
    return _known(_HOMES[name])


@lru_cache(maxsize=16)
def _known(module: str) -> ToolFormat:
    return import_module(f".{module}", __package__).FORMAT


def choose_format(backend: Backend) -> ToolFormat:
    """The format of the backend's model, by its name, else by its chat template, else hermes with a note."""
    return format_named(_name_for(backend.get_model_name(), backend.get_chat_template().name))


@lru_cache(maxsize=256)
def _name_for(model: str, template: str) -> str:
    for pattern, name in _MODELS:
        if re.search(pattern, model, re.IGNORECASE):
            return name
    if template in _TEMPLATES:
        return _TEMPLATES[template]
    log.warning(
        "the format in which %s calls tools is not known: hermes is used (<tool_call>{...}</tool_call>); "
        'choose with sgl.tools([...], format="llama"), one of %s',
        model, ", ".join(_HOMES),
    )  # fmt: skip
    return "hermes"


def tag(begin: str, schema: Any, end: str) -> dict[str, Any]:
    """A structural part: a text, JSON of a schema, a text."""
    return {
        "type": "tag",
        "begin": begin,
        "content": {"type": "json_schema", "json_schema": schema},
        "end": end,
    }
