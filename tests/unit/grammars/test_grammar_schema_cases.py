"""Cases of our own for every keyword of drafts 7 and 2020-12: the `jsonschema`
library judges the cases, the cases us.
"""

import json
from pathlib import Path

import pytest
from grammar_support import JSON_PIECES, accepts, as_digits, byte_vocabulary

from sgl.grammars import UnsupportedGrammarError, compile_json_schema

jsonschema = pytest.importorskip("jsonschema")
VOCABULARY = byte_vocabulary(JSON_PIECES)
CASES = json.loads((Path(__file__).parent / "data" / "json_schema_cases.json").read_text())
DRAFTS = {
    "7": ("http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
    "2020": ("https://json-schema.org/draft/2020-12/schema", jsonschema.Draft202012Validator),
}
RUNS = [pytest.param(c, d, id=f"{c['keyword']}: {c['what']} ({d})") for c in CASES for d in c["drafts"]]


def _schema(case, draft):
    schema = case["schema"]
    return {"$schema": DRAFTS[draft][0], **schema} if isinstance(schema, dict) else schema


def _refused(schema, **options):
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_json_schema(schema, VOCABULARY, **options)
    return caught.value.keyword


@pytest.mark.whole
@pytest.mark.parametrize("case,draft", RUNS)
def test_the_library_agrees_with_the_case(case, draft):
    if "refused" not in case and "library" not in case:
        judge = DRAFTS[draft][1](_schema(case, draft))
        assert [v for v in case["valid"] if not judge.is_valid(v)] == []
        assert [v for v in case["invalid"] if judge.is_valid(v)] == []


@pytest.mark.parametrize("case,draft", RUNS)
def test_exactly_the_valid_instances_pass_in_any_order(case, draft):
    schema = _schema(case, draft)
    if "refused" in case:
        assert _refused(schema, order="any") == case["refused"]
        return
    grammar = compile_json_schema(schema, VOCABULARY, order="any", integers="json")
    assert [v for v in case["valid"] if not accepts(grammar, json.dumps(v, ensure_ascii=False))] == []
    assert [v for v in case["invalid"] if accepts(grammar, json.dumps(v, ensure_ascii=False))] == []


@pytest.mark.parametrize("case,draft", RUNS)
def test_order_alone_is_refused_in_the_schemas_order(case, draft):
    schema = _schema(case, draft)
    if "refused" in case:
        assert _refused(schema) == case["refused"]
        return
    grammar = compile_json_schema(schema, VOCABULARY, integers="json")
    simple = [v for v in case["valid"] if not isinstance(v, dict) or len(v) < 2]
    assert [v for v in simple if not accepts(grammar, json.dumps(v, ensure_ascii=False))] == []
    assert [v for v in case["invalid"] if accepts(grammar, json.dumps(v, ensure_ascii=False))] == []


@pytest.mark.parametrize("case,draft", [run for run in RUNS if "refused" not in run.values[0]])
def test_valid_instances_with_integers_of_digits_pass_by_default(case, draft):
    grammar = compile_json_schema(_schema(case, draft), VOCABULARY, order="any", digits=None)
    assert [v for v in case["valid"] if not accepts(grammar, json.dumps(as_digits(v), ensure_ascii=False))] == []
    assert [v for v in case["invalid"] if accepts(grammar, json.dumps(v, ensure_ascii=False))] == []
