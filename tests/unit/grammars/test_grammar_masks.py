"""Masks against brute force, and the C core against its Python twin."""

import os
import random

import pytest
from grammar_support import CORES, JSON_PIECES, allowed, automaton, byte_vocabulary, random_vocabulary, tokens_by_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar_regex import patterns

from sgl.grammars import core_name
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.schema_builder import schema_expr
from sgl.grammars.schema.schema_document import SchemaOptions

SCHEMAS = [
    {"type": "string"},
    {"type": "string", "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 40},
    {"type": "string", "maxLength": 2000},
    {"enum": ["abcdefgh", "abé", 12, None]},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"const": "abcdefghij"}]},
    {"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 100},
    {"type": "object", "properties": {"name": {"type": "string"}, "namely": {"type": "number"}}},
    {"type": "object", "properties": {"aé": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"type": "string", "pattern": "^[a-c]{2,}é?$"},
    {"type": "string", "pattern": "b"},
    {},
]


def _random_text(machine, rng, most):
    """States along a random path of live bytes, plain letters preferred."""
    state = machine.start
    for _ in range(most):
        yield state
        live = machine.live(state)
        choices = [b for b in range(256) if live >> b & 1]
        if not choices:
            return
        letters = [b for b in choices if b in b'abc"n:{[,1 ']
        state = machine.advance(state, bytes([rng.choice(letters if letters and rng.random() < 0.8 else choices)]))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_schema_masks_are_those_of_brute_force(schema, core):
    rng = random.Random(str(schema))
    vocabulary = byte_vocabulary([*JSON_PIECES, b"a" * 5, b"ab" * 9, "éé".encode()])
    machine = automaton(schema_expr(schema, SchemaOptions()), vocabulary, core)
    for _ in range(3):
        for state in _random_text(machine, rng, 25):
            assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state)


@settings(max_examples=80, deadline=None)
@given(patterns, st.integers(0, 10**6))
def test_regex_masks_are_those_of_brute_force(pattern, seed):
    rng = random.Random(seed)
    vocabulary = random_vocabulary(rng, ["abcé😀", "aab0\nbc", "ééé", "cc0c0c"])
    machine = automaton(parse_regex(pattern), vocabulary, CORES[0])
    for state in _random_text(machine, rng, 12):
        assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state)


@pytest.mark.skipif(len(CORES) < 2, reason="the C core is not built")
@settings(max_examples=60, deadline=None)
@given(st.one_of(patterns, st.sampled_from(SCHEMAS)), st.integers(0, 10**6))
def test_both_cores_agree_step_by_step(source, seed):
    rng = random.Random(seed)
    vocabulary = random_vocabulary(rng, ['{"name": "aé"}', "[1, 2.5]", "aab0\nbc"])
    expr = parse_regex(source) if isinstance(source, str) else schema_expr(source, SchemaOptions())
    fast, slow = (automaton(expr, vocabulary, core) for core in CORES)
    left, right = fast.start, slow.start
    for _ in range(20):
        assert fast.final(left) == slow.final(right)
        assert fast.live(left) == slow.live(right)
        assert fast.forced(left) == slow.forced(right)
        assert fast.shortest_end(left) == slow.shortest_end(right)
        assert allowed(fast.mask(left)) == allowed(slow.mask(right))
        choices = sorted(allowed(fast.mask(left)) - set(vocabulary.eos_ids))
        if not choices:
            return
        token = rng.choice(choices)
        left, right = fast.move(left, token), slow.move(right, token)


def test_counts_far_from_their_bounds_share_a_mask():
    vocabulary = byte_vocabulary(JSON_PIECES)
    machine = automaton(schema_expr({"type": "string", "maxLength": 5000}, SchemaOptions()), vocabulary, CORES[0])
    rows = {id(machine.mask(machine.advance(machine.start, b'"' + b"a" * n))) for n in range(1, 200)}
    assert len(rows) == 1


def test_unbounded_text_uses_a_slice():
    vocabulary = byte_vocabulary(JSON_PIECES)
    machine = automaton(schema_expr({"type": "string"}, SchemaOptions()), vocabulary, CORES[0])
    inside = machine.advance(machine.start, b'"ab')
    assert machine.core.takes_plain(inside)
    assert len(vocabulary.rest) < len(vocabulary.trie)


def test_the_compiled_core_is_preferred():
    assert os.environ.get("SGL_PURE_PYTHON") or core_name() == CORES[0]
