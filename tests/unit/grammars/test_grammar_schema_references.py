"""References to documents that the caller gives, and those that mean another place by how they were reached."""

import itertools
import json

import pytest
from grammar_support import accepts, byte_vocabulary

from sgl.grammars import GrammarError, InvalidGrammarError, UnsupportedGrammarError, compile_json_schema, explain

jsonschema = pytest.importorskip("jsonschema")
referencing = pytest.importorskip("referencing")
VOCABULARY = byte_vocabulary()
LATEST, OLD = "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema"
TREE = {
    "$schema": LATEST,
    "$id": "http://x.org/tree",
    "$dynamicAnchor": "node",
    "type": "object",
    "properties": {"a": True, "c": {"type": "array", "items": {"$dynamicRef": "#node"}}},
}
STRICT = {
    "$schema": LATEST,
    "$id": "http://x.org/strict",
    "$dynamicAnchor": "node",
    "$ref": "tree",
    "unevaluatedProperties": False,
}
OLD_TREE = {
    "$schema": OLD,
    "$id": "http://x.org/old",
    "$recursiveAnchor": True,
    "type": "object",
    "properties": {"a": True, "c": {"type": "array", "items": {"$recursiveRef": "#"}}},
}
OLD_STRICT = {
    "$schema": OLD,
    "$id": "http://x.org/os",
    "$recursiveAnchor": True,
    "$ref": "old",
    "unevaluatedProperties": False,
}
LIST = {
    "$schema": LATEST,
    "$id": "http://x.org/list",
    "$defs": {"item": {"$dynamicAnchor": "T"}},
    "type": "array",
    "items": {"$dynamicRef": "#T"},
}
BOOLEANS = {
    "$schema": LATEST,
    "$id": "http://x.org/b",
    "properties": {"a": {"$ref": "list"}, "c": {"$ref": "#/$defs/numbers"}},
    "$defs": {
        "own": {"$dynamicAnchor": "T", "type": "boolean"},
        "numbers": {"$id": "n", "$defs": {"own": {"$dynamicAnchor": "T", "type": "null"}}, "$ref": "list"},
    },
}
PARTS = {
    "$schema": LATEST,
    "properties": {"a": {"$ref": "#/$defs/n"}, "c": {"$ref": "#word"}, "z": {"$ref": "other/tree"}},
    "$defs": {
        "n": {"type": "integer"},
        "w": {"$anchor": "word", "enum": ["a", {"a": 1}]},
        "t": {"$id": "http://x.org/other/tree", "const": 1},
    },
}
GIVEN = {s["$id"]: s for s in (TREE, STRICT, OLD_TREE, OLD_STRICT, LIST, BOOLEANS)} | {"http://x.org/parts": PARTS}
SCHEMAS = {
    "tree": TREE,
    "strict": STRICT,
    "old": OLD_TREE,
    "old strict": OLD_STRICT,
    "booleans": BOOLEANS,
    "ref to a strict tree": {"$schema": LATEST, "$ref": "http://x.org/strict"},
    "tree beside": {
        "$schema": LATEST,
        "$id": "http://x.org/",
        "properties": {"a": {"$ref": "strict"}, "c": {"$ref": "tree"}},
    },
    "list of any": {"$schema": LATEST, "$id": "http://x.org/q", "$ref": "list"},
    "parts": {"$schema": LATEST, "$ref": "http://x.org/parts"},
    "part by pointer": {"$schema": LATEST, "properties": {"a": {"$ref": "http://x.org/parts#/$defs/n"}}},
    "part by anchor": {"$schema": LATEST, "$id": "http://x.org/here", "properties": {"a": {"$ref": "parts#word"}}},
}


def _values():
    leaves = [1, True, None, "a", {}, [], {"b": 1}, {"a": 1}, [1], [True], [None]]
    nested = [{"c": [leaf]} for leaf in leaves] + [{"a": leaf} for leaf in leaves] + [{"c": leaf} for leaf in leaves]
    deeper = [{"c": [value]} for value in nested] + [{"a": value} for value in nested]
    return leaves + nested + deeper + [{"a": a, "c": c} for a, c in itertools.product(leaves, leaves)]


def _judge(schema):
    resources = [(uri, referencing.Resource.from_contents(other)) for uri, other in GIVEN.items()]
    kind = jsonschema.validators.validator_for(schema)
    return kind(schema, registry=referencing.Registry().with_resources(resources))


