"""Strings that hold bytes in ASCII, or JSON, compared with the decoders of the standard library."""

from __future__ import annotations

import base64
import binascii
import json
import random

import pytest
from grammar_support import CORES, accepts, byte_vocabulary, many, walk

from sgl.grammars import Grammar, UnsupportedGrammarError, compile_json_schema, explain
from sgl.grammars.schema.schema_builder import SchemaOptions, schema_expr

VOCABULARY = byte_vocabulary([b'{"', b'\\"', b'": ', b"AA", b"==", b"\\\\"])
CODES = {
    "base64": (base64.b64encode, lambda text: base64.b64decode(text, validate=True), "AQZ+/="),
    "base64url": (base64.urlsafe_b64encode, base64.urlsafe_b64decode, "AQZ-_="),
    "base32": (base64.b32encode, base64.b32decode, "AQ7="),
    "base16": (base64.b16encode, base64.b16decode, "0AF"),
}
JSON = {"type": "string", "contentMediaType": "application/json"}
TREE = {
    "type": "object",
    "properties": {"v": {"enum": ['a"b\n', "é", "\\"]}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["v"],
    "additionalProperties": False,
}
HELD = {
    "$defs": {"tree": TREE},
    "type": "object",
    "properties": {"x": JSON | {"contentSchema": {"$ref": "#/$defs/tree"}}},
    "required": ["x"],
    "additionalProperties": False,
}


def compiled(schema, **options):
    return compile_json_schema(schema, VOCABULARY, content="enforced", **options)


def canonical(name: str, text: str) -> bool:
    """Whether a text is just what the encoder writes for some bytes."""
    encode, decode, _ = CODES[name]
    try:
        return encode(decode(text)).decode() == text
    except (binascii.Error, ValueError):
        return False


@pytest.mark.parametrize("name", CODES)
def test_encodings_are_those_of_the_encoders(name):
    rng, grammar = random.Random(name), compiled({"contentEncoding": name})
    for size in range(12):
        assert accepts(grammar, json.dumps(CODES[name][0](rng.randbytes(size)).decode()))
    found = set()
    for _ in range(many(150)):
        text = "".join(rng.choice(CODES[name][2]) for _ in range(rng.randint(0, 8)))
        expected = canonical(name, text)
        found.add(expected)
        if name != "base64url" or text.endswith("=") or len(text) % 4 == 0:  # its padding may be left out
            assert accepts(grammar, json.dumps(text)) == expected
    assert found == {True, False}


def test_an_encoding_goes_together_with_other_keywords():
    grammar = compiled({"type": "string", "contentEncoding": "base64", "minLength": 5, "maxLength": 8, "pattern": "^Q"})
    assert accepts(grammar, '"QUJDRA=="') and not accepts(grammar, '"QUJD"') and not accepts(grammar, '"AUJDRA=="')
    other = compiled({"type": "string", "not": {"contentEncoding": "base64"}, "maxLength": 4})
    assert accepts(other, '"QUJ"') and not accepts(other, '"QUJD"') and not accepts(other, '"QR=="')
    assert accepts(compiled({"enum": ["QUJD", "QU"], "contentEncoding": "BASE64"}), '"QUJD"')
    assert not accepts(compiled({"enum": ["QUJD", "QU"], "contentEncoding": "base64"}), '"QU"')


def test_json_within_a_string():
    grammar = compiled(JSON, order="any")
    for text in ('{"foo": "b\\\\a\\"r"}', '[1, {"a": [null]}]', '"é"', "12", '"\\u00e9"', "{}"):
        assert accepts(grammar, json.dumps(text)) and accepts(grammar, json.dumps(text, ensure_ascii=False))
    for text in ("{:}", "[1,", "nul", "", "[1]]", '{"a" 1}'):
        assert not accepts(grammar, json.dumps(text))
    listed = compiled(JSON | {"enum": ["{}", "{", "NaN", "[1]"], "contentSchema": {"type": "object"}})
    assert [text for text in ("{}", "{", "NaN", "[1]") if accepts(listed, json.dumps(text))] == ["{}"]


@pytest.mark.parametrize(
    "options", [{}, {"ascii": True}, {"whitespace": "indented"}, {"whitespace": "free", "order": "any"}]
)
def test_what_is_written_holds_what_its_schema_says(options):
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(TREE | {"$defs": {"tree": TREE}})
    rng = random.Random(1)
    for core in CORES:
        expr = schema_expr(HELD, SchemaOptions.of({"content": "enforced", **options}))
        grammar = Grammar(expr, VOCABULARY, core)
        for _ in range(many(6)):
            checker.validate(json.loads(json.loads(walk(grammar.matcher(), rng))["x"]))


def test_what_is_not_told_is_refused_by_name():
    for schema, what in (
        (JSON | {"contentEncoding": "base64"}, "JSON within base64"),
        (JSON | {"minLength": 3}, "together with other keywords of strings"),
        (JSON | {"not": {"const": "1"}}, "together with other keywords of strings"),
        ({"not": JSON}, "strings that are not JSON"),
        ({"type": "object", "propertyNames": JSON}, "name of a property"),
        (JSON | {"contentSchema": {"type": "array", "items": {"$ref": "#"}}}, "holds such a string again"),
        ({"type": "array", "uniqueItems": True, "items": JSON}, "uniqueItems"),
    ):
        with pytest.raises(UnsupportedGrammarError, match=what):
            compiled(schema)


def test_the_draft_says_whether_content_counts():
    seven = {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64"}
    assert not accepts(compile_json_schema(seven, VOCABULARY), '"%"')
    assert accepts(compile_json_schema(seven, VOCABULARY, content="annotation"), '"%"')
    for schema in (
        {"contentEncoding": "base64"},
        JSON,
        seven | {"$schema": "https://json-schema.org/draft/2020-12/schema"},
    ):
        assert accepts(compile_json_schema(schema, VOCABULARY), '"%"')
    assert accepts(compiled({"contentEncoding": "quoted-printable", "contentMediaType": "image/png"}), '"%"')


def test_explain_says_what_of_the_content_is_enforced():
    schema = {"contentEncoding": "base64", "contentMediaType": "image/png"}
    told = [(f.keyword, f.verdict) for f in explain(schema, content="enforced")]
    assert told == [("contentEncoding", "exact"), ("contentMediaType", "annotation")]
    assert all(f.verdict == "annotation" and "content='enforced'" in f.detail for f in explain(schema))
    assert explain({"$schema": "http://json-schema.org/draft-07/schema#", **JSON})[-1].verdict == "exact"
    assert {f.verdict for f in explain(JSON | {"contentEncoding": "base64"}, content="enforced")} >= {"refused"}
