"""One tool: its name, its description, the JSON Schema of its arguments, and its function if there is one."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any

from sgl.runtime.dialects import Tool as Described
from sgl.runtime.dialects.tool_types import NAME

from ..errors import BadValueError

Schema = dict[str, Any]
_EMPTY: Schema = {"type": "object", "properties": {}}
_NAMED = re.compile(r"\s*(?::param\s+(?:[^:]*\s)?)?\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s+(\S.*)")
_HEADING = re.compile(r"\s*(args|arguments|parameters|params)\s*:\s*$", re.IGNORECASE)
_OTHER_HEADING = re.compile(r"\s*(returns?|raises|yields?|examples?|notes?)\s*:", re.IGNORECASE)


def _as_given(arguments: Any) -> Any:
    return arguments


def _itself(value: Any) -> Any:
    return value


def _validated(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {"value": model.model_validate(given)}


class Tool:
    """What the model may call. `parameters` is the schema of an object; `check` makes values of JSON arguments."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Schema,
        function: Callable[..., Any] | None = None,
        check: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise BadValueError(f"a tool has the name {name!r}; use letters, digits and _")
        self.name = name
        self.description = description
        self.parameters = parameters
        self.function = function
        self.check = check or _as_given

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def openai(self) -> Schema:
        """The tool as chat APIs and most prompts have it."""
        return self.plain.openai

    @functools.cached_property
    def plain(self) -> Described:
        """What the model sees of it."""
        return Described(self.name, self.description, self.parameters)

    @property
    def arguments_schema(self) -> Schema:
        """`parameters` as grammars read them: objects hold only the members that the schema declares, unless it says
        otherwise.
        """
        return self.plain.arguments_schema


def tool_of(source: Any) -> Tool:
    """A tool of a python function, a pydantic model, or a dict as chat APIs take it. Raises BadValueError."""
    if isinstance(source, Tool):
        return source
    if isinstance(source, dict):
        return _of_dict(source)
    if isinstance(source, type) and hasattr(source, "model_json_schema"):
        return _of_model(source)
    if callable(source):
        return _of_function(source)
    raise BadValueError(f"{source!r} is not a tool; give a function, a pydantic model or an OpenAI tool dict")


def _of_dict(source: Schema) -> Tool:
    about = source.get("function", source)
    if not isinstance(about, dict) or "name" not in about:
        raise BadValueError(f"the tool {source!r} has no name; give {{'name': ..., 'parameters': ...}}")
    parameters = about.get("parameters") or about.get("input_schema") or _EMPTY
    return Tool(about["name"], about.get("description") or "", parameters)


def _of_model(model: Any) -> Tool:
    from ..typed.pydantic_schema import adapter_of, schema_of

    schema = dict(schema_of(adapter_of(model), model))
    if "$ref" in schema:
        schema = {**schema["$defs"][schema["$ref"].rpartition("/")[2]], **schema}
        schema.pop("$ref")
    description = schema.pop("description", "")
    return Tool(model.__name__, description, _shown(schema), _itself, functools.partial(_validated, model))


def _of_function(function: Callable[..., Any]) -> Tool:
    from ..typed.pydantic_schema import adapter_of, schema_of

    name = getattr(function, "__name__", None) or type(function).__name__
    summary, notes = read_docstring(inspect.getdoc(function) or "")
    kind = _arguments_type(name, function, notes)
    adapter = adapter_of(kind)
    schema = _shown(schema_of(adapter, kind))
    for parameter in inspect.signature(function).parameters.values():
        _add_default(schema["properties"][parameter.name], parameter.default)
    return Tool(name, summary, schema, function, adapter.validate_python)


def _arguments_type(name: str, function: Callable[..., Any], notes: dict[str, str]) -> Any:
    """A TypedDict of the parameters: nothing in it can clash with their names."""
    from pydantic import ConfigDict, Field

    from ..typed.pydantic_typed_dicts import typed_dict

    hints, fields = _hints(name, function), {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise BadValueError(f"the tool {name} takes {parameter}; a model gives arguments by their names")
        kind = hints.get(parameter.name, Any)
        if parameter.name in notes:
            kind = Annotated[kind, Field(description=notes[parameter.name])]
        given = typing.Required if parameter.default is parameter.empty else typing.NotRequired
        fields[parameter.name] = given[kind]
    made = typed_dict(name, fields)
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made


def _hints(name: str, function: Any) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    owner = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except NameError as error:
        raise BadValueError(f"an annotation of the tool {name} has an unknown name: {error}") from error


def _shown(schema: Schema) -> Schema:
    """The schema as prompts have it; that it is closed goes without saying."""
    return {key: value for key, value in schema.items() if key not in ("title", "additionalProperties")}


def _add_default(schema: Schema, default: Any) -> None:
    if isinstance(default, str | int | float) and "$ref" not in schema:
        schema["default"] = default


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function (up to its sections), and of each parameter.

    Parameters are described in an `Args:` section or as `:param name:`.
    """
    summary: list[str] = []
    notes: dict[str, str] = {}
    place, current = "summary", ""
    for line in text.splitlines():
        named = _NAMED.match(line) if place == "args" or line.lstrip().startswith(":param") else None
        if _HEADING.match(line):
            place = "args"
        elif _OTHER_HEADING.match(line) or line.lstrip().startswith((":return", ":raise", ":rtype")):
            place = "other"
        elif named:
            place, current = "args", named[1]
            notes[current] = named[2].strip()
        elif place == "args" and current and line.strip():
            notes[current] += f" {line.strip()}"
        elif place == "summary":
            summary.append(line)
    return "\n".join(summary).strip(), notes
