"""minProperties over free names: a name that comes twice counts once, whatever is written. Exact, token by token."""

import json
import random

import numpy as np
import pytest

from sgl.grammars import UnsupportedGrammarError, Vocabulary, compile_json_schema, compile_structural, explain
from sgl.grammars.compile import Grammar
from sgl.grammars.schema.schema_builder import SchemaOptions, schema_expr

LONG = [
    b'","',
    b'", "',
    b'":',
    b'": "',
    b'a"',
    b"ab",
    b'{"',
    b'"}',
    b'}, "',
    b"1}",
    b'": {"a',
    b"true",
    b"[{",
    "é".encode(),
]
VOCABULARY = Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b"<eos>", *LONG], [256])
NICE = {i for i, token in enumerate(VOCABULARY.tokens) if len(token) > 1 or token in b'",[]{}1abtrue0: '}
INTEGER = {"type": "integer"}


def counted(least, **others):
    return {"type": "object", "minProperties": least, **others}


CASES = [
    {"minProperties": 3},
    counted(2, maxProperties=3, properties={"a": INTEGER}, required=["a"]),
    counted(3, properties={"a": INTEGER, "ab": {"type": "boolean"}}, additionalProperties=INTEGER),
    {
        "anyOf": [
            counted(2, additionalProperties=INTEGER),
            {"type": "object", "required": ["a"], "additionalProperties": {"type": "string"}},
        ]
    },
    {"type": "array", "items": {"minProperties": 2}, "maxItems": 3},
    {
        "type": "array",
        "uniqueItems": True,
        "items": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": counted(2)}},
    },
    counted(2, additionalProperties={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    {"type": "object", "dependentSchemas": {"a": {"minProperties": 3}}},
    {"not": {"type": "object", "maxProperties": 1}},
    {"anyOf": [counted(2), {"const": {"a": [1], "b": {}}}, {"enum": [{}, {"a": 1}]}]},
]


def valid(schema, value):
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def accepts(grammar, text):
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end


def ids(row):
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def drawn(rng, depth):
    if not depth or rng.random() < 0.35:
        return rng.choice([1, 2, True, None, "x", "", 1.5])
    if rng.random() < 0.8:
        return {rng.choice(["a", "ab", "b", "c", "é"]): drawn(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    return [drawn(rng, depth - 1) for _ in range(rng.randint(0, 3))]


@pytest.mark.parametrize("schema", CASES)
def test_texts_are_accepted_where_enough_names_differ(schema):
    grammar, rng = compile_json_schema(schema, VOCABULARY, order="any"), random.Random(1)
    for _ in range(150):
        value = drawn(rng, 3)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        assert accepts(grammar, text) == valid(schema, value), text


@pytest.mark.few(5)
@pytest.mark.parametrize("schema", CASES)
def test_masks_are_what_is_accepted_and_every_text_can_be_finished(schema):
    grammar, rng = compile_json_schema(schema, VOCABULARY, order="any"), random.Random(2)
    for _ in range(10):
        matcher, text = grammar.matcher(), b""
        for _ in range(rng.randint(1, 30)):
            allowed = ids(matcher.mask())
            if rng.random() < 0.3:
                taken = {i for i in range(VOCABULARY.size) if i != 256 and matcher.copy().accept(i)}
                assert allowed - {256} == taken and (256 in allowed) == matcher.can_end, text
            chosen = rng.choice(sorted(allowed & NICE) or sorted(allowed))
            if chosen == 256:
                break
            assert matcher.accept(chosen)
            text += VOCABULARY.tokens[chosen]
        finished = (text + matcher.shortest_end()).decode(errors="replace")
        assert valid(schema, json.loads(finished)), finished


def test_a_name_that_comes_again_is_not_ended():
    matcher = compile_json_schema(counted(2), VOCABULARY).matcher()
    for byte in rb'{"a": 1, "\u0061':
        assert matcher.accept(byte)
    assert not matcher.accept(ord('"')) and not matcher.copy().accept(VOCABULARY.tokens.index(b'":'))
    for byte in b'b": 1}':
        assert matcher.accept(byte)
    assert matcher.can_end


def test_both_cores_write_the_same_masks():
    expr = schema_expr(counted(2, properties={"ab": INTEGER}), SchemaOptions(), remember=True)
    fast, slow = (Grammar(expr, VOCABULARY, core).matcher() for core in ("C", "python"))
    for byte in b'{"a": 1, "a':
        assert (fast.mask() == slow.mask()).all()
        assert fast.accept(byte) and slow.accept(byte)
    assert (fast.mask() == slow.mask()).all()


def test_told_as_exact_and_refused_where_it_cannot_be():
    assert {finding.verdict for finding in explain(counted(2))} == {"exact"}
    with pytest.raises(UnsupportedGrammarError, match="minProperties"):
        compile_json_schema(counted(2, patternProperties={"^[ab]$": INTEGER}, additionalProperties=False), VOCABULARY)
    with pytest.raises(UnsupportedGrammarError, match="whole grammar"):
        compile_structural(
            {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": counted(2)}}, VOCABULARY
        )
