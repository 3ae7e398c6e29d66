"""Tools as chat APIs have them, and calls of tools."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sgl.runtime.errors import ConfigError

NAME = re.compile(r"[\w.-]+")
KEPT = ("enum", "const", "default", "not", "if")  # what says no schema, or what closing would make take more


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
        """`parameters`, without members that nobody named."""
        return closed({"type": "object", **self.parameters})


@dataclass(frozen=True)
class Call:
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
    description, parameters = about.get("description") or "", about.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(description, str):
        raise ConfigError(f"the description of the tool {name!r} is {description!r:.200}; give a text")
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ConfigError(f"the parameters of the tool {name!r} are {parameters!r:.200}; give the JSON Schema of an object")
    return Tool(name, description, dict(parameters))


def closed(schema: Any) -> Any:
    """The schema, in which objects with named members have no others unless it says so; however deep it is."""
    top = [schema]
    pending: list[Any] = [top]
    while pending:
        part = pending.pop()
        for key, value in enumerate(part) if isinstance(part, list) else part.items():
            if isinstance(value, dict | list) and key not in KEPT:
                part[key] = copy.copy(value)
                pending.append(part[key])
        if isinstance(part, dict) and isinstance(part.get("properties"), dict) and part.get("type") == "object":
            part.setdefault("additionalProperties", False)
    return top[0]
