"""Whatever a random model wants to say: text under a constraint matches it fully, or says that it was cut."""

from __future__ import annotations

import json
import random
import re

import pytest

from sgl import grammars
from sgl.runtime import SamplingParams

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": -3, "maximum": 12}, "b": {"type": "boolean"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 6},
            "tags": {"type": "array", "items": {"enum": ["x", "yy", "zzz"]}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "number"}]}, "maxItems": 4},
    {
        "type": "object",
        "properties": {"when": {"type": "string", "format": "date"}, "kind": {"const": "Zoë ☂"}},
        "required": ["when", "kind"],
        "additionalProperties": False,
    },
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"enum": ["one", "two", 3, None, {"deep": [1, 2]}]},
]
REGEXES = [
    r"[a-z]{3}-\d{2,4}",
    r"(yes|no|maybe)( indeed)?",
    r"\"[^\"]{0,12}\"",
    r"(?:ab|abc){1,4}",
    r"[äöü☂]{2,5}",
    r"a?b*c+",
]


def outcomes(engine, compiled, options):
    futures = []
    for seed, (wanted, grammar) in enumerate(compiled):
        for repeat in range(4):
            sequence = engine.open()
            sequence.extend(engine.tokenizer.encode(f"Answer {repeat}: ", special_prefix=True))
            limit = random.Random(seed * 7 + repeat).choice([1, 4, 15, 60])
            params = SamplingParams(max_tokens=limit, seed=seed + repeat, temperature=1.5, **options)
            futures.append((wanted, sequence, len(sequence.tokens()), sequence.generate(params, grammar)))
    return [(wanted, sequence, start, future.result(60)) for wanted, sequence, start, future in futures]


@pytest.mark.parametrize("jump", [True, False])
@pytest.mark.parametrize("close", [True, False])
def test_json_schemas(open_engine, jump, close):
    engine = open_engine(jump_forward=jump)
    compiled = [(schema, grammars.compile_json_schema(schema, engine.vocabulary)) for schema in SCHEMAS]
    cut = 0
    for schema, sequence, start, done in outcomes(engine, compiled, {"close_at_limit": close}):
        whole = done.closed or not done.truncated
        assert done.truncated == (done.finish_reason["type"] == "length") and not (done.closed and not close)
        cut += not whole
        if whole:
            jsonschema.validate(json.loads(done.text), schema, format_checker=jsonschema.FormatChecker())
        assert sequence.tokens().tolist()[start:] == done.token_ids
        assert not whole or engine.tokenizer.decode(done.token_ids) == done.text
        assert jump or done.forced_tokens == 0
    assert (cut == 0) if close else (cut > 0)


@pytest.mark.parametrize("jump", [True, False])
def test_regexes_and_choices(open_engine, jump):
    engine = open_engine(jump_forward=jump)
    compiled = [(pattern, grammars.compile_regex(pattern, engine.vocabulary)) for pattern in REGEXES]
    words = ["cat", "category", "catalogue", "dog", "☂", "two words"]
    compiled.append(("|".join(map(re.escape, words)), grammars.compile_choices(words, engine.vocabulary)))
    for pattern, _, _, done in outcomes(engine, compiled, {}):
        if not done.truncated:
            assert re.fullmatch(pattern, done.text), (pattern, done.text)


def test_constrained_and_free_requests_share_a_batch(engine):
    """Trap 7.7: the mask of a step sees the token before it, and binds its own row only."""
    grammar = grammars.compile_regex("[0-9]{20}", engine.vocabulary)
    alone = engine.generate("x", max_tokens=30, seed=3).text
    futures = []
    for index in range(8):
        sequence = engine.open()
        sequence.extend(engine.tokenizer.encode("x", special_prefix=True))
        futures.append(sequence.generate(SamplingParams(max_tokens=30, seed=3), grammar if index % 2 else None))
    texts = [future.result(60).text for future in futures]
    assert all(re.fullmatch("[0-9]{20}", text) for text in texts[1::2])
    assert all(text == alone for text in texts[::2])


def test_an_end_token_ends_what_may_end_and_a_special_token_never_slips_in(engine):
    grammar = grammars.compile_regex("(ab)*", engine.vocabulary)
    for seed in range(20):
        done = engine.generate("x", grammar=grammar, max_tokens=12, seed=seed, temperature=2.0)
        assert done.truncated or re.fullmatch("(ab)*", done.text)
        assert not set(done.token_ids) & engine.tokenizer.special_ids


def test_a_grammar_that_forces_everything_needs_no_step(open_engine):
    engine = open_engine()
    grammar = grammars.compile_choices(["only this will do"], engine.vocabulary)
    done = engine.generate("x", grammar=grammar)
    assert done.text == "only this will do" and done.forced_tokens == done.completion_tokens
    assert engine.stats().steps == 0
