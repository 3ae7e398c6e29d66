"""Every rule, by the examples of docs/check.md: the first of each two is reported, the second is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sgl.lang.check import RULES, check_source

TEXT = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
_SECTION = re.compile(r"^## (SGL\d+): ([^\n]*) \((\w+)\)\n(.*?)(?=^## |\Z)", re.M | re.S)
EXAMPLES = {
    rule: (title, severity, re.findall(r"```python\n(.*?)```", body, re.S))
    for rule, title, severity, body in _SECTION.findall(TEXT)
}


def test_every_rule_is_documented() -> None:
    assert list(EXAMPLES) == list(RULES)
    for name, (title, severity, examples) in EXAMPLES.items():
        assert (RULES[name].title, RULES[name].severity) == (title, severity)
        assert len(examples) == 2, name


@pytest.mark.parametrize("rule", RULES)
def test_examples(rule: str) -> None:
    _, severity, (bad, good) = EXAMPLES[rule]
    found = check_source(bad, "bad.py")
    assert {problem.rule for problem in found} == {rule}
    assert {problem.severity for problem in found} == {severity}
    assert check_source(good, "good.py") == []


def test_a_grammar_that_speaks_of_tokens_is_left_to_the_model():
    from sgl.lang.check.constraint_checks import _may_write, refusal

    grammar = 'start: "a" <|mark|>'
    assert refusal("ebnf", grammar) == (None, False) and _may_write("ebnf", grammar, "b")
