"""`sgl grammar`: every way to give a grammar, its messages, and the conversation."""

import json

import pytest

from sgl.cli import main
from sgl.commands.grammar_command import GrammarTrial, converse
from sgl.grammars import Vocabulary, compile_regex

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def test_a_schema_file_with_report_and_picture(tmp_path, capsys):
    file, picture = tmp_path / "s.json", tmp_path / "s.svg"
    file.write_text(json.dumps(SCHEMA))
    assert main(["grammar", str(file), "--svg", str(picture), "--text", '{"n": 1']) == 0
    out = capsys.readouterr().out
    assert "exact" in out and "additionalProperties" in out and "next characters" in out
    assert picture.read_text().startswith("<svg")


def test_keywords_that_are_left_out_are_named(capsys):
    schema = '{"type": "array", "items": {"type": "string"}, "uniqueItems": true, "contains": {"const": "a"}}'
    assert main(["grammar", "--json-schema", schema, "--option", "weaken=uniqueItems,contains"]) == 0
    out = capsys.readouterr().out
    assert "weakened   uniqueItems" in out and "weakened   contains" in out
    assert main(["grammar", "--json-schema", schema]) == 1


def test_a_text_that_is_not_taken_says_where(capsys):
    assert main(["grammar", "--regex", "[0-9]{4}-(0[1-9]|1[0-2])", "--text", "2024-13"]) == 1
    out = capsys.readouterr().out
    assert "refused: '3' after '2024-1'" in out and "next characters: 0-2" in out


def test_ebnf_by_file_ending(tmp_path, capsys):
    file = tmp_path / "g.gbnf"
    file.write_text('root ::= "a" root "b" | "c"\n')
    assert main(["grammar", str(file), "--text", "aacbb"]) == 0
    assert "may end here" in capsys.readouterr().out


def test_special_tokens_are_typed_by_their_names(capsys, tmp_path):
    ebnf = ["grammar", "--ebnf", 'start: /[ab]+/ <|tool|> "x" <|end|>']
    assert main([*ebnf, "--text", "ab<|tool|>x"]) == 0
    out = capsys.readouterr().out
    assert "next special tokens: <|end|>" in out and "shortest end: not known" in out
    assert main([*ebnf, "--text", "ab<|user|>"]) == 1
    assert "refused: '<' after 'ab'" in capsys.readouterr().out
    assert main([*ebnf, "--svg", str(tmp_path / "a.svg")]) == 1
    assert "a picture of a grammar with tokens as terminals" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one grammar"),
        (["--regex", "a", "--json-schema", "{}"], "give one grammar"),
        (["--regex", "(a"], "missing ')'"),
        (["--json-schema", '{"type": "strnig"}'], "did you mean 'string'"),
        (["--json-schema", "{}", "--option", "order"], "NAME=VALUE"),
        (["--regex", "a", "--option", "order=any"], "--option order=any is for JSON Schema"),
        (["--json-schema", "{}", "--option", "ordr=any"], "unknown schema option 'ordr'"),
        (["nothing.json"], "nothing.json"),
    ],
)
def test_what_is_wrong_is_said(arguments, message, capsys):
    assert main(["grammar", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_conversation(capsys):
    vocabulary = Vocabulary.from_bytes([bytes([i]) for i in range(256)] + [b""], [256])
    lines = iter(["ab", "x", "", ":back 2", ":reset", ":quit"])
    assert converse(GrammarTrial(compile_regex("ab(cd|e)f", vocabulary)), lambda prompt: next(lines)) == 0
    out = capsys.readouterr().out
    assert "refused: 'x' after 'ab'" in out and "next characters: c | e" in out
    assert out.count("forced: 'ab'") == 3


def test_a_grammar_that_remembers_is_drawn_and_tried(capsys, tmp_path):
    schema = '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}'
    assert main(["grammar", "--json-schema", schema, "--svg", str(tmp_path / "a.svg"), "--text", '["a", "a']) == 0
    assert (tmp_path / "a.svg").stat().st_size > 500
    assert "a" in capsys.readouterr().out
