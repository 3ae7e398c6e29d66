"""Closed objects (`additional_properties=False`, the arguments of tools) against what the
`jsonschema` library finds valid and evaluated.
"""

import itertools
import json
import random
import re
from contextlib import suppress

import pytest
from grammar_support import JSON_PIECES, byte_vocabulary, many, walk

from sgl.grammars import (
    GrammarError,
    GrammarLimitError,
    InvalidGrammarError,
    UnsupportedGrammarError,
    compile_json_schema,
    compile_structural,
    explain,
)
from sgl.runtime.dialects import Tool

jsonschema = pytest.importorskip("jsonschema")
VOCABULARY = byte_vocabulary(JSON_PIECES)
CLOSED = "x-additional-properties"
DEFS = {"$defs": {"a b": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}, "free": {"type": "object"}}}


def obj(*names, **more):
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}, **more}


def closed(schema, **options):
    return compile_json_schema({**schema, CLOSED: False}, VOCABULARY, **options)


def takes(grammar, value):
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in json.dumps(value).encode()) and matcher.can_end


# --- a slow oracle: which ways to satisfy a schema declare all members -------------------------------------------


class Oracle:
    def __init__(self, schema):
        self._root = schema

    def takes(self, value):
        return self._valid(self._root, value) and self._closed([self._root], value)

    def _valid(self, schema, value):
        shared = {} if isinstance(schema, bool) else {**schema, **DEFS}
        return jsonschema.Draft202012Validator(shared if isinstance(schema, dict) else schema).is_valid(value)

    def _closed(self, schemas, value):
        if not isinstance(value, dict):
            return True
        return any(
            self._complete(ways, value) for ways in itertools.product(*(self._ways(s, value, False) for s in schemas))
        )

    def _complete(self, ways, value):
        children, closes, free = {}, False, False
        for names, way_closes, way_free in ways:
            closes, free = closes or way_closes, free or way_free
            for name, inner in names:
                children.setdefault(name, []).extend(inner)
        if closes and not free and not value.keys() <= children.keys():
            return False
        return all(self._closed(inner, value[name]) for name, inner in children.items())

    def _ways(self, schema, value, quiet):
        """Each way: (members with the schemas of their values, whether it closes
        the object, whether it takes any member).
        """
        if isinstance(schema, bool):
            return [((), False, False)]
        parts = [self._own(schema, value, quiet)]
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/").replace("%20", " ")
            parts.append(self._ways(DEFS["$defs"][name], value, quiet))
        parts += [self._ways(branch, value, quiet) for branch in schema.get("allOf", ())]
        if "oneOf" in schema:
            parts += [self._ways(branch, value, quiet) for branch in schema["oneOf"] if self._valid(branch, value)]
        if "anyOf" in schema:
            parts.append(self._any([branch for branch in schema["anyOf"] if self._valid(branch, value)], value, quiet))
        parts += [
            self._ways(inner, value, quiet)
            for name, inner in schema.get("dependentSchemas", {}).items()
            if name in value
        ]
        if "if" in schema:
            holds = self._valid(schema["if"], value)
            parts += [self._ways(schema["if"], value, True)] if holds else []
            parts.append(self._ways(schema.get("then" if holds else "else", True), value, quiet))
        return [joined(chosen) for chosen in itertools.product(*parts)]

    def _any(self, branches, value, quiet):
        found = []
        for count in range(1, len(branches) + 1):
            for chosen in itertools.combinations(branches, count):
                found += [joined(ways) for ways in itertools.product(*(self._ways(b, value, quiet) for b in chosen))]
        return found

    def _own(self, schema, value, quiet):
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        names = [(name, [] if quiet else [properties[name]]) for name in value if name in properties]
        names += [(name, []) for name in value for pattern in patterns if re.search(pattern, name)]
        return [(tuple(names), "properties" in schema and not quiet, "additionalProperties" in schema)]


def joined(ways):
    return (
        tuple(itertools.chain(*(names for names, _, _ in ways))),
        any(c for _, c, _ in ways),
        any(f for _, _, f in ways),
    )


# --- random schemas --------------------------------------------------------------------------------------------

SCALARS = [{"type": "integer"}, {"const": "s"}, {"type": ["integer", "null"]}, True, {}]
KINDS = ("allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$ref")


def flat(draw, plain=False):
    """An object schema; not `plain`: it may say something of other members itself."""
    names = draw.sample("abc", draw.choice([1, 1, 2]))
    schema = {"properties": {name: draw.choice(SCALARS) for name in names}}
    if draw.random() < 0.4:
        schema["required"] = draw.sample("abc", 1)
    if draw.random() < 0.3:
        schema["type"] = "object"
    if plain:
        return schema
    if draw.random() < 0.2:
        del schema["properties"]
    if draw.random() < 0.15:
        schema["additionalProperties"] = draw.choice([True, False, {"type": "integer"}])
    if draw.random() < 0.15:
        schema["patternProperties"] = {"^x": {"type": "integer"}}
    if draw.random() < 0.1:
        schema["type"] = ["object", "null"]
    return schema


