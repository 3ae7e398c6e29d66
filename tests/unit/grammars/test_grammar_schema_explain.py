"""What `explain` says of every keyword, and that it agrees with what compiling does."""

import json
from pathlib import Path

import pytest
from grammar_support import byte_vocabulary

from sgl.grammars import GrammarError, InvalidGrammarError, UnsupportedGrammarError, compile_json_schema, explain
from sgl.grammars.schema.ignored_keywords import without

VOCABULARY = byte_vocabulary()
CASES = json.loads((Path(__file__).parent / "data" / "json_schema_cases.json").read_text())
INT = {"type": "integer"}


def verdicts(schema, **options):
    return {(f.where, f.keyword): f.verdict for f in explain(schema, **options)}


def refusals(schema, **options):
    return {place for place, verdict in verdicts(schema, **options).items() if verdict == "refused"}


def test_every_keyword_of_every_schema_has_one_verdict_in_order():
    schema = {
        "title": "t",
        "type": "object",
        "properties": {"type": INT, "b/c": {"anyOf": [INT, {"const": {"type": 1}}]}},
    }
    assert [(f.where, f.keyword, f.verdict) for f in explain(schema)] == [
        ("#", "title", "annotation"),
        ("#", "type", "exact"),
        ("#", "properties", "exact"),
        ("#/properties/type", "type", "exact"),
        ("#/properties/b~1c", "anyOf", "exact"),
        ("#/properties/b~1c/anyOf/0", "type", "exact"),
        ("#/properties/b~1c/anyOf/1", "const", "exact"),
    ]


def test_annotations_are_told_from_what_is_enforced():
    schema = {
        "default": 3,
        "examples": [1],
        "x-note": "n",
        "color": "red",
        "format": "date",
        "items": {"format": "color"},
    }
    found = verdicts(schema)
    assert {keyword for (place, keyword), v in found.items() if place == "#" and v == "annotation"} == schema.keys() - {
        "format",
        "items",
    }
    assert found["#", "format"] == "exact" and found["#/items", "format"] == "annotation"
    assert verdicts(schema, formats="annotation")["#", "format"] == "annotation"


def test_a_keyword_is_weakened_only_where_it_stands_as_one():
    schema = {"properties": {"not": {"not": {}, "type": "string"}}, "const": {"not": "x"}}
    weaker = verdicts(schema, weaken=["not"])
    assert {place for place, v in weaker.items() if v == "weakened"} == {("#/properties/not", "not")}


@pytest.mark.parametrize(
    "first,second",
    [
        ({"uniqueItems": True, "contains": {}}, {"pattern": "(?<=a)b"}),
        ({"minProperties": 5, "patternProperties": {"^a": {}}}, {"uniqueItems": True, "contains": {}}),
        ({"$ref": "http://elsewhere/schema"}, {"minLenght": 3}),
        ({"multipleOf": 1.0001, "type": "number"}, {"propertyNames": {"pattern": "(?!a)"}}),
    ],
    ids=str,
)
def test_a_refusal_that_hides_another_is_found_with_it(first, second):
    def places(schema, at):
        return refusals({"properties": {at: schema}})

    together = refusals({"properties": {"a": first, "b": second}})
    assert len(together) == 2
    assert together == places(first, "a") | places(second, "b")


def test_two_refused_keywords_of_one_schema_are_both_found():
    schema = {"items": {"uniqueItems": True, "contains": {}, "minProperties": 3, "patternProperties": {"^a": {}}}}
    assert refusals(schema) == {("#/items", "uniqueItems"), ("#/items", "minProperties")}


def test_a_refusal_says_why_and_prints_its_place():
    (finding,) = [
        f for f in explain({"properties": {"a": {"uniqueItems": True, "contains": {}}}}) if f.verdict == "refused"
    ]
    assert str(finding).startswith("refused") and "uniqueItems at #/properties/a" in str(finding)
    assert "together with contains" in finding.detail


@pytest.mark.parametrize(
    "schema",
    ["{", 7, {"type": "strnig"}, {"properties": {"a": {"minLength": -1}}}, {"$ref": "#/nowhere"}, False],
    ids=str,
)
def test_malformed_schemas_raise(schema):
    with pytest.raises(InvalidGrammarError):
        explain(schema)


def test_malformed_behind_a_refusal_raises():
    with pytest.raises(InvalidGrammarError):
        explain({"properties": {"a": {"uniqueItems": True, "contains": {}}, "b": {"minLength": -1}}})


def test_unknown_options_are_named():
    with pytest.raises(GrammarError, match="weaken"):
        explain({}, waeken=["not"])


def test_what_is_refused_in_the_cases_is_what_explain_refuses():
    """And nothing is, once that is cut out; what compiles has no refusal."""
    for case in CASES[::3] + [c for c in CASES if "refused" in c]:
        draft = {"$schema": "http://json-schema.org/draft-07/schema#"} if case["drafts"] == ["7"] else {}
        schema = {**draft, **case["schema"]} if isinstance(case["schema"], dict) else case["schema"]
        refused = refusals(schema)
        try:
            compile_json_schema(schema, VOCABULARY)
            assert not refused, case
        except UnsupportedGrammarError:
            assert refused, case
            rest, _ = without(schema, lambda place, keyword, refused=refused: (place, keyword) in refused)
            compile_json_schema(rest, VOCABULARY)


def test_formats_that_are_written_in_part_are_told():
    details = {f.keyword: f.detail for f in explain({"type": "string", "format": "hostname", "maxLength": 20})}
    assert "not all" in details["format"] and not details["maxLength"]


def test_what_is_not_told_of_contents_and_of_numbers_without_a_bound_is_said():
    (told,) = explain({"contentEncoding": "quoted-printable"}, content="enforced")
    assert (told.verdict, told.detail) == ("annotation", "quoted-printable is not enforced")
    schema = {"type": ["null", "number"]}
    (bound,), (free,) = explain(schema), explain(schema, digits=None)
    assert bound.verdict == free.verdict == "exact" and not bound.detail and "308 plain digits" in free.detail
    assert [*explain(schema, digits=309)] == [free] and [*explain(schema, digits=308)] == [bound]
