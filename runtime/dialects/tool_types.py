"""Tools as chat APIs have them, and calls of tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sgl.grammars.schema.closed_objects import KEYWORD as CLOSING
from sgl.runtime.errors import ConfigError

NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Tool:
    """What the model may call. `parameters` is the JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    @property
    def openai(self) -> dict[str, Any]:
        """The tool as chat APIs and most prompts have it."""
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": about}

    @cached_property
    def arguments_schema(self) -> dict[str, Any]:
        """`parameters` as grammars read them: objects hold only the members that the schema declares, unless it says
        otherwise.
        """
        return {"type": "object", CLOSING: False, **self.parameters}


@dataclass(frozen=True)
class DialectToolCall:
    """A call as it is read or written. `id` is what answers refer to it by, empty where there is none."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


def tool_of(openai: Mapping[str, Any]) -> Tool:
    """A tool of `{"type": "function", "function": {"name", "description", "parameters"}}`.

    Raises:
        ConfigError: something of it is missing or of the wrong type; says what.
    """
    about = openai.get("function") if isinstance(openai, Mapping) else None
    if not isinstance(about, Mapping) or openai.get("type", "function") != "function":
        raise ConfigError(f'a tool is {{"type": "function", "function": {{"name": ...}}}}, not {openai!r:.200}')
    name = about.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"a tool is called {name!r}; give a name of letters, digits, _, - and .")
    description, parameters = (
        about.get("description") or "",
        about.get("parameters") or {"type": "object", "properties": {}},
    )
    if not isinstance(description, str):
        raise ConfigError(f"the description of the tool {name!r} is {description!r:.200}; give a text")
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ConfigError(
            f"the parameters of the tool {name!r} are {parameters!r:.200}; give the JSON Schema of an object"
        )
    return Tool(name, description, dict(parameters))
