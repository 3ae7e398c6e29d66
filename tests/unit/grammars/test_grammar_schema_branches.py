"""Schemas of many branches: nested oneOf beside unevaluatedProperties, and long lists of alternatives."""

import itertools
import json
import random
import time

import pytest
from grammar_support import accepts, byte_vocabulary, many

from sgl.grammars import InvalidGrammarError, UnsupportedGrammarError, compile_json_schema

jsonschema = pytest.importorskip("jsonschema")
VOCABULARY = byte_vocabulary()
NAMES = "abcdx"
OBJECTS = [dict.fromkeys(names, 1) for count in range(5) for names in itertools.combinations(NAMES, count)]


def _needs(name):
    return {"required": [name], "properties": {name: True}}


NESTED = {
    "$defs": {
        "one": {"oneOf": [{"$ref": "#/$defs/two"}, _needs("b"), {"required": ["x"], "patternProperties": {"x": True}}]},
        "two": {"oneOf": [_needs("c"), _needs("d")]},
    },
    "oneOf": [{"$ref": "#/$defs/one"}, _needs("a")],
    "unevaluatedProperties": False,
}


def _wrong(schema, values):
    judge = jsonschema.Draft202012Validator(schema)
    try:
        grammar = compile_json_schema(schema, VOCABULARY, order="any")
    except InvalidGrammarError as error:
        assert "no value" in str(error)
        return [v for v in values if judge.is_valid(v)]
    return [v for v in values if accepts(grammar, json.dumps(v)) != judge.is_valid(v)]


def test_branches_within_branches_are_told_apart():
    assert _wrong(NESTED, OBJECTS) == []


def _random_branches(rng, deep):
    leaf = [
        _needs(rng.choice(NAMES)),
        {"required": [rng.choice(NAMES)]},
        {"properties": {rng.choice(NAMES): {"type": "integer"}}},
    ]
    branches = [
        rng.choice(leaf) if not deep or rng.random() < 0.6 else _random_branches(rng, deep - 1) for _ in range(2)
    ]
    return {rng.choice(["oneOf", "anyOf", "allOf"]): branches}


def test_random_nested_branches():
    rng, refused, count = random.Random(6), 0, many(40)
    values = [*OBJECTS, {"a": "s"}, {"b": "s", "c": 1}, {"x": "s", "a": 1}]
    for _ in range(count):
        schema = {"type": "object", **_random_branches(rng, 2)}
        if rng.random() < 0.5:
            schema["unevaluatedProperties"] = False
        try:
            assert _wrong(schema, values) == [], json.dumps(schema)
        except UnsupportedGrammarError:
            refused += 1
    assert refused <= count // 10


def _tagged(keyword, count):
    kinds = [
        {"properties": {"kind": {"const": f"k{i}"}, "v": {"const": i}}, "required": ["kind", "v"]} for i in range(count)
    ]
    return {"type": "object", keyword: kinds}


@pytest.mark.whole
@pytest.mark.parametrize("keyword, count", [("anyOf", 1000), ("oneOf", 300)])
def test_hundreds_of_branches(keyword, count):
    grammar = compile_json_schema(_tagged(keyword, count), VOCABULARY)
    assert accepts(grammar, f'{{"kind": "k{count - 1}", "v": {count - 1}}}') and not accepts(
        grammar, '{"kind": "k7", "v": 8}'
    )


@pytest.mark.parametrize("keyword, count", [("anyOf", 3000), ("oneOf", 3000)])
def test_more_are_refused_at_once(keyword, count):
    started = time.process_time()
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_json_schema(_tagged(keyword, count), VOCABULARY)
    assert caught.value.keyword == keyword and time.process_time() - started < 3
