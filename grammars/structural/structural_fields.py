"""The fields of every format of a structural tag: their names, defaults and types."""

from __future__ import annotations

import difflib
from typing import Any

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.schema_document import child

_MISSING = object()
FIELDS: dict[str, dict[str, Any]] = {
    "const_string": {"value": _MISSING},
    "json_schema": {
        "json_schema": _MISSING,
        "style": "json",
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": (),
    },
    "regex": {"pattern": _MISSING},
    "grammar": {"grammar": _MISSING, "syntax": "auto", "start": None},
    "choices": {"choices": _MISSING},
    "token": {"token": _MISSING},
    "exclude_token": {"exclude_tokens": ()},
    "any_tokens": {"exclude_tokens": (), "max_tokens": None},
    "any_text": {"excludes": (), "max_tokens": None, "max_chars": None},
    "sequence": {"elements": _MISSING},
    "or": {"elements": _MISSING},
    "optional": {"content": _MISSING},
    "plus": {"content": _MISSING},
    "star": {"content": _MISSING},
    "repeat": {"content": _MISSING, "min": _MISSING, "max": _MISSING},
    "tag": {"begin": _MISSING, "content": _MISSING, "end": _MISSING},
    "triggered_tags": {
        "triggers": _MISSING,
        "tags": _MISSING,
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": (),
    },
    "token_triggered_tags": {
        "trigger_tokens": _MISSING,
        "tags": _MISSING,
        "exclude_tokens": (),
        "at_least_one": False,
        "stop_after_first": False,
    },
    "dispatch": {"rules": _MISSING, "loop": True, "excludes": ()},
    "token_dispatch": {"rules": _MISSING, "loop": True, "exclude_tokens": ()},
    "tags_with_separator": {"tags": _MISSING, "separator": _MISSING, "at_least_one": False, "stop_after_first": False},
}
_TYPES: dict[str, tuple[Any, str]] = {
    "value": (str, "a string"),
    "token": (int | str, "a token's number or text"),
    "exclude_tokens": (list, "a list of tokens' numbers or texts"),
    "pattern": (str, "a string"),
    "grammar": (str, "a string"),
    "syntax": (str, "a string"),
    "start": (str | None, "a string"),
    "choices": (list, "a list of strings"),
    "separator": (str, "a string"),
    "begin": (str, "a string"),
    "elements": (list, "a list of formats"),
    "tags": (list, "a list of tags"),
    "triggers": (list, "a list of strings"),
    "trigger_tokens": (list, "a list of tokens' numbers or texts"),
    "rules": (list, "a list of pairs, what opens a format and that format"),
    "loop": (bool, "true or false"),
    "excludes": (list, "a list of strings"),
    "at_least_one": (bool, "true or false"),
    "stop_after_first": (bool, "true or false"),
    "any_order": (bool, "true or false"),
    "style": (str | dict, "a style's name or its marks"),
    "max_whitespace_cnt": (int | None, "an integer"),
    "min": (int, "an integer"),
    "max": (int, "an integer"),
}


def fields_of(value: Any, place: str, only: str | None = None) -> dict[str, Any]:
    """The fields of a format, absent ones by their defaults, with names and types checked.

    Args:
        value: the format.
        place: its JSON pointer.
        only: the one type that may stand here, and need not be named.
    """
    if not isinstance(value, dict):
        raise InvalidGrammarError(f"a format is a JSON object, not {value!r}", place)
    kind = value.get("type", only)
    if not isinstance(kind, str) or (only and kind != only):
        raise InvalidGrammarError(f"expected {f'the type {only!r}' if only else 'a type'}, not {kind!r}", place)
    if kind not in FIELDS:
        raise UnsupportedGrammarError(f"the format {kind!r}", place, _hint(kind, list(FIELDS)))
    known = FIELDS[kind]
    for name in value.keys() - known.keys() - {"type"}:
        raise InvalidGrammarError(f"{kind} has no field {name!r}; {_hint(name, list(known))}", place)
    fields = {name: _given(value, name, default) for name, default in known.items()}
    for name, found in fields.items():
        _check(kind, name, found, place)
    return fields | {"type": kind}


def _given(value: dict[str, Any], name: str, default: Any) -> Any:
    """What stands there; null for what may be absent says that it is."""
    found = value.get(name, default)
    return default if found is None and default is not _MISSING else found


def _check(kind: str, name: str, value: Any, place: str) -> None:
    if value is _MISSING:
        raise InvalidGrammarError(f"{kind} needs {name!r}", place)
    wanted, words = _TYPES.get(name, (object, ""))
    absent = value == () or (name == "begin" and isinstance(value, dict))  # a token
    if not absent and (
        not isinstance(value, wanted) or (wanted is not bool and wanted is not object and isinstance(value, bool))
    ):
        raise InvalidGrammarError(f"{name} must be {words}, not {value!r}", child(place, name))


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def strings_of(value: Any, place: str) -> list[str]:
    if not isinstance(value, list | tuple):
        raise InvalidGrammarError(f"expected a list of strings, not {value!r}", place)
    for i, text in enumerate(value):
        if not isinstance(text, str):
            raise InvalidGrammarError(f"expected a string, not {text!r}", child(place, i))
    return list(value)


def rules_of(value: Any, place: str) -> list[tuple[Any, Any]]:
    """What opens a format, and the format, of a non-empty list of such pairs."""
    if not value:
        raise InvalidGrammarError("there must be at least one rule", place)
    for i, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2:
            raise InvalidGrammarError(
                f"a rule is a pair of what opens a format and that format, not {pair!r:.100}", child(place, i)
            )
    return [(opening, content) for opening, content in value]
