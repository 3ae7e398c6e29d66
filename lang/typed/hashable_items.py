"""Which items a set can hold, as pydantic's core schemas say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Core = Mapping[str, Any]

MADE = "made_class"  # in the metadata of a core schema: the class that makes an object of a dict
_UNHASHABLE = ("any", "list", "dict", "set", "deque", "generator", "ordered-dict", "counter", "typed-dict")
_DISTINCT = ("int", "str", "bool", "date", "uuid", "enum", "literal")
_WRAPPERS = ("function-before", "function-after", "function-wrap", "nullable", "default", "custom-error")


def followed(core: Core, definitions: Mapping[str, Core]) -> Core:
    """What a reference to a definition stands for."""
    while core["type"] in ("definition-ref", "definitions"):
        core = definitions[core["schema_ref"]] if core["type"] == "definition-ref" else core["schema"]
    return core


def hashable(core: Core, definitions: Mapping[str, Core], above: tuple[str, ...] = ()) -> bool:
    """Whether Python can hash every value of a type."""
    core = followed(core, definitions)
    kind, ref = core["type"], core.get("ref", "")
    if made := core.get("metadata", {}).get(MADE):
        core = {"fields": core["schema"]["fields"], "type": "model", "cls": made}
        kind = "model"
    if kind in _UNHASHABLE or ref in above:
        return kind not in _UNHASHABLE
    if kind in ("model", "dataclass") and core["cls"].__hash__ is None:
        return False
    return all(hashable(inner, definitions, (*above, ref) if ref else above) for inner in _held(core))


def _held(core: Core) -> list[Core]:
    """The schemas of what a value holds."""
    found = [core[key] for key in ("schema", "json_schema", "lax_schema") if isinstance(core.get(key), Mapping)]
    choices = core.get("choices", ())
    found += [
        one[0] if isinstance(one, tuple) else one
        for one in (choices.values() if isinstance(choices, Mapping) else choices)
    ]
    items = core.get("items_schema", ())
    found += [items] if isinstance(items, Mapping) else list(items)
    fields = core.get("fields", ())
    found += [one["schema"] for one in (fields.values() if isinstance(fields, Mapping) else fields)]
    return found


def distinct(core: Core, definitions: Mapping[str, Core]) -> bool:
    """Whether different JSON values of a type are always different values in Python."""
    core = followed(core, definitions)
    if core["type"] in _WRAPPERS and "schema" in core:
        return core["type"] in ("nullable", "default") and distinct(core["schema"], definitions)
    if core["type"] == "literal":
        return len(set(core["expected"])) == len(core["expected"])
    return core["type"] in _DISTINCT and not core.get("to_lower") and not core.get("to_upper")
