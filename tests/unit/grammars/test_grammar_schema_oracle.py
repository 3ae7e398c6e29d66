"""Random schemas and real ones against the `jsonschema` library, both ways."""

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from grammar_support import JSON_PIECES, accepts, as_digits, byte_vocabulary, walk
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar_regex import patterns

from sgl.grammars import (
    GrammarError,
    GrammarLimitError,
    InvalidGrammarError,
    UnsupportedGrammarError,
    compile_json_schema,
)
from sgl.grammars.algebra.language_operations import combine, matches, texts
from sgl.grammars.regex import parse_regex

jsonschema = pytest.importorskip("jsonschema")
VOCABULARY = byte_vocabulary(JSON_PIECES)
BENCH = Path(__file__).parents[4] / "shared/data/jsonschemabench-dev.jsonl.gz"
NAMES = ["a", "b", "né"]

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-30, 30),
        st.sampled_from([0.5, -1.25, 2.0, -0.0, 1e16, 1e-07, 12.75, 0.1]),
        st.text('abé\n"😀', max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*NAMES, "z"]), inner, max_size=3)
    ),
    max_leaves=5,
)
_small = st.integers(0, 3)
_bounds = st.sampled_from([-7, -2.5, -1, 0, 0.25, 1, 3, 10, 12.75])


def _some(**choices):
    """A dict with any subset of the keys."""
    return st.fixed_dictionaries({}, optional=choices)


def _typed(name, **choices):
    return _some(**choices).map(lambda keywords: {"type": name, **keywords})


_leaves = st.one_of(
    st.just({}),
    st.booleans(),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}]),
    st.builds(lambda v: {"enum": v}, st.lists(values, min_size=1, max_size=3)),
    st.builds(lambda v: {"const": v}, values),
    _typed("integer", minimum=_bounds, maximum=_bounds, multipleOf=st.sampled_from([2, 3, 0.5])),
    _typed("number", minimum=_bounds, maximum=_bounds, exclusiveMinimum=_bounds, exclusiveMaximum=_bounds),
    _typed("number", multipleOf=st.sampled_from([1, 2, 0.25]), minimum=_bounds),
    _typed(
        "string", minLength=_small, maxLength=_small, pattern=st.sampled_from(["^a", "b", "^[ab]*$", "é$", "^(ab)+$"])
    ),
    st.lists(st.sampled_from(["null", "integer", "string", "boolean"]), min_size=1, max_size=3, unique=True).map(
        lambda t: {"type": t}
    ),
)


def _nested(inner):
    members = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    required = st.lists(st.sampled_from(NAMES), unique=True, max_size=2)
    branches = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        _typed("array", items=inner, prefixItems=branches, minItems=_small, maxItems=_small),
        _typed("object", properties=members, required=required, additionalProperties=inner, maxProperties=_small),
        _typed(
            "object",
            properties=members,
            patternProperties=st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
        ),
        _some(anyOf=branches, allOf=branches, properties=members),
        _typed("array", contains=inner, minContains=_small, maxContains=_small, items=inner, maxItems=_small),
        _typed("array", items=inner, uniqueItems=st.booleans(), maxItems=_small, prefixItems=branches),
        _typed("object", propertyNames=inner, properties=members, required=required),
        _typed(
            "object",
            dependentRequired=st.dictionaries(st.sampled_from(NAMES), required, max_size=2),
            properties=members,
        ),
        _typed("object", dependentSchemas=members, minProperties=_small, additionalProperties=st.booleans()),
        _some(properties=members, anyOf=branches, if_=inner, unevaluatedProperties=inner).map(_with_if),
        _some(prefixItems=branches, anyOf=branches, contains=inner, unevaluatedItems=inner),
        st.builds(lambda b: {"oneOf": b}, branches),
        st.builds(lambda b: {"not": b}, inner),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, inner, inner, inner),
    )


def _with_if(schema):
    return {key.rstrip("_"): value for key, value in schema.items()}


schemas = st.recursive(_leaves, _nested, max_leaves=5)


def _compiled(schema):
    try:
        return compile_json_schema(schema, VOCABULARY, integers="json")
    except GrammarError:
        return None


def _in_order(value):
    """Keys out of the schema's order are refused on purpose: only values without two keys count."""
    if isinstance(value, dict):
        return len(value) < 2 and all(map(_in_order, value.values()))
    return all(map(_in_order, value)) if isinstance(value, list) else True