def composed(draw, depth, plain=False):
    schema = flat(draw, plain)
    if not depth:
        return schema
    if draw.random() < 0.5:
        schema = {"properties": {}} if plain else {}
    for kind in draw.sample(KINDS, draw.choice([1, 1, 2])):
        several = [
            composed(draw, depth - draw.choice([1, 2]) if depth > 1 else 0, plain)
            for _ in range(draw.choice([2, 2, 3]))
        ]
        if kind == "if":
            schema |= {"if": flat(draw, True), "then": several[0], "else": several[1]}
        elif kind == "dependentSchemas":
            schema[kind] = {draw.choice("abc"): several[0]}
        else:
            schema[kind] = "#/$defs/" + draw.choice(["a%20b", "free"]) if kind == "$ref" else several
    return schema


def value_of(draw):
    return {name: draw.choice([1, 1, "s", None]) for name in draw.sample("abcxz", draw.choice([0, 1, 1, 2, 2, 3]))}


def texts(grammar, draw, count):
    found = []
    with suppress(GrammarLimitError):  # a walk that is cut asks for an end, which may be too much to look for
        for _ in range(count):
            found.append(json.loads(walk(grammar.matcher(), random.Random(draw.random()), most=40)))
    return found


def test_random_objects_hold_what_their_schemas_declare():
    draw, tried, taken = random.Random(11), 0, 0
    for _ in range(many(150)):
        schema = composed(draw, draw.choice([0, 1, 1, 2]))
        if draw.random() < 0.4:
            schema["properties"] = {**schema.get("properties", {}), "u": composed(draw, 1)}
        oracle, values = Oracle(schema), [value_of(draw) for _ in range(8)]
        values += [{**value, "u": value_of(draw)} for value in values]
        try:
            grammar = closed({**schema, **DEFS}, order="any")
        except InvalidGrammarError:
            assert not any(map(oracle.takes, values)), schema
            continue
        except UnsupportedGrammarError:
            continue
        tried += 1
        for value in values:
            taken += oracle.takes(value)
            assert takes(grammar, value) == oracle.takes(value), (schema, value)
        for value in texts(grammar, draw, 4):
            assert oracle.takes(value) if isinstance(value, dict) else oracle._valid(schema, value), (schema, value)
    assert tried > 80 and taken > 300  # most schemas can be said, and many values fit


def test_one_object_is_closed_as_by_unevaluated_properties():
    draw, tried = random.Random(12), 0
    for _ in range(many(120)):
        schema = {
            "type": "object",
            "properties": {"k": {}},
            "allOf": [composed(draw, draw.choice([1, 1, 2]), plain=True)],
        }
        judge = jsonschema.Draft202012Validator({**schema, **DEFS, "unevaluatedProperties": False})
        values = [value_of(draw) for _ in range(10)]
        try:
            grammar = closed({**schema, **DEFS}, order="any")
        except GrammarError as error:
            assert isinstance(error, UnsupportedGrammarError) or not any(map(judge.is_valid, values)), schema
            continue
        tried += 1
        for value in values:
            assert takes(grammar, value) == judge.is_valid(value), (schema, value)
        assert all(map(judge.is_valid, texts(grammar, draw, 4))), schema
    assert tried > 70


# --- where objects are closed ------------------------------------------------------------------------------------

