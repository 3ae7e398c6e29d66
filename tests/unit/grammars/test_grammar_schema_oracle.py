"""Random schemas and real ones against the `jsonschema` library, both ways."""

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from grammar_support import JSON_PIECES, accepts, byte_vocabulary, walk
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
from sgl.grammars.language import combine, matches, texts
from sgl.grammars.regex import parse_regex

jsonschema = pytest.importorskip("jsonschema")
VOCABULARY = byte_vocabulary(JSON_PIECES)
BENCH = Path("/work/shared/data/jsonschemabench-dev.jsonl.gz")
NAMES = ["a", "b", "né"]

values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-30, 30), st.sampled_from([0.5, -1.25, 2.0, 1e16, 12.75]), st.text("abé\n\"😀", max_size=4)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*NAMES, "z"]), inner, max_size=3)),
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
    _typed("integer", minimum=_bounds, maximum=_bounds, multipleOf=st.sampled_from([2, 3])),
    _typed("number", minimum=_bounds, maximum=_bounds, exclusiveMinimum=_bounds, exclusiveMaximum=_bounds),
    _typed("string", minLength=_small, maxLength=_small, pattern=st.sampled_from(["^a", "b", "^[ab]*$", "é$", "^(ab)+$"])),
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
        _typed("object", properties=members, patternProperties=st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2)),
        _some(anyOf=branches, allOf=branches, properties=members),
        st.builds(lambda b: {"oneOf": b}, branches),
        st.builds(lambda b: {"not": b}, inner),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, inner, inner, inner),
    )


schemas = st.recursive(_leaves, _nested, max_leaves=5)


def _compiled(schema):
    try:
        return compile_json_schema(schema, VOCABULARY)
    except GrammarError:
        return None


def _in_order(value, schema):
    """Keys out of the schema's order are refused on purpose: only values without two keys count."""
    if isinstance(value, dict):
        return len(value) < 2 and all(_in_order(v, schema) for v in value.values())
    return all(_in_order(v, schema) for v in value) if isinstance(value, list) else True


def _spelled_alike(value):
    """Whole floats and exponents are left out where a schema speaks of integers or bounds."""
    if isinstance(value, float):
        return not value.is_integer() and abs(value) < 1e15
    if isinstance(value, dict):
        return all(map(_spelled_alike, value.values()))
    return all(map(_spelled_alike, value)) if isinstance(value, list) else True


@settings(max_examples=250, deadline=None)
@given(schemas, st.lists(values, min_size=1, max_size=4), st.integers(0, 10**6))
def test_random_schemas(schema, candidates, seed):
    judge = jsonschema.Draft202012Validator(schema)
    try:
        grammar = compile_json_schema(schema, VOCABULARY)
    except InvalidGrammarError:
        assert not any(judge.is_valid(v) for v in candidates if _spelled_alike(v))
        return
    except UnsupportedGrammarError:
        return
    for value in candidates:
        valid = judge.is_valid(value)
        for ascii_only in (True, False):
            shown = accepts(grammar, json.dumps(value, ensure_ascii=ascii_only))
            if not valid:
                assert not shown, (schema, value)
            elif _in_order(value, schema) and _spelled_alike(value):
                assert shown, (schema, value)
    rng = random.Random(seed)
    for _ in range(3):
        text = walk(grammar.matcher(), rng, most=40)
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
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
        in_left, in_right = (re.fullmatch(p, text, re.ASCII) is not None for p in (left, right))
        assert matches(both, text) == (in_left and in_right)
        assert matches(only_left, text) == (in_left and not in_right and text not in ("ab", "é"))


@settings(max_examples=150, deadline=None)
@given(
    st.decimals(-200, 200, places=2), st.decimals(0, 50, places=2), st.booleans(), st.decimals(-260, 260, places=3)
)
def test_number_bounds_are_exact(low, width, strict, value):
    high = low + width
    ends = ("exclusiveMinimum", "exclusiveMaximum") if strict else ("minimum", "maximum")
    grammar = _compiled({"type": "number", ends[0]: float(low), ends[1]: float(high)})
    inside = low < value < high if strict else low <= value <= high
    text = f"{value:f}"
    if grammar is None:
        assert not inside
    elif not (value == 0 and text.startswith("-")):
        assert accepts(grammar, text) == inside, (low, high, strict, text)


def _bench_rows(count):
    with gzip.open(BENCH, "rt") as file:
        rows = [json.loads(line) for line in file]
    random.Random(3).shuffle(rows)
    return [row for row in rows if len(json.dumps(row["schema"])) < 20_000][:count]


@pytest.mark.skipif(not BENCH.exists(), reason=f"{BENCH} is not there")
def test_no_invalid_instance_of_the_bench_is_accepted():
    compiled = valid = passed = 0
    for row in _bench_rows(100):
        grammar = _compiled(row["schema"])
        compiled += grammar is not None
        for case in row["tests"] if grammar is not None else ():
            shown = accepts(grammar, json.dumps(case["data"]))
            if shown and not case["valid"]:
                judge = jsonschema.validators.validator_for(row["schema"], jsonschema.Draft202012Validator)
                assert judge(row["schema"]).is_valid(case["data"]), (row["id"], case["data"])
            valid += case["valid"]
            passed += case["valid"] and shown
    assert compiled >= 85 and passed >= 0.85 * valid
