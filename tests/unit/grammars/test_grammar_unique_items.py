"""Arrays whose items must differ though they have infinitely many values: exact, token by token."""

import json
import random

import numpy as np
import pytest

from sgl.grammars import UnsupportedGrammarError, Vocabulary, compile_json_schema
from sgl.grammars.automaton.distinct_items_states import DistinctItemsStates
from sgl.grammars.compile import Grammar
from sgl.grammars.schema.schema_builder import SchemaOptions, schema_expr

LONG = [
    b'","',
    b'", "',
    b'",',
    b'a"',
    b"ab",
    b"1,",
    b"], [",
    b'"}, {',
    b'"]',
    b"true",
    b"true, t",
    b'","a"',
    b"[[",
    b"1]",
    b'0"',
    b'\\"',
    "é".encode(),
]
VOCABULARY = Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b"<eos>", *LONG], [256])
NICE = {i for i, token in enumerate(VOCABULARY.tokens) if len(token) > 1 or token in b'",[]1abtrue0{}: '}
STRINGS = ["", "a", "ab", "b", "aab", "aba", "é", '"', " ", "\n"]
VALUES = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    10,
    -1,
    *STRINGS,
    [],
    [1],
    [1, 2],
    [2],
    [True],
    {},
    {"a": 1},
    {"a": 1, "b": True},
    {"b": True, "a": 1.0},
    {"a": [1]},
]
INTEGER = {"type": "integer"}
PAIR = {
    "type": "object",
    "properties": {"a": INTEGER, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


def array(items, **others):
    return {"type": "array", "items": items, "uniqueItems": True, **others}


CASES = [
    ({"uniqueItems": True}, VALUES),
    (array({"type": "string"}), STRINGS),
    (array({"type": "string", "maxLength": 2}, minItems=2), STRINGS),
    (array(INTEGER, maxItems=4), [0, 1, 1.0, 10, -1]),
    (array({"enum": [1, 2, 1]}, minItems=2), [1, 2, 1.0]),
    (
        {"type": "array", "prefixItems": [{"enum": ["a", "a", "b"]}, {"enum": ["b", "b"]}], "uniqueItems": True},
        ["a", "b"],
    ),
    (array({"type": ["boolean", "integer", "null"]}), VALUES[:8]),
    (array(array(INTEGER)), [[], [0], [1, 1], [1.0], [1], [1, 0], [0, 1]]),
    (
        array({"type": "array", "items": {"type": ["boolean", "integer"]}}, minItems=1),
        [[], [True], [1], [0], [False, 1]],
    ),
    (array(PAIR), [{"a": 1}, {"a": 1.0}, {"a": 1, "b": True}, {"b": True, "a": 1}, {"a": 2}]),
    ({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "boolean"}], "uniqueItems": True}, VALUES[:12]),
    (
        array({"anyOf": [{"type": "string"}, {"type": "boolean"}, {"const": {"a": [1]}}, {"enum": ["x"]}]}, minItems=3),
        VALUES,
    ),
    (
        {
            "anyOf": [
                array({"type": "string"}),
                {"type": "array", "items": {"type": ["string", "integer"]}, "maxItems": 3},
            ]
        },
        VALUES[4:14],
    ),
]


def same(left, right):
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def repeats(value):
    return any(same(v, w) for i, v in enumerate(value) for w in value[:i])


def valid(schema, value):
    """As jsonschema judges it, but for the items that differ, which some versions of it get wrong."""
    jsonschema = pytest.importorskip("jsonschema")
    if "anyOf" in schema:
        return any(valid(branch, value) for branch in schema["anyOf"])
    plain = {k: v for k, v in schema.items() if k != "uniqueItems"}
    if (
        isinstance(value, list)
        and schema.get("uniqueItems")
        and (
            repeats(value)
            or not all(valid(schema.get("items", {}), v) for v in value[len(schema.get("prefixItems", ())) :])
        )
    ):
        return False
    return jsonschema.Draft202012Validator(plain).is_valid(value)


def accepts(grammar, text):
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end


def ids(row):
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize(("schema", "values"), CASES)
def test_texts_are_accepted_where_all_items_differ(schema, values):
    grammar, rng = compile_json_schema(schema, VOCABULARY, order="any", integers="json"), random.Random(1)
    for _ in range(60):
        value = [rng.choice(values) for _ in range(rng.randint(0, 4))]
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        assert accepts(grammar, text) == valid(schema, value), text