A, B = obj("a", required=["a"]), obj("b", required=["b"])
PLACES = {
    "a property": (lambda inner: {"type": "object", "properties": {"u": inner}}, lambda value: {"u": value}),
    **{
        f"a property called {name}": (
            lambda inner, name=name: {"type": "object", "properties": {name: inner}},
            lambda value, name=name: {name: value},
        )
        for name in ("default", "const", "enum", "examples", "not", "if", "properties", "$ref")
    },
    "items": (lambda inner: {"type": "array", "items": inner}, lambda value: [value]),
    "prefixItems": (lambda inner: {"type": "array", "prefixItems": [inner]}, lambda value: [value]),
    "additionalProperties": (
        lambda inner: {"type": "object", "additionalProperties": inner},
        lambda value: {"z": value},
    ),
    "patternProperties": (
        lambda inner: {"type": "object", "patternProperties": {"^x": inner}},
        lambda value: {"x": value},
    ),
    "anyOf": (lambda inner: {"anyOf": [{"type": "null"}, inner]}, lambda value: value),
    "oneOf": (lambda inner: {"oneOf": [{"type": "null"}, inner]}, lambda value: value),
    "allOf": (lambda inner: {"allOf": [{}, inner]}, lambda value: value),
    "then": (lambda inner: {"if": True, "then": inner}, lambda value: value),
    "else": (lambda inner: {"if": False, "else": inner}, lambda value: value),
    "dependentSchemas": (lambda inner: {"dependentSchemas": {"a": inner}}, lambda value: value),
    "$ref": (lambda inner: {"$ref": "#/$defs/x", "$defs": {"x": inner}}, lambda value: value),
    "$anchor": (lambda inner: {"$ref": "#there", "$defs": {"x": {"$anchor": "there", **inner}}}, lambda value: value),
    "$id": (
        lambda inner: {"$ref": "http://a.b/c", "$defs": {"x": {"$id": "http://a.b/c", **inner}}},
        lambda value: value,
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "kind", [{"type": "object"}, {"type": ["object", "null"]}, {}, {"nullable": True, "type": "object"}], ids=str
)
def test_an_object_is_closed_wherever_it_stands(place, kind):
    around, value_at = PLACES[place]
    schema = around({**kind, "properties": {"a": {"type": "integer"}}, "default": {"z": 1}})
    for grammar in (closed(schema), compile_json_schema(schema, VOCABULARY, additional_properties=False)):
        assert takes(grammar, value_at({"a": 1})) and not takes(grammar, value_at({"a": 1, "z": 1}))
    assert takes(compile_json_schema(schema, VOCABULARY), value_at({"a": 1, "z": 1}))


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"allOf": [A, B]}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}),
        ({"allOf": [obj("a"), obj("b")]}, {"b": 1}, {"c": 1}),
        ({**obj("k"), "anyOf": [A, B]}, {"k": 0, "a": 1, "b": 2}, {"k": 0}),
        ({**obj("k"), "anyOf": [A, B]}, {"k": 0, "a": 1}, {"k": 0, "a": 1, "b": "x"}),
        ({**obj("k"), "oneOf": [A, B]}, {"b": 1, "k": 0}, {"k": 0, "a": 1, "b": 2}),
        (
            {**obj("k"), "if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": A, "else": B},
            {"k": 2, "b": 1},
            {"k": 1, "b": 1},
        ),
        ({**obj("k"), "dependentSchemas": {"k": A}}, {"k": 1, "a": 2}, {"a": 2}),
        ({"$ref": "#/$defs/a%20b", **obj("b"), **DEFS}, {"a": 1, "b": 2}, {"a": 1, "z": 2}),
        (
            {"allOf": [{"properties": {"u": A}}, {"properties": {"u": B}}]},
            {"u": {"a": 1, "b": 2}},
            {"u": {"a": 1, "b": 2, "c": 3}},
        ),
        ({**obj("a"), "patternProperties": {"^x": {}}}, {"a": 1, "x1": 2}, {"a": 1, "z": 2}),
        ({**obj("a"), "additionalProperties": {"type": "integer"}}, {"a": 1, "z": 2}, {"a": 1, "z": "s"}),
        ({**obj("a"), "unevaluatedProperties": {"type": "integer"}}, {"a": 1, "z": 2}, {"a": 1, "z": "s"}),
        ({"allOf": [obj("a"), {"additionalProperties": True}]}, {"a": 1, "z": 2}, {"a": "s"}),
        (obj(), {}, {"z": 1}),
        ({"type": "object"}, {"z": 1}, [1]),
        ({"type": "object", "required": ["z"]}, {"z": 1, "y": 2}, {"y": 2}),
        ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, {"z": "s"}, {"x": "s"}),
        ({"anyOf": [A, {"type": "object", "required": ["z"]}]}, {"z": 1, "y": 2}, {"a": 1, "y": 2}),
        ({**obj("a"), "not": obj("a", "b", required=["a", "b"])}, {"a": 1}, {"a": 1, "b": 1}),
        (
            {"type": "object", "if": obj("a", required=["a"]), "then": {"required": ["y"]}},
            {"a": 1, "y": 2, "z": 3},
            {"a": 1, "z": 3},
        ),
        (
            {"properties": {"u": {"type": "object"}}, "if": {"properties": {"u": A}}, "then": {"required": ["u"]}},
            {"u": {"a": 1, "z": 2}},
            {"z": 1},
        ),
        ({"type": "array", "items": {"type": "object"}, "contains": A}, [{"z": 1}, {"a": 1, "z": 2}], [{"z": 1}]),
        ({"enum": [{"properties": {"a": 1}, "b": 2}]}, {"properties": {"a": 1}, "b": 2}, {"properties": {"a": 1}}),
        (
            {"properties": {"u": {"const": {"type": "object", "properties": {}}}}},
            {"u": {"type": "object", "properties": {}}},
            {"z": 1},
        ),
        (
            {"properties": {"u": {"enum": [{"v": {"a": 1}}, {"v": {"a": 1, "z": 1}}], "properties": {"v": A}}}},
            {"u": {"v": {"a": 1}}},
            {"u": {"v": {"a": 1, "z": 1}}},
        ),
    ],
    ids=lambda given: json.dumps(given)[:60],
)
def test_members_that_some_schema_declares_are_taken(schema, right, wrong):
    for grammar in (
        closed(schema, order="any"),
        compile_json_schema(schema, VOCABULARY, order="any", additional_properties=False),
    ):
        assert takes(grammar, right) and not takes(grammar, wrong)


