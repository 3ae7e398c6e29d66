"""Readers against short ones that have the whole text before them, on calls in
all the shapes that JSON and Python allow.
"""

from __future__ import annotations

import ast
import json
import re
from keyword import iskeyword

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgl.runtime.dialects import ArgumentsDelta, ToolCallEnd, ToolCallStart, dialect_named

NAMES = ["get", "x"]
DECODER = json.JSONDecoder()

keys = st.from_regex(r"[a-z][a-z_0-9]{0,5}", fullmatch=True).filter(
    lambda key: not iskeyword(key)
)  # `ast` takes no f(in=1)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(keys, values, max_size=3)
words = st.from_regex(r"[A-Za-z ,.!\n]{0,20}", fullmatch=True)
written = st.builds(
    lambda value, indent, ascii, tight: json.dumps(
        value, indent=indent, ensure_ascii=ascii, separators=(",", ":") if tight else None
    ),
    st.deferred(lambda: objects),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
    st.booleans(),
)
objects = st.one_of(
    st.builds(
        lambda name, given, id: {"name": name, **id, "KEY": given},
        st.sampled_from([*NAMES, "other"]),
        arguments,
        st.sampled_from([{}, {"id": "i"}, {"type": "function"}]),
    ),
    st.builds(lambda name, given: {"KEY": given, "name": name}, st.sampled_from(NAMES), arguments),
    st.builds(
        lambda name, given: {"KEY": json.dumps(given), "name": name, "id": "late"}, st.sampled_from(NAMES), arguments
    ),
    st.builds(lambda given: {"city": given, "name": "get"}, arguments),
    st.builds(lambda given: {"name": 3, "KEY": given}, arguments),
)
often = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def call_of(found):
    """A call as the tests' own reading has it: the value of a whole JSON text."""
    first = next(iter(found), "")
    given = found.get("arguments", found.get("parameters", {}))
    given = json.loads(given) if isinstance(given, str) else given
    return (found["name"], given) if first not in ("city",) and isinstance(found.get("name"), str) else None


def values_at(text, starts):
    """The JSON objects that begin at some places, none inside another."""
    end = 0
    for start in starts:
        if start >= end:
            value, end = DECODER.raw_decode(text, start)
            yield value


def hermes(text):
    starts = [m.end() for m in re.finditer(r"<tool_call>\s*(?=\{)", text)]
    return [call for call in map(call_of, values_at(text, starts)) if call]


def llama(text):
    starts = [m.start() for m in re.finditer(r"\{", text)]
    return [call for call in map(call_of, values_at(text, starts)) if call and call[0] in NAMES]


def streamed(name, text):
    found, reader = {}, dialect_named(name).read(NAMES, None)
    for event in [event for char in text for event in reader.feed(char)] + reader.feed("", last=True):
        match event:
            case ToolCallStart(index, _, called):
                found[index] = [called, ""]
            case ArgumentsDelta(index, more):
                found[index][1] += more
            case ToolCallEnd(index, complete):
                assert complete, text
    return [(called, json.loads(given)) for called, given in found.values()]


def compare(name, oracle, text):
    expected = oracle(text)
    assert streamed(name, text) == expected
    assert [(call.name, call.arguments) for call in dialect_named(name).parse(text, NAMES)[1]] == expected


@given(
    st.lists(st.tuples(words, written, st.sampled_from(["", "\n"]), st.sampled_from(["</tool_call>", ""])), max_size=3),
    words,
)
@often
def test_hermes(parts, end):
    text = "".join(
        f"{said}<tool_call>{blank}{call.replace('KEY', 'arguments')}{blank}{close}"
        for said, call, blank, close in parts
    )
    compare("hermes", hermes, text + end)


@given(st.lists(st.tuples(words, written, st.sampled_from(["", "; ", "<|python_tag|>"])), max_size=3), words)
@often
def test_llama(parts, end):
    text = "".join(f"{said}{mark}{call.replace('KEY', 'parameters')}" for said, call, mark in parts)
    compare("llama", llama, text + end)


@given(words, st.lists(written, max_size=3), words)
@often
def test_mistral(said, listed, end):
    body = f"[{', '.join(listed)}]".replace("KEY", "arguments")
    found = [call_of(one) for one in json.loads(body)]
    expected = found[: found.index(None)] if None in found else found  # a list goes as far as there are calls
    compare("mistral", lambda text: expected, f"{said}[TOOL_CALLS]{body}{end}")


def literals(text):
    """The calls of the first list in a text, by Python's own parser."""
    tree = ast.parse(text[text.index("[") : text.rindex("]") + 1], mode="eval").body
    return [(call.func.id, {one.arg: ast.literal_eval(one.value) for one in call.keywords}) for call in tree.elts]


@given(
    words,
    st.lists(st.tuples(st.sampled_from(NAMES), arguments, st.sampled_from([", ", ",", " , "])), min_size=1, max_size=3),
    words,
)
@often
def test_pythonic(said, listed, end):
    calls = [
        f"{name}({comma.join(f'{key}={value!r}' for key, value in given.items())})" for name, given, comma in listed
    ]
    compare("pythonic", literals, f"{said}[{', '.join(calls)}]{end}")


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "pythonic", "nano"])
def test_text_without_calls_stays_as_it_is(name):
    assert dialect_named(name).parse("Well, 2 < 3; so be it.", NAMES) == ("Well, 2 < 3; so be it.", [])
