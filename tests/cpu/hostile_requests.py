"""Random requests of grammars that ask for much: large counts, many optional
members, ambiguity, long lists, items that differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from sgl.grammars import Grammar, Vocabulary, compile_ebnf, compile_json_schema, compile_regex

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
COMPILE: dict[str, Callable[..., Grammar]] = {
    "schema": compile_json_schema,
    "regex": compile_regex,
    "ebnf": compile_ebnf,
}


class Hostile(NamedTuple):
    """name: of the list of such requests that it is one of."""

    name: str
    kind: str
    source: Any

    def compile(self, vocabulary: Vocabulary) -> Grammar:
        """Raises GrammarError where it is refused."""
        return COMPILE[self.kind](self.source, vocabulary)


def hostile(draw: random.Random) -> Hostile:
    name = draw.choice(list(_MAKERS))
    kind, source = _MAKERS[name](draw)
    return Hostile(name, kind, source)


def _counted_members(draw: random.Random) -> tuple[str, Any]:
    count = draw.randrange(10, 250)
    least = draw.randrange(1, count)
    return "schema", {
        "properties": {f"p{draw.randrange(10**6)}": INTEGER for _ in range(count)},
        "minProperties": least,
        "additionalProperties": False,
    }


def _members_in_any_order(draw: random.Random) -> tuple[str, Any]:
    return "schema", {"properties": {f"p{i}_{draw.randrange(10**6)}": TEXT for i in range(draw.randrange(601, 900))}}


def _repeats(draw: random.Random) -> tuple[str, Any]:
    inner, least, most = draw.randrange(2, 300), draw.randrange(0, 90), draw.randrange(100, 900)
    return "regex", draw.choice(["([ab]{1,%d}c?){%d,%d}!", "(.{0,%d}x?){%d,%d}!", "((a|[a-z ]){0,%d}-?){%d,%d}!"]) % (
        inner,
        least,
        most,
    )


def _many_states(draw: random.Random) -> tuple[str, Any]:
    return "regex", f"(a|b)*a(a|b){{{draw.randrange(6, 40)}}}"


def _overlapping(draw: random.Random) -> tuple[str, Any]:
    words = ["".join(draw.choices("abc", k=draw.randrange(2, 6))) for _ in range(draw.randrange(20, 200))]
    return "regex", f"(({'|'.join(words)})*[a-c]{{0,{draw.randrange(2, 50)}}}){{1,{draw.randrange(2, 90)}}}!"


def _ambiguous(draw: random.Random) -> tuple[str, Any]:
    letters = draw.sample("abcdefgh", 3)
    return "ebnf", draw.choice(
        [
            'root ::= root root | "{0}" | "{1}"',
            'root ::= root "{0}" root | root root | [{1}{2}]+',
            'root ::= a* "{0}"\na ::= b* c*\nb ::= "{1}" | c "{1}"\nc ::= "{2}" | "{1}" b',
            'root ::= "{0}" root "{0}" | "{1}" root "{1}" | root root | "{2}"?',
        ]
    ).format(*letters)


def _references(draw: random.Random) -> tuple[str, Any]:
    count, step = draw.randrange(20, 400), draw.randrange(2, 19)
    defs = {
        f"d{i}": {
            "properties": {
                "n": {"$ref": f"#/$defs/d{(i * step + 1) % count}"},
                "m": {"type": "array", "items": {"$ref": f"#/$defs/d{(i + 1) % count}"}},
            }
        }
        for i in range(count)
    }
    return "schema", {"$defs": defs, "$ref": "#/$defs/d1"}


def _deep(draw: random.Random) -> tuple[str, Any]:
    made: Any = {"type": "string", "maxLength": draw.randrange(1, 2000)}
    for level in range(draw.randrange(3, 25)):
        made = (
            {"type": "array", "items": made, "minItems": 1, "maxItems": 900}
            if level % 2
            else {"properties": {f"a{level}": made, "b": INTEGER}, "required": [f"a{level}"]}
        )
    return "schema", made


def _enum(draw: random.Random) -> tuple[str, Any]:
    if draw.random() < 0.3:
        return "schema", {"enum": [{"a": draw.randrange(10**9), "b": [i] * 3} for i in range(draw.randrange(10, 120))]}
    return "schema", {"enum": [f"value number {draw.randrange(10**9)}" for _ in range(draw.randrange(100, 3000))]}


def _differing(draw: random.Random) -> tuple[str, Any]:
    item = draw.choice(
        [
            INTEGER,
            TEXT,
            {"type": "integer", "minimum": 0, "maximum": 9**5},
            {"properties": {"a": INTEGER, "b": TEXT}},
            {"type": "array", "items": INTEGER},
            {},
        ]
    )
    return "schema", {"type": "array", "items": item, "uniqueItems": True, "minItems": draw.randrange(1, 40)}


def _containing(draw: random.Random) -> tuple[str, Any]:
    least = draw.randrange(1, 60)
    return "schema", {
        "items": INTEGER,
        "contains": {"multipleOf": draw.randrange(2, 9)},
        "minContains": least,
        "maxContains": least + draw.randrange(900),
        "type": "array",
    }


def _patterns(draw: random.Random) -> tuple[str, Any]:
    return "schema", {
        "patternProperties": {
            f"^[a-z]*{chr(97 + i)}[a-z]{{{draw.randrange(9)}}}$": INTEGER for i in range(draw.randrange(2, 5))
        }
    }


def _alternatives(draw: random.Random) -> tuple[str, Any]:
    shared = {f"s{i}": INTEGER for i in range(draw.randrange(2, 15))}
    return "schema", {
        "anyOf": [
            {"properties": {f"k{i}": TEXT, **shared}, "required": [f"k{i}"]} for i in range(draw.randrange(5, 40))
        ]
    }


def _long_texts(draw: random.Random) -> tuple[str, Any]:
    return "schema", {
        "items": {
            "type": "string",
            "minLength": draw.randrange(3000),
            "maxLength": 5000,
            "pattern": draw.choice(["[a-z]", "a.{3,90}b", "(a|b){9,200}"]),
        },
        "minItems": 3,
        "type": "array",
    }


_MAKERS: dict[str, Callable[[random.Random], tuple[str, Any]]] = {
    "counted members": _counted_members,
    "any order": _members_in_any_order,
    "repeats": _repeats,
    "many states": _many_states,
    "overlapping": _overlapping,
    "ambiguous": _ambiguous,
    "references": _references,
    "deep": _deep,
    "enum": _enum,
    "differing": _differing,
    "containing": _containing,
    "patterns": _patterns,
    "alternatives": _alternatives,
    "long texts": _long_texts,
}
