"""The table of JSON Schema's keywords in the reference: every example does what its column says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sgl import grammars
from sgl.grammars.schema.keyword_reader import _APPLIED, _REFUSED
from sgl.grammars.schema.string_formats import ENFORCED

PAGE = (Path(__file__).parents[2] / "docs/reference_grammars.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| keyword")
]
EXAMPLE = re.compile(r"`(\{.*\})`")


def examples(column: int) -> list[dict]:
    return [json.loads(found[1]) for row in ROWS if len(row) > column and (found := EXAMPLE.search(row[column]))]


@pytest.mark.parametrize("schema", examples(1), ids=json.dumps)
def test_taken(schema):
    verdicts = {finding.verdict for finding in grammars.explain(schema)}
    assert verdicts <= {"exact", "annotation"}, grammars.explain(schema)


@pytest.mark.parametrize("schema", examples(2), ids=json.dumps)
def test_refused(schema):
    assert "refused" in {finding.verdict for finding in grammars.explain(schema)}


def test_every_keyword_has_a_row():
    named = set(re.findall(r"`([$\w-]+)`", " ".join(row[0] for row in ROWS)))
    assert (_APPLIED | set(_REFUSED)) <= named | {"$ref"}


def test_the_formats_are_those_of_the_code():
    listed = PAGE.partition("<!-- formats -->")[2].partition("<!-- /formats -->")[0]
    assert set(re.findall(r"`([\w-]+)`", listed)) == set(ENFORCED)
