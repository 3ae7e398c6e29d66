"""Options of JSON Schema grammars: order, integers, ASCII, formats, weakening; and what may be given as a schema."""

import dataclasses
import enum
import itertools
import json
import random
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from grammar_support import CORES, JSON_PIECES, accepts, automaton, byte_vocabulary, tokens_by_bytes, walk
from typing_extensions import TypedDict

from sgl.grammars import GrammarError, InvalidGrammarError, compile_json_schema
from sgl.grammars.schema.explain_schema import explain
from sgl.grammars.schema.ignored_keywords import weakened
from sgl.grammars.schema.json_spelling import WHITESPACE
from sgl.grammars.schema.schema_builder import schema_expr
from sgl.grammars.schema.schema_options import _CHOICES, SchemaOptions
from sgl.grammars.schema.schema_source import canonical_schema
from sgl.grammars.schema.string_formats import ENFORCED

VOCABULARY = byte_vocabulary(JSON_PIECES)
FORMATS = json.loads((Path(__file__).parent / "data" / "json_schema_formats.json").read_text())
INT, STR = {"type": "integer"}, {"type": "string"}
PERSON = {"type": "object", "properties": {"a": INT, "b": STR, "c": INT}, "required": ["a", "c"]}


def compiled(schema, **options):
    return compile_json_schema(schema, VOCABULARY, **options)


def shown(grammar, value):
    return accepts(grammar, json.dumps(value, ensure_ascii=False))


def test_any_order_still_asks_for_required_names_once():
    grammar = compiled(PERSON, order="any")
    members = {"a": "1", "b": '"x"', "c": "2", "z": "null"}
    for count in range(5):
        for names in itertools.permutations(members, count):
            text = "{" + ", ".join(f'"{n}": {members[n]}' for n in names) + "}"
            assert accepts(grammar, text) == {"a", "c"}.issubset(names), text
    assert not accepts(grammar, '{"a": 1, "a": 2, "c": 1}')
    assert not accepts(grammar, '{"c": "x", "a": 1}')


def test_the_schemas_order_has_declared_names_first():
    grammar = compiled(PERSON)
    assert shown(grammar, {"a": 1, "c": 2, "z": 3})
    assert not shown(grammar, {"c": 2, "a": 1})
    assert not shown(grammar, {"z": 3, "a": 1, "c": 2})


def test_names_of_several_schemas_come_in_any_order():
    grammar = compiled({"allOf": [PERSON, {"properties": {"z": INT}, "required": ["z"]}]})
    assert shown(grammar, {"z": 3, "a": 1, "c": 2}) and shown(grammar, {"a": 1, "c": 2, "z": 3})
    assert not shown(grammar, {"a": 1, "c": 2})


def test_constants_in_any_order():
    grammar = compiled({"const": {"a": 1, "b": [{"c": 1, "d": 2}]}}, order="any")
    assert shown(grammar, {"b": [{"d": 2, "c": 1}], "a": 1})
    assert not shown(grammar, {"b": [{"d": 2}], "a": 1})


@pytest.mark.parametrize(
    "text,plain,json_like", [("1", 1, 1), ("1.0", 0, 1), ("1.00", 0, 0), ("1e+16", 0, 1), ("1e0", 0, 0)]
)
def test_spellings_of_integers(text, plain, json_like):
    for schema in (INT, {"enum": [1, 10**16]}, {"type": "integer", "minimum": 0}):
        assert accepts(compiled(schema), text) == accepts(compiled(schema, integers="plain"), text) == bool(plain)
        assert accepts(compiled(schema, integers="json"), text) == bool(json_like)


