"""Independent engines judge texts next to our automaton; what they cannot read is no verdict."""

from __future__ import annotations

import random
from itertools import product

import pytest
from ebnf_support import LONGEST, as_bnf, language, random_grammar
from grammar_support import byte_vocabulary, many

from sgl.grammars import (
    Grammar,
    GrammarError,
    GrammarLimitError,
    Verdict,
    Verification,
    compile_choices,
    compile_ebnf,
    compile_json_schema,
    compile_regex,
    compile_structural,
    verify,
)
from sgl.grammars.compile import GrammarRecipe
from sgl.grammars.ebnf import ebnf_expr
from sgl.grammars.second_opinion import engine_process
from sgl.grammars.second_opinion.engine_table import ENGINES
from sgl.grammars.second_opinion.lark_earley import earley_recogniser
from sgl.grammars.second_opinion.no_verdict_error import NoVerdictError
from sgl.grammars.second_opinion.outlines_index import index_recogniser
from sgl.grammars.second_opinion.regex_engines import automaton_recogniser, re_recogniser

VOCABULARY = byte_vocabulary([b"<|tool|>"])
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
JUDGED = [
    (compile_ebnf('start: "(" start ")" | /[a-z]/', VOCABULARY), ["((a))", "x"], ["", "(a", "é"], {"lark"}),
    (compile_ebnf('root ::= "(" root ")" | [a-z]', VOCABULARY), ["((a))", "x"], ["", "(a", "é"], {"lark"}),
    (compile_ebnf("%import .m.A -> B\nstart: B B", VOCABULARY, imports={"m.lark": 'A: "a"'}), ["aa"], ["a"], {"lark"}),
    (
        compile_regex(r"^cat|cat(egory)?(\.js)*$", VOCABULARY),
        ["cat", "category.js.js"],
        ["", "category.", "cat\n"],
        {"re", "interegular", "outlines-core"},
    ),
    (
        compile_choices(["", "a.b", "c|d", "é\n"], VOCABULARY),
        ["", "a.b", "c|d", "é\n"],
        ["axb", "c", "é"],
        {"re", "interegular", "outlines-core"},
    ),
    (compile_json_schema(SCHEMA, VOCABULARY), ['{"n": 1}', '{"n":-20}'], ["{}", '{"n": 01}'], {"outlines-core"}),
]


@pytest.mark.parametrize(
    ("grammar", "good", "bad", "engines"), JUDGED, ids=["lark", "gbnf", "imports", "regex", "choices", "json schema"]
)
def test_engines_judge_what_they_read(grammar, good, bad, engines):
    found = verify(grammar, [*good, *bad])
    assert [row.text for row in found.texts] == [*good, *bad]
    assert [row.ours.accepts for row in found.texts] == [True] * len(good) + [False] * len(bad)
    for row in found.texts:
        assert {v.engine for v in row.others if v.accepts is not None} == engines
        assert row.confirmed and row.judged
    assert found.differences == found.unjudged == ()


def test_who_differs_is_named():
    found = verify(compile_ebnf("start: /a|ab/", VOCABULARY), ["a", "ab"])  # lark's lexer takes the first alternative
    (row,) = found.differences
    assert row.text == "ab" and row.ours == Verdict("sgl", True) and not row.confirmed
    assert row.differing == (Verdict("lark", False),)
    assert str(found) == (
        "text  sgl      lark\n"
        "'a'   accepts  accepts\n"
        "'ab'  accepts  refuses\n"
        "re: not supported: it reads regular expressions\n"
        "interegular: not supported: it reads regular expressions\n"
        "outlines-core: not supported: it reads regular expressions and JSON Schema\n"
        "differs: 'ab': sgl accepts, lark refuses\n"
        "texts: 1 confirmed, 1 differ, 0 without a second opinion"
    )


UNREAD = [
    (compile_ebnf('start: x{2,3}\nx: "a"', VOCABULARY), "lark cannot read it: "),
    (compile_ebnf("start: A\n%declare A", VOCABULARY, declared={"A": "x"}), "no texts for the terminals of %declare"),
    (compile_ebnf('root ::= <|tool|> "a"', VOCABULARY), "Lark's syntax has no '<|tool|>"),
    (compile_structural({"type": "any_text"}, VOCABULARY), "it reads EBNF grammars"),
]


@pytest.mark.parametrize(("grammar", "reason"), UNREAD, ids=[reason for _, reason in UNREAD])
def test_what_no_engine_reads_is_not_confirmed(grammar, reason):
    found = verify(grammar, ["aa"])
    (row,) = found.unjudged
    assert not row.confirmed and not row.differing and found.differences == ()
    assert reason in row.others[0].reason and "0 confirmed, 0 differ, 1 without" in str(found)


def test_texts_that_an_engine_cannot_judge_have_their_reason():
    found = verify(compile_regex(r"\w+", VOCABULARY), ["é", "e"])
    reasons = {v.engine: v.reason for v in found.texts[0].others}
    assert reasons["interegular"] == r"its \d, \w and \s are ASCII, and the text is not" and not reasons["re"]
    assert all(row.confirmed for row in found.texts)
    assert r"not supported: its \d, \w and \s are ASCII, and the text is not" in str(found).split("\n")[1]


