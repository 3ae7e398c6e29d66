"""The types that a member of an object may have, against what the `jsonschema` library says of values of all types."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar_schema_oracle import schemas

from sgl.grammars.schema.member_types import ALL_TYPES, member_types, type_of

jsonschema = pytest.importorskip("jsonschema")
VALUES = [None, True, False, 0, 12, -3, 12.0, 0.5, -1.25, "", "a", "12", "null", [], [12], {}, {"a": 12}, {"z": None}]
DEFS = {
    "pick": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "a b%": {"type": "string"},
    "x/y~": {"type": "string"},
}
DEFS |= {
    "named": {"$anchor": "there", "type": "string"},
    "far": {"$id": "http://a.b/c", "$defs": {"in": {"type": "string"}}, "type": "array"},
}
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
MEMBERS = [
    STRING,
    {"type": ["string", "null"]},
    {"type": "string", "nullable": True},
    {"enum": ["12", None]},
    {"const": "12"},
    {"const": 12.0},
    {"$ref": "#/$defs/pick/anyOf/0"},
    {"$ref": "#/$defs/pick/anyOf/1"},
    {"$ref": "#there"},
    {"$ref": "#/$defs/a%20b%25"},
    {"$ref": "#/$defs/x~1y~0"},
    {"$ref": "http://a.b/c#/$defs/in"},
    {"$ref": "http://a.b/c"},
    {"$ref": "#/properties/other"},
    {"$dynamicRef": "#there"},
    {"allOf": [{"type": ["string", "integer"]}, STRING]},
    {"anyOf": [STRING, {"type": "null"}]},
    {"oneOf": [{}, INTEGER]},
    {"oneOf": [STRING, INTEGER]},
    {"not": INTEGER},
    {"not": {"type": ["integer", "number", "object"]}},
    {"type": ["string", "number"], "not": INTEGER},
    {"not": {"not": STRING}},
    {"not": {"enum": [None, True, False]}},
    {"if": INTEGER, "then": False, "else": {"type": ["string", "null", "integer"]}},
    {"$ref": "#/$defs/pick", "not": INTEGER},
    {"type": ["string", "integer"], "maximum": 3, "minimum": 7},
    {"type": ["string", "integer"], "maxLength": 3, "minLength": 7},
    {"type": "number", "multipleOf": 0.5},
    {"minLength": 1},
    {"properties": {"a": {}}},
    {},
    True,
    {"type": ["string", "array"], "enum": ["12", 12, [12]]},
    {"pattern": "(?=a)a", "type": ["string", "null"]},
]


def stated(schema, values):
    return {type_of(value) for value in values if jsonschema.Draft202012Validator(schema).is_valid({"p": value})}


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_types_are_those_of_valid_values(member):
    schema = {"type": "object", "properties": {"p": member, "other": STRING}, "$defs": DEFS}
    judged = {
        **schema,
        "properties": {
            "p": {"type": ["string", "null"]} if "pattern" in str(member) or "nullable" in str(member) else member,
            "other": STRING,
        },
    }
    assert member_types(schema, "p") == stated(judged, VALUES)


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": STRING},
        {"patternProperties": {"^p": STRING}},
        {"allOf": [{"properties": {"p": {"type": ["string", "integer"]}}}, {"additionalProperties": STRING}]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"p": STRING}}}},
        {"anyOf": [{"properties": {"p": STRING}}, {"properties": {"p": {"type": "null"}}}]},
        {"properties": {"p": {}}, "if": {"properties": {"p": INTEGER}}, "then": False},
        {"dependentSchemas": {"p": {"properties": {"p": STRING}}}},
        {"properties": {"p": {"type": ["string", "integer"]}}, "not": {"properties": {"p": INTEGER}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"x": {"$id": "#x", "type": "string"}},
            "properties": {"p": {"$ref": "#x", "type": "integer"}},
        },
        {"enum": [{"p": "12"}, {"p": None}, {"q": 12}]},
    ],
    ids=str,
)
def test_all_that_speaks_of_a_member_counts(schema):
    judge = jsonschema.validators.validator_for(schema)(schema)
    assert member_types(schema, "p") == {type_of(value) for value in VALUES if judge.is_valid({"p": value})}


@settings(max_examples=150, deadline=None)
@given(st.lists(schemas, min_size=1, max_size=2), st.sampled_from(["properties", "additionalProperties", "allOf"]))
def test_no_type_of_a_valid_value_is_missing(members, how):
    named = [{"properties": {"p": member}} for member in members]
    schema = {
        "properties": named[0],
        "additionalProperties": {"additionalProperties": members[0]},
        "allOf": {"allOf": named},
    }[how]
    schema = named[0] if how == "properties" else schema
    assert stated(schema, VALUES) <= member_types(schema, "p")


@pytest.mark.parametrize(
    "schema",
    [
        None,
        3,
        True,
        {},
        {"properties": 3},
        {"properties": {"p": {"type": "strng"}}},
        {"properties": {"p": {"$ref": "#/nowhere"}}},
    ]
    + [
        {"properties": {"p": {"$ref": "#/properties/p"}}},
        {"properties": {"q": STRING}},
        {"properties": {"p": False}},
        {"properties": {"p": {"const": {1, 2}}}},
    ],
    ids=str,
)
def test_where_a_schema_does_not_say_all_types_count(schema):
    assert member_types(schema, "p") == ALL_TYPES


def test_schemas_that_lead_back_to_themselves_have_their_types():
    tree = {"anyOf": [STRING, {"type": "array", "items": {"$ref": "#/properties/p"}}]}
    assert member_types({"properties": {"p": tree}}, "p") == {"string", "array"}


def test_the_work_is_bounded(monkeypatch):
    """Where it is too much, what the object itself says of the member counts."""
    branches = [{"properties": {f"k{i}": STRING, "k": {"enum": [i, i + 1]}}} for i in range(120)]
    for heavy in (
        {"oneOf": branches},
        {"not": {"anyOf": branches}},
        {"allOf": [{"anyOf": branches[:60]}, {"anyOf": branches[60:]}]},
    ):
        counted = []
        monkeypatch.setattr("sgl.grammars.schema.schema_shapes.SchemaShape.meet", _counting(counted))
        assert member_types(json.loads(json.dumps({"properties": {"p": STRING}, **heavy})), "p") == {"string"}
        monkeypatch.undo()
        assert len(counted) < 10_000


def _counting(counted):
    from sgl.grammars.schema.schema_shapes import SchemaShape

    meet = SchemaShape.meet
    return lambda *given: counted.append(1) or meet(*given)