@pytest.mark.parametrize("name", SCHEMAS)
def test_exactly_what_the_library_allows(name):
    schema = SCHEMAS[name]
    judge, grammar = _judge(schema), compile_json_schema(schema, VOCABULARY, order="any", resources=GIVEN)
    wrong = [v for v in _values() if accepts(grammar, json.dumps(v)) != judge.is_valid(v)]
    assert wrong == []
    assert any(judge.is_valid(v) for v in _values()) and not all(judge.is_valid(v) for v in _values())


def test_what_is_not_given_is_refused_and_never_fetched():
    for resources in ({}, {"http://x.org/else": TREE}):
        with pytest.raises(UnsupportedGrammarError, match="resources="):
            compile_json_schema(SCHEMAS["ref to a strict tree"], VOCABULARY, resources=resources)


def test_a_document_of_another_draft_is_refused():
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_json_schema({"$schema": LATEST, "$ref": "http://x.org/old"}, VOCABULARY, resources=GIVEN)
    assert caught.value.keyword == "$schema"
    neutral = {"http://x.org/n": {"items": [{"type": "integer"}]}}
    grammar = compile_json_schema({"$schema": OLD, "$ref": "http://x.org/n"}, VOCABULARY, resources=neutral)
    assert accepts(grammar, '[1, "a"]') and not accepts(grammar, '["a"]')


@pytest.mark.parametrize(
    "resources", [5, [TREE], {"x": {}}, {"http://x#a": {}}, {"http://x": "{"}, {"http://x": 5}, {5: {}}], ids=str
)
def test_malformed_resources_are_told(resources):
    with pytest.raises(InvalidGrammarError, match=r"resources|http://x"):
        compile_json_schema({}, VOCABULARY, resources=resources)


def _chain(step, length):
    defs = {f"a{i}": step({"$ref": f"#/$defs/a{i + 1}"}, i) for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{length}": {"type": "integer"}}}


@pytest.mark.parametrize(
    "step",
    [
        lambda ref, i: ref,
        lambda ref, i: {"title": "next", "anyOf": [ref]},
        lambda ref, i: {"allOf": [ref, {"minimum": i}]},
        lambda ref, i: {"allOf": [{"$ref": f"#/$defs/a{i + 2}"} if i % 7 == 0 else ref, {"maximum": 5000 - i}]},
        lambda ref, i: {"oneOf": [ref, {"const": f"x{i}"}]},
    ],
    ids=["plain", "anyOf", "allOf", "forks", "oneOf"],
)
def test_chains_of_references_may_be_long(step):
    length = 30 if step({}, 0).get("oneOf") else 1500
    grammar = compile_json_schema(_chain(step, length), VOCABULARY)
    assert accepts(grammar, "2000") and not accepts(grammar, "null")


@pytest.mark.parametrize(
    "step", [lambda ref, i: ref, lambda ref, i: {"allOf": [ref, {"minimum": i}]}], ids=["plain", "allOf"]
)
def test_a_long_circle_of_references_is_refused(step):
    schema = _chain(step, 500)
    schema["$defs"]["a500"] = {"$ref": "#/$defs/a100"}
    with pytest.raises(GrammarError, match="back to itself"):
        compile_json_schema(schema, VOCABULARY)


def test_other_documents_obey_the_options():
    given = {
        "http://x.org/u": {
            "type": "object",
            "format": "date",
            "x-y": 1,
            "minProperties": 3,
            "patternProperties": {"^a": {}},
        }
    }
    schema = {"$ref": "http://x.org/u"}
    with pytest.raises(UnsupportedGrammarError, match=r"http://x\.org/u#"):
        compile_json_schema(schema, VOCABULARY, resources=given)
    assert accepts(compile_json_schema(schema, VOCABULARY, resources=given, weaken=("minProperties",)), "{}")


def test_equal_schemas_with_other_documents_are_other_grammars():
    schema = {"$ref": "http://x.org/u"}
    first, second = (
        compile_json_schema(schema, VOCABULARY, resources={"http://x.org/u": {"const": c}}) for c in (1, 2)
    )
    assert accepts(first, "1") and accepts(second, "2") and not accepts(first, "2")
    assert accepts(first.recipe.compile(VOCABULARY), "1")


def test_errors_name_plain_pointers():
    broken = {**TREE, "properties": {"c": {"uniqueItems": True, "contains": {}, "items": {"$dynamicRef": "#node"}}}}
    given = {"http://x.org/tree": broken}
    with pytest.raises(GrammarError) as caught:
        compile_json_schema(STRICT, VOCABULARY, resources=given)
    assert caught.value.where == "http://x.org/tree#/properties/c" and "!" not in str(caught.value)
    assert any(finding.verdict == "refused" for finding in explain(STRICT, resources=given))