def test_draft_4_knows_no_integer_with_a_fraction():
    grammar = compiled({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"})
    assert accepts(grammar, "1") and not accepts(grammar, "1.0")


WIDE = {"type": "object", "properties": {"é": {"enum": ["日", "a"]}, "p": {"type": "string", "pattern": "^.[é-ü]"}}}


@pytest.mark.parametrize("schema", [STR, {}, WIDE, {"type": "string", "maxLength": 3}], ids=str)
def test_ascii_writes_escapes_only(schema):
    grammar, raw = compiled(schema, ascii=True), compiled(schema)
    for value in ("é", "a", "日😀", {"é": "日"}, {"é": "a", "p": "xé"}):
        escaped, plain = json.dumps(value), json.dumps(value, ensure_ascii=False)
        assert accepts(grammar, escaped) == accepts(raw, escaped)
        assert accepts(grammar, plain) == (plain.isascii() and accepts(raw, plain))
    for seed in range(5):
        assert walk(grammar.matcher(), random.Random(seed)).isascii()


@pytest.mark.parametrize("core", CORES)
def test_masks_of_ascii_grammars_hold_no_token_beyond_ascii(core):
    machine = automaton(schema_expr(WIDE, SchemaOptions(ascii=True)), VOCABULARY, core)
    state = machine.advance(machine.start, b'{"p": "x')
    found = tokens_by_bytes(machine, state)
    assert found and all(VOCABULARY.tokens[i].isascii() for i in found)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_format(name):
    grammar = compiled({"type": "string", "format": name})
    assert [v for v in FORMATS[name]["valid"] if not shown(grammar, v)] == []
    assert [v for v in FORMATS[name]["invalid"] if shown(grammar, v)] == []
    free = compiled({"type": "string", "format": name}, formats="annotation")
    assert all(shown(free, v) for v in FORMATS[name]["invalid"])


def test_every_enforced_format_has_cases():
    assert set(FORMATS) == ENFORCED


LOOSE = {
    "type": "object",
    "title": "t",
    "properties": {
        "tags": {"type": "array", "contains": {}, "uniqueItems": True},
        "uniqueItems": INT,
        "when": {"format": "color"},
    },
}


def test_weakened_keywords_are_ignored_and_named():
    grammar = compiled(LOOSE, weaken=["uniqueItems"])
    assert shown(grammar, {"tags": [1, 1]}) and not shown(grammar, {"uniqueItems": "x"})
    _, places = weakened(LOOSE, SchemaOptions(weaken=("uniqueItems",)))
    assert places == ["#/properties/tags/uniqueItems"]


def test_explain_gives_each_keyword_a_verdict():
    found = {(f.where, f.keyword): f.verdict for f in explain(LOOSE)}
    assert found == {
        ("#", "type"): "exact",
        ("#", "title"): "annotation",
        ("#", "properties"): "exact",
        ("#/properties/tags", "type"): "exact",
        ("#/properties/tags", "contains"): "exact",
        ("#/properties/tags", "uniqueItems"): "refused",
        ("#/properties/uniqueItems", "type"): "exact",
        ("#/properties/when", "format"): "annotation",
    }
    weaker = {(f.where, f.keyword): f.verdict for f in explain(LOOSE, weaken=["uniqueItems"])}
    assert weaker == {**found, ("#/properties/tags", "uniqueItems"): "weakened"}


def test_explain_finds_several_refusals_and_says_why():
    schema = {
        "items": {"uniqueItems": True, "contains": {}, "pattern": "(?=a)"},
        "minProperties": 4,
        "patternProperties": {"^a": {}},
        "not": {"additionalProperties": INT},
    }
    lines = [str(f) for f in explain(schema) if f.verdict == "refused"]
    assert len(lines) == 4
    assert any("look-ahead" in line and "#/items" in line for line in lines)
    assert any("together with contains" in line for line in lines)


@pytest.mark.parametrize(
    "options",
    [{"order": "sorted"}, {"integers": "hex"}, {"ascii": 1}, {"weaken": "type"}, {"formats": "none"}],
    ids=str,
)
def test_wrong_options_are_named(options):
    with pytest.raises(GrammarError, match=next(iter(options))):
        compiled({}, **options)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    color: Color


@dataclasses.dataclass
class Place:
    name: str
    kind: Literal["a", "b"]


@pytest.mark.parametrize(
    "kind,good,bad",
    [
        (Color, "red", "green"),
        (Point, {"x": 1, "color": "blue"}, {"x": "1", "color": "blue"}),
        (Place, {"name": "n", "kind": "a"}, {"name": "n", "kind": "c"}),
        (Literal["a", 1], 1, 2),
        (list[int], [1, 2], ["a"]),
        (int, 3, "a"),
    ],
    ids=str,
)
def test_python_types_are_schemas(kind, good, bad):
    pytest.importorskip("pydantic")
    grammar = compiled(kind)
    assert shown(grammar, good) and not shown(grammar, bad)


def test_python_types_need_pydantic(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(InvalidGrammarError, match="install pydantic"):
        canonical_schema(Place)


FRACTIONS = ("20.0", "20.00", "2e1", "2E1", "0.2e2", "20e0", "2.0e+1")


@pytest.mark.parametrize(
    "schema",
    [
        INT,
        {"type": ["integer", "null"]},
        {"anyOf": [INT, {"type": "null"}]},
        {"type": "integer", "multipleOf": 5},
        {"type": "integer", "minimum": 1, "maximum": 90},
        {"type": "integer", "exclusiveMinimum": 1.5},
        {"type": "number", "allOf": [{"type": "integer"}]},
        {"type": "integer", "not": {"const": 3}},
        {"type": "integer", "enum": [20.0, 3]},
        {"enum": [20, "a"]},
        {"allOf": [{"const": 20.0}, INT]},
        {"not": {"type": ["string", "object", "array", "null", "boolean"]}, "type": ["string", "integer"]},
    ],
    ids=str,
)
def test_an_integer_is_written_as_digits_alone(schema):
    grammar, loose = compiled(schema), compiled(schema, integers="json")
    assert accepts(grammar, "20") and accepts(loose, "20")
    assert not any(accepts(grammar, text) for text in FRACTIONS)
    for seed in range(20):
        text = walk(grammar.matcher(), random.Random(seed)).decode()
        assert text in ("null", '"a"') or re.fullmatch("-?(0|[1-9][0-9]*)", text), text
    many = compiled({"type": "array", "items": schema, "uniqueItems": True, "minItems": 1})
    assert accepts(many, "[20]") and not accepts(many, "[20.0]")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "number", "multipleOf": 5},
        {"type": "number", "enum": [20.0, 1.5]},
        {"type": ["number", "integer"]},
    ],
    ids=str,
)
def test_a_number_may_be_whole_and_written_with_a_point(schema):
    grammar = compiled(schema)
    assert accepts(grammar, "20") and accepts(grammar, "20.0")


def test_what_pydantic_calls_an_integer_is_read_by_its_strict_mode():
    pydantic = pytest.importorskip("pydantic")

    class Booking(pydantic.BaseModel, strict=True):
        guests: int
        rooms: int | None = None
        floor: Annotated[int, pydantic.Field(ge=-1, le=40)]
        step: Annotated[int, pydantic.Field(multiple_of=4)] = 4
        price: float

    grammar = compiled(Booking)
    for seed in range(30):
        Booking.model_validate_json(walk(grammar.matcher(), random.Random(seed)))


def test_each_whitespace_has_its_spelling() -> None:
    assert _CHOICES["whitespace"] == tuple(WHITESPACE)
