"""Parameters between marks, as structural tags ask for them with a style, and
tags with every field that models dump.
"""

from __future__ import annotations

import json
import random

import pytest
from grammar_walks import BYTES, accepts, walk

from sgl.grammars import InvalidGrammarError, UnsupportedGrammarError, compile_json_schema, compile_structural
from sgl.grammars.structural.parameter_styles import STYLES

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 1},
        "flag": {"type": "boolean"},
        "unit": {"enum": ["c", "f", 7]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "short": {"type": "string", "maxLength": 30},
        "long": {"type": "string", "minLength": 3, "maxLength": 3000},
        "maybe": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/name"}]},
        "inner": {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "day": {"type": "string", "format": "date"},
    },
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "minLength": 2}},
}
RIGHT = {
    "text": ["", "12", "two\nlines", "</", "<parameter", '"x"'],
    "count": ["1", "30"],
    "flag": ["true", "false"],
    "unit": ["c", "7"],
    "code": ["AB"],
    "short": ["", "a" * 30],
    "long": ["abc", "é" * 3000],
    "maybe": ["null", "ab"],
    "inner": ['{"a": "x"}'],
    "day": ["2026-02-28"],
}
WRONG = {
    "count": ["0", "x", '"1"', ""],
    "flag": ["yes", "1"],
    "unit": ["k", '"c"', "8"],
    "code": ["ABC", "a", '"AB"'],
    "short": ["a" * 31],
    "long": ["ab", "a" * 3001],
    "maybe": ["a", ""],
    "inner": ["{}", '{"a": 1}', "x"],
    "day": ["2026-02-30", "soon"],
}


TYPES = {"flag": "boolean", "maybe": "null", "inner": "object"}


def style_of(name, schema=SCHEMA, **more):
    return compile_structural({"type": "json_schema", "json_schema": schema, "style": name, **more}, BYTES)


def written(name, key, text, is_text):
    style = STYLES[name]
    naming = style.naming if is_text or style.typed is None else style.typed
    return f"{style.opening}{key}{''.join(naming).format(TYPES.get(key, 'number'))}{text}{style.closing}"


def is_text(key, text):
    return (
        key in ("text", "code", "short", "long", "day")
        or (key == "unit" and text != "7")
        or (key == "maybe" and text != "null")
    )


@pytest.mark.parametrize("name", STYLES)
def test_values_keep_to_their_schemas(name):
    grammar, first = style_of(name), written(name, "text", "x", True)
    for key, texts in RIGHT.items():
        for text in texts:
            one = written(name, key, text, is_text(key, text))
            assert accepts(grammar, one if key == "text" else first + "\n" + one), (key, text)
    for key, texts in WRONG.items():
        for text in texts:
            assert not accepts(grammar, first + written(name, key, text, False)) and not accepts(
                grammar, first + written(name, key, text, True)
            ), (key, text)


