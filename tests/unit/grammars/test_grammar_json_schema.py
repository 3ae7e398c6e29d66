"""JSON Schema keyword by keyword: texts that pass, texts that do not, and what is refused."""

import json

import pytest
from grammar_support import JSON_PIECES, accepts, byte_vocabulary

from sgl.grammars import (
    GrammarError,
    GrammarLimitError,
    InvalidGrammarError,
    UnsupportedGrammarError,
    compile_json_schema,
    compile_regex,
)

VOCABULARY = byte_vocabulary(JSON_PIECES)
INT, STR = {"type": "integer"}, {"type": "string"}


def obj(properties, required=None, **more):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        **more,
    }


NODE = obj({"v": INT, "c": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, ["v"], additionalProperties=False)
DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}

CASES = {
    "type list": ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    "type boolean": ({"type": "boolean"}, ["true", "false"], ["null", "1"]),
    "nullable": ({"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
    "enum": ({"enum": ["a", 1, None, {"x": [1]}]}, ['"a"', "1", "null", '{"x": [1]}', '{"x":[1]}'], ['"b"', "2"]),
    "enum of strings beyond ASCII": ({"enum": ["é", "日"]}, ['"é"', '"\\u00e9"', '"日"'], ['"e"']),
    "const": ({"const": {"a": [1, 2]}}, ['{"a": [1, 2]}'], ['{"a": [1]}']),
    "const float": ({"const": 1.5}, ["1.5"], ["1", "1.50"]),
    "enum and type": ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    "properties": (obj({"a": INT, "b": STR}), ['{"a": 1, "b": "x"}', '{"a":1,"b":"x"}'], ['{"a": 1}', '{"a": "x"}']),
    "optional": (obj({"a": INT, "b": STR}, []), ["{}", '{"b": "x"}', '{"a": 1}'], ['{"a": "x"}', '{"b": 1}']),
    "additional absent": (obj({"a": INT}), ['{"a": 1, "z": true, "y": [{}]}'], ['{"a": 1, "z": }']),
    "additional false": (obj({"a": INT}, additionalProperties=False), ['{"a": 1}'], ['{"a": 1, "z": 1}']),
    "additional schema": (obj({"a": INT}, additionalProperties=STR), ['{"a": 1, "z": "q"}'], ['{"a": 1, "z": 1}']),
    "additional may not repeat": (
        obj({"a": INT}, [], additionalProperties=STR),
        ['{"z": "q"}', '{"ab": "q"}', '{"": "q"}'],
        ['{"a": "q"}', '{"\\u0061": "q"}'],
    ),
    "required stranger": ({"type": "object", "required": ["q"]}, ['{"q": 1}'], ["{}"]),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^x": INT}, "additionalProperties": False},
        ['{"x1": 1}', "{}"],
        ['{"x1": "a"}', '{"y": 1}'],
    ),
    "patternProperties and properties": (
        obj({"x1": {"minimum": 5}}, [], patternProperties={"^x": INT}),
        ['{"x1": 7, "y": "a"}', '{"x2": 1}'],
        ['{"x1": 3}', '{"x2": "a"}'],
    ),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"ab": 1}'], ['{"A1": 1}']),
    "minProperties": (
        obj({"a": INT, "b": INT, "c": INT}, [], additionalProperties=False, minProperties=2),
        ['{"a": 1, "c": 2}'],
        ['{"a": 1}', '{"c": 1}'],
    ),
    "minProperties 1": ({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    "maxProperties": (
        {"type": "object", "additionalProperties": INT, "maxProperties": 1},
        ['{"a": 1}', "{}"],
        ['{"a": 1, "b": 2}'],
    ),
    "maxProperties with names": (
        obj({"a": INT, "b": INT}, ["b"], maxProperties=1),
        ['{"b": 1}'],
        ['{"a": 1', '{"b": 1, "c": 1}'],
    ),
    "items": ({"type": "array", "items": INT}, ["[1, 2]", "[]", "[1,2]"], ['["a"]', "[1, ]", "[,1]"]),
    "prefixItems": (
        {"type": "array", "prefixItems": [INT, STR], "items": False},
        ['[1, "a"]', "[1]", "[]"],
        ['["a", 1]', '[1, "a", 2]'],
    ),
    "prefixItems and minItems": (
        {"type": "array", "prefixItems": [INT, STR], "minItems": 3},
        ['[1, "a", null]'],
        ['[1, "a"]'],
    ),
    "items list": (
        {**DRAFT7, "type": "array", "items": [INT, STR], "additionalItems": False},
        ['[1, "a"]'],
        ['["a", 1]', '[1, "a", 2]'],
    ),
    "minItems": ({"type": "array", "items": INT, "minItems": 2}, ["[1, 2]"], ["[1]"]),
    "maxItems": ({"type": "array", "items": INT, "maxItems": 2}, ["[1, 2]", "[]"], ["[1, 2, 3]"]),
    "maxItems 0": ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    "many items": (
        {"type": "array", "items": {"type": "array", "minItems": 4, "maxItems": 5}, "minItems": 4},
        ["[[1,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1]]"],
        ["[[1,1,1,1],[1,1,1,1],[1,1,1,1]]", "[[1,1,1]"],
    ),
    "uniqueItems of one": ({"type": "array", "items": INT, "uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1,1]"]),
    "minLength": (
        {"type": "string", "minLength": 3},
        ['"abc"', '"héé"', '"a\\nb"', '"😀😀😀"'],
        ['"ab"', '"\\n\\n"', '"😀😀"'],
    ),
    "maxLength": ({"type": "string", "maxLength": 3}, ['"abc"', '"日本語"', '""'], ['"abcd"']),
    "maxLength and escapes": (
        {"type": "string", "maxLength": 2},
        ['"\\ud83d\\ude00\\n"', '"\\u00e9a"'],
        ['"a\\nb"', '"\\u00e9\\u00e9a"'],
    ),
    "pattern": ({"type": "string", "pattern": "^[a-c]{2,3}$"}, ['"abc"'], ['"a"', '"abcd"']),
    "pattern searches": ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"acc"']),
    "pattern and escapes": ({"type": "string", "pattern": '^"\\\\$'}, ['"\\"\\\\"'], ['"\\""']),
    "pattern and controls": ({"type": "string", "pattern": "^\\n\\x01$"}, ['"\\n\\u0001"'], ['"n"']),
    "pattern and length": ({"type": "string", "pattern": "^a+$", "maxLength": 2}, ['"aa"'], ['"aaa"']),
    "pattern and odd length": ({"type": "string", "pattern": "^(ab)*$", "maxLength": 3}, ['"ab"', '""'], ['"aba']),
    "pattern beyond ASCII": ({"type": "string", "pattern": "^é$"}, ['"é"', '"\\u00e9"', '"\\u00E9"'], ['"e"']),
    "escapes of free strings": (
        STR,
        ['"\\u00e9"', '"\\u001f"', '"\\/"', '"\\ud83d\\ude00"'],
        ['"\\u12"', '"\\ud83d"', '"\\x"'],
    ),
    "raw controls": (STR, ['"a"'], ['"a\tb"', '"a\nb"']),
    "date": (
        {"format": "date", "type": "string"},
        ['"2026-11-20"', '"2024-02-29"', '"2000-02-29"'],
        ['"2026-13-20"', '"2023-02-29"', '"1900-02-29"', '"2026-04-31"'],
    ),
    "time": ({"format": "time", "type": "string"}, ['"10:00:00Z"', '"10:00:00.5+02:00"'], ['"25:00:00Z"']),
    "date-time": ({"format": "date-time", "type": "string"}, ['"2026-11-20T10:00:00Z"'], ['"yesterday"']),
    "email": ({"format": "email", "type": "string"}, ['"a.b@c.org"'], ['"a.b"', '"@c.org"']),
    "uuid": ({"format": "uuid", "type": "string"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123"']),
    "ipv4": ({"format": "ipv4", "type": "string"}, ['"10.0.0.255"'], ['"10.0.0.256"']),
    "ipv6": (
        {"format": "ipv6", "type": "string"},
        ['"::1"', '"fe80::1:2"', '"::ffff:1.2.3.4"', '"1:2:3:4:5:6:7:8"'],
        ['"g::1"', '"1::2::3"', '"1:2:3"'],
    ),
    "hostname": ({"format": "hostname", "type": "string"}, ['"a-b.org"'], ['"-a_"']),
    "uri": ({"format": "uri", "type": "string"}, ['"https://a.org/b?c=d#e"', '"mailto:a@b.c"'], ['"not a uri"']),
    "uri-reference": (
        {"format": "uri-reference", "type": "string"},
        ['"/a?b"', '"a/b#c"', '"https://a.org"', '""'],
        ['"a b"', '"{"'],
    ),
    "uri-template": ({"format": "uri-template", "type": "string"}, ['"http://a/{b}/{?c,d*}"'], ['"http://a/{"']),
    "duration": ({"format": "duration", "type": "string"}, ['"P1DT2H"', '"P3W"'], ['"1d"', '"P"']),
    "unknown format": ({"format": "color", "type": "string"}, ['"red"'], []),
    "integer bounds": (
        {"type": "integer", "minimum": -3, "maximum": 120},
        ["-3", "0", "120", "99"],
        ["121", "-4", "1.5"],
    ),
    "integer exclusive": ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, ["1", "9"], ["0", "10"]),
    "draft 4 exclusive": ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, ["1"], ["0"]),
    "number bounds": (
        {"type": "number", "minimum": 0, "maximum": 1},
        ["0", "0.5", "1", "1.0"],
        ["1.5", "-0.1", "1.01"],
    ),
    "fractional bounds": (
        {"type": "number", "minimum": 0.25, "maximum": 1.75},
        ["0.25", "1.7", "1", "0.3"],
        ["0.2", "1.8", "1.751"],
    ),
    "negative bounds": (
        {"type": "number", "exclusiveMaximum": -1.5},
        ["-1.6", "-2", "-1.51"],
        ["-1.5", "-1.50", "0", "-1"],
    ),
    "number": ({"type": "number"}, ["1e5", "-1.5E-3", "0", "-0.0"], ["01", "1.", ".5", "+1"]),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, ["10", "15", "0", "-5"], ["12"]),
    "multipleOf and bounds": (
        {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 30},
        ["14", "28"],
        ["7", "35", "15"],
    ),
    "multipleOf 0.01": ({"type": "number", "multipleOf": 0.01}, ["1.25"], ["1.255"]),
    "anyOf": ({"anyOf": [INT, STR]}, ["1", '"a"'], ["null"]),
    "anyOf of objects": (
        {"anyOf": [obj({"k": {"const": "a"}, "v": INT}), obj({"k": {"const": "b"}, "v": STR})]},
        ['{"k": "a", "v": 1}', '{"k": "b", "v": "s"}'],
        ['{"k": "a", "v": "s"}'],
    ),
    "anyOf and siblings": (
        {**obj({"a": INT}), "anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1}', '{"a": "x", "b": 2}'],
    ),
    "oneOf disjoint": ({"oneOf": [INT, STR]}, ["1", '"a"'], ["null"]),
    "oneOf by a tag": (
        {"oneOf": [obj({"k": {"const": "a"}, "v": INT}), obj({"k": {"const": "b"}})]},
        ['{"k": "a", "v": 1}', '{"k": "b"}'],
        ['{"k": "a", "v": "s"}'],
    ),
    "oneOf overlapping": ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, ["1", "2.5"], ["3"]),
    "allOf": ({"allOf": [obj({"a": INT}), obj({"b": STR})]}, ['{"a": 1, "b": "x"}'], ['{"a": 1}']),
    "allOf and siblings": (
        {**obj({"a": INT}), "allOf": [{"properties": {"a": {"maximum": 5}}}]},
        ['{"a": 5}'],
        ['{"a": 6}'],
    ),
    "allOf patterns": (
        {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
        ['"ab"', '"a b"'],
        ['"a"', '"b"'],
    ),
    "not const": ({"type": "string", "not": {"const": "a"}}, ['"b"', '"aa"'], ['"a"']),
    "not type": ({"not": {"type": ["string", "object", "array"]}}, ["1", "null"], ['"a"', "{}"]),
    "not not": ({"not": {"not": INT}}, ["1"], ['"a"']),
    "not required": ({**obj({"a": INT}, []), "not": {"required": ["b"]}}, ['{"a": 1}'], ['{"a": 1, "b": 1}']),
    "if then else": (
        {"type": "object", "properties": {"a": INT, "b": STR}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        ['{"a": 1, "b": "x"}', "{}"],
        ['{"a": 1}'],
    ),
    "dependentRequired": (
        {"type": "object", "properties": {"a": INT, "b": STR}, "dependentRequired": {"a": ["b"]}},
        ['{"a": 1, "b": "x"}', "{}"],
        ['{"a": 1}'],
    ),
    "dependentSchemas": (
        {"type": "object", "properties": {"a": INT}, "dependentSchemas": {"a": {"required": ["c"]}}},
        ['{"a": 1, "c": 2}', "{}"],
        ['{"a": 1}'],
    ),
    "$ref": ({"$defs": {"p": INT}, "type": "array", "items": {"$ref": "#/$defs/p"}}, ["[1]"], ['["a"]']),
    "$ref recursive": (
        {"$defs": {"n": NODE}, "$ref": "#/$defs/n"},
        ['{"v": 1, "c": [{"v": 2, "c": [{"v": 3, "c": []}]}]}'],
        ['{"v": 1, "c": [{"c": []}]}'],
    ),
    "$ref and siblings": ({"$defs": {"p": INT}, "$ref": "#/$defs/p", "minimum": 3}, ["3"], ["2", '"a"']),
    "$ref alone in draft 7": (
        {**DRAFT7, "definitions": {"p": INT}, "$ref": "#/definitions/p", "minimum": 3},
        ["2"],
        ['"a"'],
    ),
    "$anchor": ({"$defs": {"p": {"$anchor": "pp", "type": "integer"}}, "$ref": "#pp"}, ["3"], ['"a"']),
    "$id": (
        {"$id": "http://a.b/root", "$defs": {"p": {"$id": "inner", "type": "integer"}}, "$ref": "inner"},
        ["3"],
        ['"a"'],
    ),
    "escaped pointer": ({"$defs": {"a/b~c": INT}, "$ref": "#/$defs/a~1b~0c"}, ["3"], ['"a"']),
    "anything": ({}, ['[{"x": [null, {"y": 1.5}]}]', '"a"', "1", "null"], ["[}", '{"a"}']),
    "true": (True, ["[]"], ["]"]),
    "false property": (obj({"a": False, "b": INT}, []), ['{"b": 1}', "{}"], ['{"a": 1}']),
    "unevaluatedProperties": (obj({"a": INT}, unevaluatedProperties=False), ['{"a": 1}'], ['{"a": 1, "b": 2}']),
    "name beyond ASCII": (obj({"né": INT}), ['{"né": 1}', '{"n\\u00e9": 1}'], ['{"ne": 1}']),
    "dead branch": (
        {"anyOf": [{"$ref": "#/$defs/x"}, INT], "$defs": {"x": obj({"x": {"$ref": "#/$defs/x"}})}},
        ["1"],
        ["{"],
    ),
}


@pytest.mark.parametrize("schema,good,bad", CASES.values(), ids=CASES.keys())
def test_keyword(schema, good, bad):
    grammar = compile_json_schema(schema, VOCABULARY)
    assert [t for t in good if not accepts(grammar, t)] == []
    assert [t for t in bad if accepts(grammar, t)] == []


REFUSED = [
    ({"type": "array", "items": {"type": "string", "pattern": "^[a-z]$"}, "uniqueItems": True}, "uniqueItems", "#"),
    (
        {"properties": {"a/b": {"contains": {}, "uniqueItems": True, "items": {"type": "boolean"}}}},
        "uniqueItems",
        "#/properties/a~1b",
    ),
    ({"type": "string", "pattern": "a(?=b)"}, "look-ahead (?=", "#/pattern"),
    ({"$ref": "http://elsewhere/schema"}, "$ref", "#"),
    ({"type": "object", "minProperties": 3, "patternProperties": {"^a": {}}}, "minProperties", "#"),
    ({"type": "number", "multipleOf": 1.0001}, "multipleOf", "#"),
    ({"oneOf": [{"properties": {"a": INT}}, {"patternProperties": {"b": STR}}]}, "oneOf", "#"),
    ({"not": {"additionalProperties": INT}}, "not", "#"),
    ({"type": "string", "minLenght": 3}, "minLenght", "#"),
]


@pytest.mark.parametrize("schema,keyword,where", REFUSED, ids=[c[1] for c in REFUSED])
def test_refused_by_keyword_and_place(schema, keyword, where):
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_json_schema(schema, VOCABULARY)
    assert caught.value.keyword == keyword
    assert caught.value.where.split(",")[0] == where
    assert keyword in str(caught.value) and where in str(caught.value)


INVALID = [
    ("{", "not JSON", ""),
    ({"type": "strnig"}, "'strnig'", "#/type"),
    ({"properties": {"a": {"minLength": -1}}}, "-1", "#/properties/a/minLength"),
    ({"properties": []}, "[]", "#/properties"),
    ({"required": "a"}, "'a'", "#/required"),
    ({"enum": 3}, "3", "#/enum"),
    ({"items": 3}, "3", "#/items"),
    ({"pattern": "("}, "'('", "#/pattern"),
    ({"$ref": "#/nowhere"}, "'#/nowhere'", "#"),
    ({"$ref": "#"}, "itself", "#"),
    ({"anyOf": []}, "[]", "#/anyOf"),
    ({"maximum": "x"}, "'x'", "#/maximum"),
    ({"multipleOf": 0}, "0", "#/multipleOf"),
    (False, "no value", "#"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "no value", "#"),
    (7, "7", ""),
    ({"const": {1, 2}}, "not JSON", ""),
]


@pytest.mark.parametrize("schema,value,where", INVALID, ids=[str(c[0]) for c in INVALID])
def test_invalid_names_value_and_place(schema, value, where):
    with pytest.raises(InvalidGrammarError) as caught:
        compile_json_schema(schema, VOCABULARY)
    assert value in str(caught.value) and where in caught.value.where


def test_unknown_options_name_the_nearest():
    with pytest.raises(GrammarError, match="did you mean 'whitespace'"):
        compile_json_schema({}, VOCABULARY, whitspace="compact")
    with pytest.raises(GrammarError, match="did you mean 'compact'"):
        compile_json_schema({}, VOCABULARY, whitespace="compac")


VALUE = {"a": [1, {"b": None}], "c": "x y", "d": [], "e": {}}


@pytest.mark.parametrize(
    "whitespace,good,bad",
    [
        ("default", [(", ", ": "), (",", ":"), (", ", ":")], [(" ,", ":"), (",  ", ":")]),
        ("compact", [(",", ":")], [(", ", ": "), (",", ": ")]),
        ("free", [(" , ", "  :\n"), (",", ":")], []),
    ],
)
def test_whitespace(whitespace, good, bad):
    grammar = compile_json_schema({}, VOCABULARY, whitespace=whitespace)
    assert all(accepts(grammar, json.dumps(VALUE, separators=s)) for s in good)
    assert not any(accepts(grammar, json.dumps(VALUE, separators=s)) for s in bad)


def test_indented():
    grammar = compile_json_schema({}, VOCABULARY, whitespace="indented")
    assert accepts(grammar, json.dumps(VALUE, indent=2)) and accepts(grammar, json.dumps(VALUE, indent=4))
    assert not accepts(grammar, json.dumps(VALUE))


def test_additional_properties_option():
    schema = obj({"a": obj({"b": INT})})
    closed = compile_json_schema(schema, VOCABULARY, additional_properties=False)
    assert accepts(closed, '{"a": {"b": 1}}') and not accepts(closed, '{"a": {"b": 1}, "c": 1}')
    assert accepts(compile_json_schema(schema, VOCABULARY), '{"a": {"b": 1}, "c": 1}')


def test_schema_forms():
    pydantic = pytest.importorskip("pydantic")

    class Pet(pydantic.BaseModel):
        name: str
        age: int | None = None

    grammar = compile_json_schema(Pet, VOCABULARY)
    assert accepts(grammar, '{"name": "Rex", "age": null}') and accepts(grammar, '{"name": "Rex"}')
    assert not accepts(grammar, '{"age": 3}')
    assert compile_json_schema(json.dumps(Pet.model_json_schema()), VOCABULARY) is grammar


def test_keys_keep_the_schemas_order():
    grammar = compile_json_schema(obj({"b": INT, "a": INT}), VOCABULARY)
    assert accepts(grammar, '{"b": 1, "a": 2}') and not accepts(grammar, '{"a": 2, "b": 1}')


def test_a_schema_is_copied():
    schema = obj({"a": {"enum": ["x"]}})
    grammar = compile_json_schema(schema, VOCABULARY)
    schema["properties"]["a"]["enum"].append("y")
    assert not accepts(grammar, '{"a": "y"}')


def test_deep_nesting():
    grammar = compile_json_schema({}, VOCABULARY)
    assert accepts(grammar, "[" * 200 + "]" * 200)
    assert not accepts(grammar, "[" * 200 + "]" * 201)


def test_wide_objects():
    grammar = compile_json_schema(obj({f"k{i}": INT for i in range(600)}, []), VOCABULARY)
    assert accepts(grammar, '{"k0":1,"k599":2}') and not accepts(grammar, '{"k599":1,"k0":2}')


def test_too_deep_is_said():
    with pytest.raises(GrammarLimitError, match="deeply"):
        compile_regex("(?:a" * 3000 + ")?" * 3000, VOCABULARY)


@pytest.mark.parametrize("order", ["schema", "any"])
def test_half_of_a_surrogate_pair_is_spelled_by_its_escape(order):
    constant = compile_json_schema({"enum": ["\ud800", "a"]}, VOCABULARY, order=order)
    assert accepts(constant, '"\\ud800"') and accepts(constant, '"a"') and not accepts(constant, '"\\ud801"')
    named = compile_json_schema({"properties": {"\ud800": {"type": "null"}}}, VOCABULARY, order=order)
    assert accepts(named, '{"\\ud800": null}') and not accepts(named, '{"\\ud800": 1}')
