"""Schemas that nobody means well: malformed in odd places, or small to write and large to compile."""

import json
import time

import pytest
from grammar_support import accepts, byte_vocabulary

from sgl.grammars import GrammarLimitError, InvalidGrammarError, UnsupportedGrammarError, compile_json_schema
from sgl.grammars.automaton import shortest_completion

VOCABULARY = byte_vocabulary()
MALFORMED = [
    '{"minimum": 1E400}',
    '{"const": -1e999}',
    '{"minLength": 1E400}',
    '{"contains": {}, "minContains": 1E400}',
    '{"format": []}',
    '{"format": {}}',
    '{"format": 5}',
    '{"dependentRequired": {"a": [1]}}',
    '{"dependentRequired": {"a": [[]]}}',
    '{"dependencies": {"a": [{}]}}',
    '{"$id": "http://[", "$ref": "a"}',
    '{"required": [[]]}',
    '{"type": [[]]}',
    '{"$ref": []}',
    '{"$dynamicRef": []}',
]


@pytest.mark.parametrize("schema", MALFORMED)
def test_what_is_malformed_is_told(schema):
    with pytest.raises(InvalidGrammarError):
        compile_json_schema(schema, VOCABULARY)


def test_a_number_beyond_doubles_in_a_dict_is_told():
    with pytest.raises(InvalidGrammarError):
        compile_json_schema({"minimum": float("inf")}, VOCABULARY)


@pytest.mark.parametrize("step", [1e-300, 5e-324, 1e-41, 1.5e-50])
def test_steps_of_too_many_places_are_refused_at_once(step):
    started = time.process_time()
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_json_schema({"type": "number", "multipleOf": step}, VOCABULARY)
    assert caught.value.keyword == "multipleOf" and time.process_time() - started < 1


def test_small_steps_still_count():
    grammar = compile_json_schema({"type": "number", "multipleOf": 1e-18}, VOCABULARY)
    assert accepts(grammar, "3e-18") and not accepts(grammar, "1e-19")


def _wide(count, **more):
    properties = {f"p{i}": {"type": "integer"} for i in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _text(numbers):
    return json.dumps({f"p{i}": 1 for i in numbers})


def test_many_optional_properties_that_are_counted_stay_small():
    grammar = compile_json_schema(_wide(899, minProperties=299), VOCABULARY)
    grammar.matcher().mask()
    assert grammar.memory < 20 << 20
    assert accepts(grammar, _text(range(300))) and not accepts(grammar, _text(range(298)))
    assert not accepts(grammar, _text([*range(299)] + [298]).replace("p297", "p298"))


@pytest.mark.parametrize("order", ["schema", "any"])
def test_as_many_properties_as_are_allowed_fit(order):
    schema = _wide(1200)
    matcher = compile_json_schema(schema, VOCABULARY, order=order).matcher()
    assert all(matcher.accept(byte) for byte in _text(range(1200)).encode()) and matcher.can_end
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_json_schema(_wide(1201), VOCABULARY, order=order)
    assert caught.value.keyword == "properties" and "1201" in str(caught.value)


def test_required_properties_in_order_may_be_more():
    schema = _wide(5000, required=[f"p{i}" for i in range(5000)])
    matcher = compile_json_schema(schema, VOCABULARY).matcher()
    assert all(matcher.accept(byte) for byte in _text(range(5000)).encode()) and matcher.can_end


def test_ends_of_grammars_that_are_too_large_are_given_up(monkeypatch):
    monkeypatch.setattr(shortest_completion, "MOST_NODES", 1000)
    matcher = compile_json_schema(_wide(500), VOCABULARY).matcher()
    with pytest.raises(GrammarLimitError, match="more than 1000"):
        matcher.shortest_end()