@pytest.mark.parametrize("make", [re_recogniser, automaton_recogniser, index_recogniser])
def test_regexes_that_an_engine_does_not_know_are_refused(make):
    for pattern in (r"(?<year>a)", r"\p{Lu}", "(a"):
        try:
            assert make(pattern)("a") == (pattern[-1] == ")")
        except NoVerdictError as error:
            assert "cannot read it: " in str(error)
    if make is not re_recogniser:
        with pytest.raises(NoVerdictError, match="anchor \\$ inside"):
            make("(a$|b)c")


def test_an_index_tries_all_alternatives():
    assert index_recogniser("a|ab")("ab") and index_recogniser(r"12(\.5)?")("12.5")
    with pytest.raises(NoVerdictError, match="marks its end"):
        index_recogniser(".*")("\U0010ffff")


def test_imports_are_the_given_texts_and_no_files(tmp_path, monkeypatch):
    (tmp_path / "m.lark").write_text('A: "a"')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoVerdictError, match=r"m\.lark.*not given"):
        earley_recogniser("%import .m.A\nstart: A")
    imports = [("d/n.lark", "%import .o.Z\nn: Z Z"), ("d/o.lark", 'Z: "b"'), ("o.lark", 'Z: "c"')]
    parses = earley_recogniser("%import .d.n.n\n%import common.INT\nstart: n INT", "lark", None, imports)
    assert parses("bb12") and not parses("cc12")


def test_translated_grammars_have_their_language():
    rng = random.Random(31)
    texts = ["".join(text) for size in range(LONGEST - 1) for text in product("ab", repeat=size)]
    for _ in range(many(25)):
        text = as_bnf(grammar := random_grammar(rng))
        expected = language(grammar, LONGEST - 2)
        parses = earley_recogniser(text)
        assert {t for t in texts if parses(t)} == expected, text


TRANSLATED = [
    (r'root ::= "a\n\t\\\"\x41\u00e9/*[" [^\]a-c\\/-] .', ['a\n\t\\"Aé/*[d\n', 'a\n\t\\"Aé/*[[é'], ['a\n\t\\"Aé/*[-d']),
    ("root ::= '\"'{2} [a-z]{,2} ('x' | y-1){1,} # no\ny-1 ::= \"\" 'y'", ['""yx', '""aay'], ['"y', '""']),
    ('start ::= root\nroot ::= ("a"? "b"*){3}', ["", "abab", "ababab", "babbab"], ["ababaaa", "bc"]),
]


@pytest.mark.parametrize(("text", "good", "bad"), TRANSLATED)
def test_translated_terminals(text, good, bad):
    parses, ours = earley_recogniser(text), compile_ebnf(text, VOCABULARY)
    assert [t for t in good if not parses(t)] == [t for t in bad if parses(t)] == []
    assert [row.ours.accepts for row in verify(ours, [*good, *bad]).texts] == [True] * len(good) + [False] * len(bad)


# engines that fail


def test_an_engine_that_takes_too_long_has_no_verdict():
    found = verify(compile_regex("(a|a)*b", VOCABULARY), ["ab", "a" * 50, "b"], seconds=3)
    verdicts = [next(v for v in row.others if v.engine == "re") for row in found.texts]
    assert verdicts[0].accepts and {v.reason for v in verdicts[1:]} == {"no answer within 3 s"}
    assert all(row.confirmed for row in found.texts)


def test_a_text_that_is_too_much_for_ours_is_not_judged(monkeypatch):
    def advance(self, state: int, data: bytes) -> int:
        raise GrammarLimitError("too many threads")

    grammar = compile_regex("a", VOCABULARY)
    monkeypatch.setattr(type(grammar.automaton), "advance", advance)
    (row,) = verify(grammar, ["a"]).unjudged
    assert row.ours == Verdict("sgl", None, "too many threads") and row.differing == () and row.others[1].accepts


def test_a_process_that_ends_early_has_no_verdict(monkeypatch):
    monkeypatch.setattr(
        engine_process, "_PROGRAM", "import sys; print('[true, \"\"]\\n[fal', end=''); sys.exit('gone')"
    )
    answers = engine_process.answers_of("re", GrammarRecipe("regex", "a"), ["a", "b"], 30)
    assert answers == [(True, ""), (None, "its process ended with exit code 1: gone")]


def test_errors_of_an_engine_are_reasons(monkeypatch):
    def recogniser(error: Exception):
        def accepts(text: str) -> bool:
            raise error

        return accepts

    monkeypatch.setitem(ENGINES, "re", {"regex": recogniser})
    for error, reason in ((MemoryError(), "it needs more than 4 GB"), (OSError("x"), "it failed with OSError: x")):
        assert list(engine_process._answers("re", GrammarRecipe("regex", error), ["a"])) == [(None, reason)]


def test_what_cannot_be_verified_is_refused():
    grammar = compile_regex("a", VOCABULARY)
    with pytest.raises(GrammarError, match="list of strings, not 'abc'"):
        verify(grammar, "abc")
    with pytest.raises(GrammarError, match="list of strings"):
        verify(grammar, [b"a"])
    with pytest.raises(GrammarError, match="positive, not 0"):
        verify(grammar, ["a"], seconds=0)
    with pytest.raises(GrammarError, match="no source"):
        verify(Grammar(ebnf_expr('start: "a"'), VOCABULARY), ["a"])
    assert verify(grammar, []) == Verification(())
