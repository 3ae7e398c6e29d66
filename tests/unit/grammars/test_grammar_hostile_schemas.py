"""Schemas that ask for much: refused when they are compiled, or of bounded size; what is left to the decoder's loop is
little.

How long others wait is measured by benchmarks/grammar_stalls.py.
"""

import pytest
from grammar_support import byte_vocabulary

from sgl.grammars import GrammarError, compile_json_schema

VOCABULARY = byte_vocabulary()
MOST_BYTES = 64 << 20
INTEGER = {"type": "integer"}


def members(count):
    return {f"property_{i}": INTEGER for i in range(count)}


HOSTILE = {
    "many optional, counted": {
        "type": "object",
        "properties": members(899),
        "additionalProperties": False,
        "minProperties": 299,
    },
    "many in any order": {"type": "object", "properties": members(1200)},
    "too many": {"type": "object", "properties": members(8000)},
    "long enum": {"enum": [f"value number {i * 7919 % 100003}" for i in range(20_000)]},
    "enum of objects": {"enum": [{"a": i, "b": [i] * 5} for i in range(1000)]},
    "pattern with many states": {"type": "string", "pattern": "^(a|b)*a(a|b){14}$"},
    "tiny step": {"type": "number", "multipleOf": 1e-300},
    "many objects": {
        "anyOf": [{"properties": {f"k{i}": INTEGER, **members(20)}, "required": [f"k{i}"]} for i in range(100)]
    },
    "counted items": {
        "type": "array",
        "items": INTEGER,
        "contains": {"multipleOf": 7},
        "minContains": 40,
        "maxContains": 900,
    },
    "patterns that overlap": {"patternProperties": {f"^[a-z]*{chr(97 + i)}[a-z]{{{i}}}$": INTEGER for i in range(6)}},
    "long texts": {"items": {"type": "string", "minLength": 3000, "maxLength": 5000}, "minItems": 100, "maxItems": 900},
    "circles of references": {
        "$defs": {f"d{i}": {"properties": {"n": {"$ref": f"#/$defs/d{i * 7 % 3000}"}}} for i in range(3000)},
        "$ref": "#/$defs/d1",
    },
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE.keys())
def test_it_is_refused_at_once_or_stays_small(schema):
    try:
        grammar = compile_json_schema(schema, VOCABULARY).prepared()
    except GrammarError:
        return
    built = len(grammar.automaton.network)
    matcher = grammar.matcher()
    assert matcher.known_mask() is not None  # nobody who decodes waits for it
    matcher.forced()
    assert len(grammar.automaton.network) == built
    assert grammar.memory < MOST_BYTES


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE.keys())
def test_its_end_is_found_or_refused(schema):
    try:
        end = compile_json_schema(schema, VOCABULARY).matcher().shortest_end()
    except GrammarError:
        return
    matcher = compile_json_schema(schema, VOCABULARY).matcher()
    assert all(matcher.accept(byte) for byte in end) and matcher.can_end
