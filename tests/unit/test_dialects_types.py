"""Parameters between marks: a string that looks like another value stays a
string, however its schema says that it is one.
"""

import json

import pytest

from sgl.runtime.dialects import DialectToolCall, dialect_named

DEFS = {
    "pick": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "a b": {"type": "string"},
    "c": {"$anchor": "there", "type": "string"},
}
DEFS |= {"d": {"$id": "http://a.b/c", "type": "string"}}
TEXTS = ["12", "true", "null", "[1]", '{"a": 1}', "1.5", '"12"', "twelve"]
STRINGS = {
    "a reference into anyOf": {"properties": {"p": {"$ref": "#/$defs/pick/anyOf/0"}}},
    "an anchor": {"properties": {"p": {"$ref": "#there"}}},
    "a percent-encoded pointer": {"properties": {"p": {"$ref": "#/$defs/a%20b"}}},
    "an id": {"properties": {"p": {"$ref": "http://a.b/c"}}},
    "not": {"properties": {"p": {"not": {"type": ["null", "boolean", "integer", "number", "array", "object"]}}}},
    "additionalProperties": {"additionalProperties": {"type": "string"}},
    "patternProperties": {"patternProperties": {"^p$": {"type": "string"}}},
    "allOf": {
        "allOf": [
            {"properties": {"p": {"type": ["string", "integer"]}}},
            {"properties": {"p": {"minLength": 1, "type": "string"}}},
        ]
    },
    "a reference of the whole": {"$ref": "#/$defs/whole"},
}
DEFS |= {"whole": {"properties": {"p": {"type": "string"}}}}


@pytest.mark.parametrize("how", STRINGS)
@pytest.mark.parametrize("name", ["qwen3-coder", "glm45", "minimax"])
def test_a_string_comes_back_as_it_is(name, how):
    dialect, schema = dialect_named(name), {"type": "object", **STRINGS[how], "$defs": DEFS}
    for text in TEXTS:
        _, [call] = dialect.parse(dialect.write("", [DialectToolCall("f", {"p": text})]), {"f": schema})
        assert call.arguments == {"p": text}


@pytest.mark.parametrize("name", ["qwen3-coder", "glm45", "minimax"])
def test_other_values_come_back_as_what_they_are(name):
    dialect, schema = (
        dialect_named(name),
        {
            "properties": {
                "p": {"not": {"type": "string"}},
                "q": {"type": ["string", "number"], "not": {"type": "integer"}},
            }
        },
    )
    for value in (12, True, None, [1], {"a": 1}, 1.5):
        _, [call] = dialect.parse(dialect.write("", [DialectToolCall("f", {"p": value})]), {"f": schema})
        assert json.dumps(call.arguments) == json.dumps({"p": value})
    for value, read in (("12", "12"), ("1.5", 1.5), ("x", "x")):
        _, [call] = dialect.parse(dialect.write("", [DialectToolCall("f", {"q": value})]), {"f": schema})
        assert call.arguments == {"q": read}