@pytest.mark.parametrize("name", STYLES)
def test_names_order_and_what_is_required(name):
    one, two = written(name, "text", "x", True), written(name, "count", "2", False)
    ordered, free = style_of(name), style_of(name, any_order=True)
    assert (
        accepts(ordered, one + two)
        and not accepts(ordered, two + one)
        and accepts(free, two + one)
        and accepts(free, one + two)
    )
    for grammar in (ordered, free):
        assert not accepts(grammar, "") and not accepts(grammar, two) and not accepts(grammar, one + one)
        assert not accepts(grammar, written(name, "txet", "x", True) + one)
    open_ended = style_of(
        name,
        {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    )
    assert accepts(open_ended, one + written(name, "more", "3", False)) and not accepts(
        open_ended, one + written(name, "more", "x", False)
    )


def test_lines_of_their_own_and_python_words_are_those_of_qwen():
    grammar = style_of("qwen_xml")
    lines = (
        "<parameter=text>\nx\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n<parameter=unit>\nc\n</parameter>\n"
    )
    assert accepts(grammar, lines) and not accepts(grammar, lines.replace("True", "TRUE"))
    assert not accepts(
        style_of("minimax_xml"),
        written("minimax_xml", "text", "x", True) + written("minimax_xml", "flag", "True", False),
    )


def test_marks_tell_the_type_of_each_value():
    def one(key, kind, text):
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'

    schema = {
        "type": "object",
        "properties": {'q"&': {"type": ["string", "null", "array"]}, "e": {"enum": ["x", 1, True]}},
    }
    grammar = style_of("kimi_k3_xml", {**schema, "additionalProperties": True})
    right = {"string": "<|close|>", "null": "null", "array": "[1]"}
    for kind, text in right.items():
        assert accepts(grammar, one("q&quot;&amp;", kind, text)) and accepts(grammar, one("free", kind, text)), kind
        assert not accepts(grammar, one('q"&', kind, text)) and not accepts(
            grammar, one("q&quot;&amp;", "number", text)
        )
    assert not accepts(grammar, one("q&quot;&amp;", "number", "1")) and not accepts(
        grammar, one("q&quot;&amp;", "null", "x")
    )
    for kind, text in {"string": "x", "number": "1", "boolean": "true"}.items():
        assert accepts(grammar, one("e", kind, text)) and not accepts(grammar, one("e", "object", text))
    assert not accepts(grammar, one("e", "string", "1")) and not accepts(grammar, one("e", "boolean", "1"))


def test_blanks_are_bounded():
    one, two = written("glm_xml", "text", "x", True), written("glm_xml", "count", "2", False)
    assert accepts(style_of("glm_xml"), f"\n{one}\n\n{two}\n") and not accepts(
        style_of("glm_xml"), f"{one}{' ' * 5}{two}"
    )
    capped = style_of("glm_xml", max_whitespace_cnt=1)
    assert accepts(capped, f"\n{one}\n{two}") and not accepts(capped, f"{one}\n\n{two}")
    spec = {"type": "json_schema", "json_schema": {"type": "array"}, "max_whitespace_cnt": 0}
    assert accepts(compile_structural(spec, BYTES), "[1,2]") and not accepts(compile_structural(spec, BYTES), "[1, 2]")


@pytest.mark.parametrize("name", STYLES)
def test_generated_values_fit(name):
    schema = {
        "type": "object",
        "properties": {"n": SCHEMA["properties"]["count"], "o": SCHEMA["properties"]["inner"]},
        "required": ["n", "o"],
        "additionalProperties": False,
    }
    style, whole = STYLES[name], compile_json_schema(schema, BYTES)
    for seed in range(5):
        text = walk(style_of(name, schema), random.Random(seed), 20)
        naming = (style.typed or style.naming)[-1].rpartition("{}")[2]
        found = {
            key: json.loads(part.split(naming, 1)[1].split(style.closing)[0])
            for key, part in zip("no", text.split(style.opening)[1:], strict=True)
        }
        assert accepts(whole, json.dumps(found)), text


TAG = {
    "type": "tag",
    "begin": "<a>",
    "content": {
        "type": "json_schema",
        "json_schema": {"type": "integer"},
        "style": "json",
        "any_order": False,
        "max_whitespace_cnt": None,
    },
    "end": "</a>",
}


def test_every_field_of_a_dumped_model_may_be_there():
    free = {"type": "any_text", "excludes": [], "max_tokens": None, "max_chars": None}
    tagged = {
        "type": "triggered_tags",
        "triggers": ["<a>"],
        "tags": [TAG],
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": ["<think>", "</think>"],
    }
    thought = {"type": "tag", "begin": "", "content": free, "end": "</think>"}
    grammar = compile_structural(
        {"type": "structural_tag", "format": {"type": "sequence", "elements": [thought, tagged]}}, BYTES
    )
    assert (
        accepts(grammar, "hm</think>So <a>3</a>")
        and not accepts(grammar, "hm</think><a>x</a>")
        and not accepts(grammar, "hm</think><think>")
    )


@pytest.mark.parametrize(
    ("more", "message", "kind"),
    [
        ({"style": "minimax_m3_xml"}, "minimax_m3_xml.*known are json, qwen_xml", UnsupportedGrammarError),
        ({"style": 3}, "style must be a style's name or its marks, not 3", InvalidGrammarError),
        ({"max_whitespace_cnt": -1}, "max_whitespace_cnt is -1", InvalidGrammarError),
        ({"max_whitespace_cnt": "1"}, "must be an integer", InvalidGrammarError),
        (
            {"min_whitespace_cnt": 1},
            "no field 'min_whitespace_cnt'; did you mean 'max_whitespace_cnt'",
            InvalidGrammarError,
        ),
        (
            {"style": "glm_xml", "json_schema": {"type": "object", "minProperties": 1}},
            "minProperties",
            UnsupportedGrammarError,
        ),
        ({"style": "glm_xml", "json_schema": {"anyOf": [{}]}}, "anyOf", UnsupportedGrammarError),
        ({"style": "glm_xml", "json_schema": {"type": "array"}}, "not of 'array'", InvalidGrammarError),
        (
            {"style": "glm_xml", "json_schema": {"required": ["a"]}},
            "'a' is none of the properties",
            UnsupportedGrammarError,
        ),
        ({"style": "glm_xml", "json_schema": {"properties": {"a<b": {}}}}, "taken for a mark", UnsupportedGrammarError),
    ],
)
def test_what_cannot_be_is_refused(more, message, kind):
    with pytest.raises(kind, match=message):
        compile_structural({"type": "json_schema", "json_schema": {"type": "object"}, **more}, BYTES)
