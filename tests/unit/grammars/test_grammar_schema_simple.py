"""The short way of simple schemas and the long way of all give the same masks, bit for bit."""

import gc
import random
import weakref
from contextlib import contextmanager
from unittest import mock

import pytest
from grammar_support import CORES, JSON_PIECES, allowed, automaton, byte_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.grammars import InvalidGrammarError
from sgl.grammars.schema import schema_builder
from sgl.grammars.schema.schema_builder import schema_expr
from sgl.grammars.schema.schema_options import SchemaOptions
from sgl.grammars.schema.simple_schemas import SimpleSchemas

VOCABULARY = byte_vocabulary(JSON_PIECES)
NAMES = ["a", "ab", 'q"/~', "né", "$ref"]
NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
ENDLESS = {"type": "object", "properties": {"x": {"$ref": "#/$defs/endless"}}, "required": ["x"]}
DEFINITIONS = {"node": NODE, "endless": ENDLESS, "list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}

_counts, _bounds = st.integers(0, 3), st.sampled_from([-2, 0, 0.5, 2, 7])
_leaves = st.one_of(
    st.just({}),
    st.booleans(),
    st.sampled_from(["string", "integer", "number", "boolean", "null", ["string", "null"]]).map(lambda t: {"type": t}),
    st.lists(st.sampled_from(["a", "ab", "é\n", ""]), min_size=1, max_size=3).map(lambda v: {"enum": v, "title": "t"}),
    st.sampled_from(sorted(DEFINITIONS)).map(lambda name: {"$ref": f"#/$defs/{name}"}),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": _counts, "maxLength": _counts}),
    st.sampled_from(["^a+$", "b", "(?:ab|é){2}"]).map(lambda p: {"type": "string", "pattern": p}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])}, optional={"minimum": _bounds, "exclusiveMaximum": _bounds}
    ),
)


@st.composite
def _objects(draw, inner):
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, max_size=3))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    rest = draw(st.one_of(st.none(), inner))
    more = {} if rest is None else {"additionalProperties": rest}
    return {"type": "object", "description": "d", "properties": properties, "required": required, **more}


schemas = st.recursive(
    _leaves, lambda inner: st.one_of(_objects(inner), inner.map(lambda i: {"type": "array", "items": i})), max_leaves=5
)


@contextmanager
def no_short_way():
    with mock.patch.multiple(SimpleSchemas, value=lambda *_: None, read=lambda *_: None):
        yield


def _expr(schema, options):
    try:
        return schema_expr(schema, options)
    except InvalidGrammarError:
        return None


def _walk_both(short, long, rng, most=50):
    """Every mask on a random way is the same; the way prefers tokens that close what is open once it is long."""
    states = [short.start, long.start]
    for step in range(most):
        masks = [machine.mask(state) for machine, state in zip((short, long), states, strict=True)]
        assert (masks[0] == masks[1]).all()
        choices = sorted(allowed(masks[0]) - set(VOCABULARY.eos_ids))
        if not choices or (short.final(states[0]) and rng.random() < 0.3):
            return
        closing = [i for i in choices if VOCABULARY.tokens[i][:1] in b'"]}' and step > most // 2]
        token = VOCABULARY.tokens[rng.choice(closing or choices)]
        states = [m.advance(s, token) for m, s in zip((short, long), states, strict=True)]


@settings(max_examples=120, deadline=None)
@given(schemas, st.booleans(), st.sampled_from(["schema", "any"]), st.integers(0, 10**6))
def test_both_ways_give_the_same_masks(schema, open_objects, order, seed):
    schema = {**schema, "$defs": DEFINITIONS} if isinstance(schema, dict) else schema
    options = SchemaOptions(order=order, additional_properties=open_objects)
    short = _expr(schema, options)
    with no_short_way():
        long = _expr(schema, options)
    assert (short is None) == (long is None)
    if short is not None and long is not None:
        machines = [automaton(expr, VOCABULARY, CORES[0]) for expr in (short, long)]
        for i in range(3):
            _walk_both(*machines, random.Random(seed + i))


@pytest.mark.parametrize("name", ["node", "list"])
def test_the_short_way_is_taken(name):
    """Where no place is left to the long way, the resolver is never asked."""
    with mock.patch(
        "sgl.grammars.schema.schema_resolver.SchemaResolver.shapes", side_effect=AssertionError("the long way")
    ):
        schema_expr({"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS}, SchemaOptions())
        with no_short_way(), pytest.raises(AssertionError, match="the long way"):
            schema_expr({"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS}, SchemaOptions())


def test_what_builds_a_schema_ends_with_it(monkeypatch):
    made = []

    class Watched(schema_builder.SchemaResolver):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(weakref.ref(self))

    monkeypatch.setattr(schema_builder, "SchemaResolver", Watched)
    gc.collect()
    gc.disable()
    try:
        schema_expr(
            {
                "type": "object",
                "properties": {"a": {"enum": ["x", 1]}, "b": {"oneOf": [{"type": "string"}, {"const": 3}]}},
            },
            SchemaOptions(),
        )
        assert made and all(each() is None for each in made)
    finally:
        gc.enable()