@settings(max_examples=150, deadline=None)
@given(
    schemas,
    st.lists(values, min_size=1, max_size=4),
    st.sampled_from(["any", "schema"]),
    st.sampled_from(["plain", "json"]),
    st.integers(0, 10**6),
)
def test_random_schemas(schema, candidates, order, integers, seed):
    candidates = as_digits(candidates) if integers == "plain" else candidates
    judge = jsonschema.Draft202012Validator(schema)
    try:
        grammar = compile_json_schema(schema, VOCABULARY, order=order, integers=integers)
    except InvalidGrammarError:
        assert not any(map(judge.is_valid, candidates))
        return
    except UnsupportedGrammarError as error:
        assert error.keyword in json.dumps(schema), error
        return
    for value in candidates:
        valid = judge.is_valid(value)
        for ascii_only in (True, False):
            shown = accepts(grammar, json.dumps(value, ensure_ascii=ascii_only))
            if not valid:
                assert not shown, (schema, value)
            elif order == "any" or _in_order(value):
                assert shown, (schema, value)
    rng = random.Random(seed)
    for _ in range(3):
        try:
            text = walk(grammar.matcher(), rng, most=40)
        except GrammarLimitError:  # a walk that is cut asks for an end, which may be too much to look for behind "not"
            return
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
        if "Infinity" not in json.dumps(value):  # too large for a double, which the library cannot divide
            assert judge.is_valid(value), (schema, text)


@settings(max_examples=120, deadline=None)
@given(patterns, patterns, st.lists(st.text("abcé😀\n0", max_size=6), min_size=1, max_size=5))
def test_set_operations_on_patterns(left, right, candidates):
    try:
        both = combine([parse_regex(left), parse_regex(right)])
        only_left = combine([parse_regex(left)], [parse_regex(right), texts(["ab", "é"])])
    except GrammarLimitError:
        return
    for text in candidates:
        in_left, in_right = (re.fullmatch(p, text) is not None for p in (left, right))
        assert matches(both, text) == (in_left and in_right)
        assert matches(only_left, text) == (in_left and not in_right and text not in ("ab", "é"))


_doubles = st.one_of(
    st.integers(-(10**18), 10**18),
    st.floats(-200, 200).map(lambda x: round(x, 2)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [0, -0.0, 0.1, 1e16, 9999999999999998.0, 1e23, 5e-324, 2**53 + 1, 1e-5, 1.7976931348623157e308, -1e308]
    ),
)


@settings(max_examples=80, deadline=None)
@given(_doubles, _doubles, st.booleans(), st.booleans(), st.sampled_from(["number", "integer"]), st.data())
def test_number_bounds_hold_for_what_a_text_is_read_as(one, other, open_low, open_high, kind, data):
    low, high = min(one, other), max(one, other)
    name = {True: "exclusiveM", False: "m"}
    bounds = {name[open_low] + "inimum": low, name[open_high] + "aximum": high}
    kept = data.draw(st.sampled_from([list(bounds), list(bounds)[:1], list(bounds)[1:], []]))
    schema = {"type": kind, **{keyword: bounds[keyword] for keyword in kept}}
    judge = jsonschema.Draft202012Validator(schema)
    grammar = _compiled(schema)
    value = data.draw(st.one_of(_doubles, st.sampled_from([low, high, float(low), float(high)])))
    for text in (json.dumps(value), f"{value:.20e}", f"{value:.17g}"):
        read = json.loads(text)
        inside = judge.is_valid(read)
        shown = grammar is not None and accepts(grammar, text)
        assert inside or not shown, (schema, text)
        if inside and text == json.dumps(read):
            assert shown, (schema, text)


def _bench_rows(count):
    with gzip.open(BENCH, "rt") as file:
        rows = [json.loads(line) for line in file]
    random.Random(3).shuffle(rows)
    return [row for row in rows if len(json.dumps(row["schema"])) < 20_000][:count]


@pytest.mark.skipif(not BENCH.exists(), reason=f"{BENCH} is not there")
def test_exactly_the_valid_instances_of_the_bench_pass_in_any_order():
    rows = _bench_rows(90)
    compiled = 0
    for row in rows:
        try:
            grammar = compile_json_schema(row["schema"], VOCABULARY, order="any")
        except GrammarError:
            continue
        compiled += 1
        wrong = [c for c in row["tests"] if accepts(grammar, json.dumps(c["data"], ensure_ascii=False)) != c["valid"]]
        assert wrong == [], row["id"]
    assert compiled >= 0.92 * len(rows)