def test_the_members_of_several_schemas_come_in_any_order():
    grammar = closed({"allOf": [A, B]})
    assert takes(grammar, {"a": 1, "b": 2}) and takes(grammar, {"b": 2, "a": 1})
    grammar = closed(obj("a", "b"))
    assert takes(grammar, {"a": 1, "b": 2}) and not takes(grammar, {"b": 2, "a": 1})


def test_many_branches_are_no_reason_to_refuse():
    """Where too many of them may hold together, a text keeps to one."""
    grammar = closed({"anyOf": [obj(f"a{i}") for i in range(150)]})
    assert takes(grammar, {"a149": 1}) and not takes(grammar, {"a": 1}) and not takes(grammar, {"a1": 1, "a2": 1})
    grammar = closed(
        {
            "anyOf": [
                {"type": "object", "properties": {f"a{i}": {}, "k": {"const": i}}, "required": ["k"]} for i in range(90)
            ]
        }
    )
    assert takes(grammar, {"a17": 1, "k": 17}) and not takes(grammar, {"a16": 1, "k": 17})


def test_resources_are_closed_too():
    grammar = closed({"$ref": "mem:one"}, resources={"mem:one": A})
    assert takes(grammar, {"a": 1}) and not takes(grammar, {"a": 1, "z": 2})


@pytest.mark.parametrize("style", ["qwen_xml", "json"])
def test_the_values_of_parameters_are_closed(style):
    schema = {
        CLOSED: False,
        "type": "object",
        "properties": {"u": {"$ref": "#/$defs/a"}},
        "required": ["u"],
        "$defs": {"a": {"allOf": [A, B]}},
    }
    spec = {"type": "json_schema", "json_schema": schema, **({} if style == "json" else {"style": style})}
    texts = ['{"u": %s}', "<parameter=u>%s</parameter>"]
    for value, right in (('{"a": 1, "b": 2}', True), ('{"a": 1, "b": 2, "z": 3}', False)):
        matcher = compile_structural(spec, VOCABULARY).matcher()
        text = texts[style != "json"] % value
        assert (all(map(matcher.accept, text.encode())) and matcher.can_end) == right


def test_the_keyword_is_read_at_the_root_alone_and_is_true_or_false():
    inner = {"properties": {"u": {CLOSED: False, **A}}}
    assert takes(compile_json_schema(inner, VOCABULARY), {"u": {"a": 1, "z": 2}})
    assert takes(compile_json_schema({CLOSED: True, **A}, VOCABULARY, additional_properties=False), {"a": 1, "z": 2})
    with pytest.raises(InvalidGrammarError, match="x-additional-properties must be true or false, not 'no'"):
        compile_json_schema({CLOSED: "no", **A}, VOCABULARY)
    verdicts = {
        finding.where: finding.verdict for finding in explain({CLOSED: False, **inner}) if finding.keyword == CLOSED
    }
    assert verdicts == {"#": "exact", "#/properties/u": "annotation"}


def test_the_arguments_of_a_tool_are_closed_and_its_parameters_are_not():
    parameters = {"properties": {"default": {**A, "type": ["object", "null"]}}, "allOf": [B]}
    tool = Tool("save", "", parameters)
    grammar = compile_json_schema(tool.arguments_schema, VOCABULARY)
    assert takes(grammar, {"b": 1, "default": {"a": 1}}) and takes(grammar, {"b": 1, "default": None})
    assert not takes(grammar, {"b": 1, "z": 1}) and not takes(grammar, {"b": 1, "default": {"a": 1, "z": 1}})
    assert not takes(grammar, 3) and tool.parameters == parameters


def test_schemas_are_closed_however_deep_they_are():
    schema, value = obj("a"), {"a": 1}
    for _ in range(60):
        schema, value = {"allOf": [{"type": "object", "properties": {"u": schema}}]}, {"u": value}
    assert takes(compile_json_schema(Tool("f", "", schema).arguments_schema, VOCABULARY), value)
    innermost = value
    while "u" in innermost:
        innermost = innermost["u"]
    innermost["z"] = 1
    assert not takes(compile_json_schema(Tool("f", "", schema).arguments_schema, VOCABULARY), value)