@pytest.mark.few(6)
@pytest.mark.parametrize(("schema", "_"), CASES)
def test_masks_are_what_is_accepted_and_every_text_can_be_finished(schema, _):
    grammar, rng = compile_json_schema(schema, VOCABULARY, order="any", integers="json"), random.Random(2)
    for _ in range(12):
        matcher, text = grammar.matcher(), b""
        for _ in range(rng.randint(1, 24)):
            allowed = ids(matcher.mask())
            taken = {i for i in range(VOCABULARY.size) if i != 256 and matcher.copy().accept(i)}
            assert allowed - {256} == taken and (256 in allowed) == matcher.can_end, text
            chosen = rng.choice(sorted(taken & NICE) or sorted(taken) or [256])
            if chosen == 256:
                break
            assert matcher.accept(chosen)
            text += VOCABULARY.tokens[chosen]
        finished = (text + matcher.shortest_end()).decode(errors="replace")
        assert valid(schema, json.loads(finished)), finished


def test_both_cores_write_the_same_masks():
    expr = schema_expr(array({"type": ["string", "integer"]}), SchemaOptions(), remember=True)
    fast, slow = (Grammar(expr, VOCABULARY, core).matcher() for core in ("C", "python"))
    for byte in b'["a", 1, "ab':
        assert (fast.mask() == slow.mask()).all()
        assert fast.accept(byte) and slow.accept(byte)


def test_a_value_that_can_become_nothing_new_is_not_begun():
    matcher = compile_json_schema({"uniqueItems": True}, VOCABULARY).matcher()
    for byte in b"[true, null, ":
        assert matcher.accept(byte)
    assert not matcher.accept(ord("t")) and not matcher.accept(ord("n")) and matcher.accept(ord("f"))
    assert matcher.forced() == b"alse"
    matcher.rollback(1)
    twin = matcher.copy()
    assert matcher.accept(ord('"')) and twin.accept(ord("[")) and twin.accept(ord("]")) and twin.can_end is False


@pytest.mark.parametrize(
    "text", ['[{"a": 1, "b": 2}, {"b": 2, "a": 1.5}]', '[{"é": ["é", "e"]}, {"é": ["é", "e", 1]}, "é", "éa"]']
)
def test_a_mask_looks_at_few_texts(monkeypatch, text):
    steps, step = [], DistinctItemsStates.step
    monkeypatch.setattr(DistinctItemsStates, "step", lambda *given: steps.append(1) or step(*given))
    matcher = compile_json_schema({"uniqueItems": True}, VOCABULARY, order="any", digits=39).matcher()
    for byte in text.encode():
        steps.clear()
        matcher.mask()
        assert matcher.accept(byte) and len(steps) < 4000, text
    assert matcher.can_end


def test_all_of_a_short_array_of_few_texts():
    schema = array({"type": "string", "pattern": "^[a-z]{2}$"}, maxItems=3)
    grammar = compile_json_schema(schema, VOCABULARY)
    assert accepts(grammar, '["ab", "ac", "aa"]') and not accepts(grammar, '["ab", "ac", "ab"]')


@pytest.mark.parametrize(
    "schema",
    [
        array({"type": "string", "pattern": "^[ab]{2}$"}),
        array({"type": "string"}, minItems=1000),
        {"type": "array", "prefixItems": [{"type": "string"}, {"const": "a"}], "uniqueItems": True},
        array(
            {
                "type": "object",
                "properties": {"k": {"enum": ["a", "b"]}},
                "required": ["k"],
                "additionalProperties": False,
            }
        ),
        array({"type": "string"}, contains={"const": "a"}),
    ],
)
def test_refused_where_there_may_be_too_few_values(schema):
    with pytest.raises(UnsupportedGrammarError, match=r"uniqueItems|minItems"):
        compile_json_schema(schema, VOCABULARY)


def test_a_long_array_ends_in_time():
    grammar = compile_json_schema(array(INTEGER), VOCABULARY, whitespace="compact")
    matcher = grammar.matcher()
    for byte in ("[" + ",".join(map(str, range(256)))).encode():
        assert matcher.accept(byte)
    assert not matcher.accept(ord(",")) and matcher.accept(ord("]"))
