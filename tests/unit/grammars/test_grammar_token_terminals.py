"""Terminals that are one token of the vocabulary, compared with brute force over tokens on random small grammars."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
from grammar_support import CORES, many

from sgl.grammars import (
    Grammar,
    InvalidGrammarError,
    UnsupportedGrammarError,
    Vocabulary,
    compile_ebnf,
    compile_structural,
)
from sgl.grammars.algebra.byte_marks import TOKEN
from sgl.grammars.ebnf import NoVocabularyError, ebnf_expr
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.network.grammar_disk_cache import set_cache_dir

TOKENS = [
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"bab",
    b"<|s|>",
    b"<|t|>",
    b"",
    bytes([TOKEN]),
    b"a" + bytes([TOKEN]),
    b"<|e|>",
    b"<|end|>",
]
ENDS = (10, 11)
VOCABULARY = Vocabulary.from_bytes(TOKENS, ENDS, [5, 6])
ANY = tuple(i for i, data in enumerate(TOKENS) if data and i not in ENDS)
FORMS = {
    "<|s|>": (5,),
    "<|e|>": (10,),
    "<[6]>": (6,),
    "<[1-2]>": (1, 2),
    "<[0,5-6]>": (0, 5, 6),
    "<[*]>": ANY,
    "<[^0-5]>": tuple(i for i in ANY if i > 5),
    "<[ 2 , 10 ]>": (2, 10),
}
LONGEST, MOST = 5, 600


def joined(left: set[tuple], right: set[tuple]) -> set[tuple]:
    """Some that are too long stay, so that what has any is left out."""
    found = {x + y for x, y in product(left, right)}
    return set(sorted(found, key=len)[-MOST:])


def random_text(rng: random.Random, depth: int) -> tuple[str, set[tuple]]:
    """A right-hand side in Lark's syntax, and its texts: tuples of letters and of tokens' numbers."""
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        if rng.random() < 0.5:
            letters = rng.choice(("a", "b", "ab", "bab"))
            return f'"{letters}"', {tuple(letters)}
        form = rng.choice(list(FORMS))
        return form, {(token,) for token in FORMS[form]}
    (left, some), (right, others) = random_text(rng, depth - 1), random_text(rng, depth - 1)
    if kind < 0.6:
        return f"{left} {right}", joined(some, others)
    if kind < 0.85:
        return f"({left} | {right})", some | others
    return f"({left})~0..2", {(), *some, *joined(some, some)}


class Oracle:
    """All readings of a row of tokens: each is its letters, or itself."""

    def __init__(self, texts: set[tuple]) -> None:
        self.texts = texts
        self.begun = {text[:n] for text in texts for n in range(len(text) + 1)}

    def after(self, readings: frozenset[tuple], token: int) -> frozenset[tuple]:
        letters = () if token in (5, 6, *ENDS) else tuple(chr(byte) for byte in TOKENS[token])
        ways = [(token,), letters] if letters else [(token,)]
        return frozenset(r + way for r in readings for way in ways if r + way in self.begun)

    def may_end(self, readings: frozenset[tuple]) -> bool:
        return any(r in self.texts for r in readings)

    def allowed(self, readings: frozenset[tuple]) -> list[int]:
        ends = ENDS if self.may_end(readings) else ()
        return [token for token in range(len(TOKENS)) if self.after(readings, token) or token in ends]


def ids(row) -> list[int]:
    return [i for i in range(len(TOKENS)) if int(row[i >> 5]) >> (i & 31) & 1]


def compare(oracle: Oracle, matcher, readings: frozenset[tuple], depth: int) -> int:
    allowed = oracle.allowed(readings)
    assert ids(matcher.mask()) == allowed
    assert matcher.can_end == oracle.may_end(readings)
    compared = 1
    for token in range(len(TOKENS)) if depth else ():
        before, after = matcher.copy(), oracle.after(readings, token)
        assert matcher.accept(token) == (token in allowed)
        if after:
            compared += compare(oracle, matcher, after, depth - 1)
        if token in allowed:
            matcher.rollback(1)
        assert matcher.state == before.state
    return compared


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("seed", range(3))
def test_random_grammars_of_letters_and_tokens(core, seed):
    rng = random.Random(seed)
    compared = 0
    for _ in range(many(40)):
        right, texts = random_text(rng, 3)
        if max(map(len, texts)) > LONGEST or len(texts) >= MOST:
            continue
        grammar = Grammar(ebnf_expr(f"start: {right}", vocabulary=VOCABULARY), VOCABULARY, core)
        compared += compare(Oracle(texts), grammar.matcher(), frozenset([()]), 3)
    assert compared > 100


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("right", "end"),
    [("<|t|>", None), ('(<|t|> | "babbabab")', b"babbabab"), ('(<|t|> | "ab" <|s|> | /b{20}/)+', b"b" * 20)],
)
def test_a_shortest_end_is_of_text_where_there_is_one(core, right, end):
    matcher = Grammar(ebnf_expr(f'start: "a" {right}', vocabulary=VOCABULARY), VOCABULARY, core).matcher()
    assert matcher.accept(0)
    if end is None:
        with pytest.raises(GrammarLimitError, match="has tokens in it"):
            matcher.shortest_end()
    else:
        assert matcher.shortest_end() == end


@pytest.mark.parametrize("core", CORES)
def test_a_recursive_grammar_of_tokens_pairs_them(core):
    expr = ebnf_expr("start: <|s|> inner? <|t|>\ninner: start | /a+/", vocabulary=VOCABULARY)
    matcher = Grammar(expr, VOCABULARY, core).matcher()
    for token in (5, 5, 5, 0, 0, 6, 6):
        assert matcher.accept(token)
    assert ids(matcher.mask()) == [6] and not matcher.can_end
    assert matcher.accept(6) and matcher.finished and ids(matcher.mask()) == list(ENDS)


def test_any_token_and_negations_of_a_large_vocabulary():
    tokens = [f"t{i};".encode() for i in range(70_000)] + [b"<end>"]
    large = Vocabulary.from_bytes(tokens, [70_000])
    for core in CORES[:1]:
        matcher = Grammar(ebnf_expr('start: <[*]> "!"', vocabulary=large), large, core).matcher()
        assert sum(int(word).bit_count() for word in matcher.mask().view("u4")) == 70_000
    matcher = compile_ebnf("start: <[^0-65536,69999]>", large).matcher()
    assert [i for i in range(70_001) if int(matcher.mask()[i >> 5]) >> (i & 31) & 1] == list(range(65_537, 69_999))


def test_a_token_that_ends_texts_is_a_terminal_where_a_grammar_names_it():
    grammar = compile_ebnf('start: ("a" <|e|>)~2', VOCABULARY)
    assert grammar.automaton.named_ends == {10}
    matcher = grammar.matcher()
    for token in (0, 10, 0):
        assert matcher.accept(token) and not matcher.can_end
    assert not matcher.accept(11) and matcher.accept(10) and matcher.finished
    either = compile_ebnf('start: "a" (<|e|> "b")?', VOCABULARY).matcher()
    assert either.accept(0) and either.accept(10) and not either.can_end and either.accept(1) and either.accept(10)
    assert either.state < 0
    assert compile_ebnf('start: "a" <[*]>', VOCABULARY).automaton.named_ends == frozenset()


def test_forced_text_ends_before_a_token():
    matcher = compile_ebnf('start: "ba" <|s|> "b"', VOCABULARY).matcher()
    assert matcher.forced() == b"ba" and matcher.accept(3)
    assert matcher.forced() == b"" and ids(matcher.mask()) == [5] and matcher.accept(5) and matcher.forced() == b"b"
    with pytest.raises(GrammarLimitError, match="tokens in it"):
        compile_ebnf('start: "ba" <|s|> "b"', VOCABULARY).matcher().shortest_end()


def test_other_ways_to_write_and_to_declare_them():
    bnf = compile_ebnf("root ::= <|s|> !<[0-5]> <[6]>", VOCABULARY).matcher()
    assert ids(bnf.mask()) == [5] and bnf.accept(5) and ids(bnf.mask()) == [i for i in ANY if i > 5]
    declared = compile_ebnf("%declare <|s|> A B\nstart: A B", VOCABULARY, declared={"A": 6, "B": "ab"}).matcher()
    assert declared.accept(6) and declared.forced() == b"ab"
    gaps = compile_ebnf('%ignore "b"\nstart: <|s|> "a"', VOCABULARY).matcher()
    assert ids(gaps.mask()) == [1, 5] and gaps.accept(1) and gaps.accept(5) and ids(gaps.mask()) == [0, 1, 2, 3, 4]
    imported = compile_ebnf("%import .marks.mark\nstart: mark", VOCABULARY, imports={"marks.lark": "mark: <|t|>"})
    assert ids(imported.matcher().mask()) == [6]


@pytest.mark.parametrize(
    ("grammar", "what"),
    [
        ("start: <|end_|>", r"no token '<|end_|>'; did you mean <|end|>"),
        ("start: <x>", "special tokens are <|end|>, <|e|>, <|s|>, <|t|>"),
        ("start: <[12]>", "token 12 of <[12]> is outside the vocabulary of 12"),
        ("start: <[3-2]>", "bad token range 3-2"),
        ("start: <[1,]>", "bad token numbers '<[1,]>'"),
        ("start: <[^*]>", "next to the '*'"),
        ("start: <[^0-11]>", "<[^0-11]> is no token of the vocabulary"),
        ("root ::= !<[*]>", "!<[*]> is no token"),
        ("%declare A\nstart: A", None),
    ],
)
def test_what_no_token_is_written_as_is_refused(grammar, what):
    with pytest.raises((InvalidGrammarError, UnsupportedGrammarError)) as caught:
        compile_ebnf(grammar, VOCABULARY)
    assert what is None or what in str(caught.value)


def test_what_tokens_do_not_go_together_with_is_refused_by_name():
    with pytest.raises(NoVocabularyError, match="without a vocabulary"):
        ebnf_expr("start: <|s|>")
    with pytest.raises(UnsupportedGrammarError, match=re.escape("token <|s|> in a terminal")):
        compile_ebnf('start: A\nA: ~(<|s|> "a")', VOCABULARY)
    with pytest.raises(InvalidGrammarError, match="texts or numbers of tokens"):
        compile_ebnf("%declare A\nstart: A", VOCABULARY, declared={"A": -1})


def test_equal_texts_of_other_vocabularies_are_kept_apart_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("sgl.grammars.network.grammar_disk_cache.WORTHWHILE", 0)
    grammar = 'start: <|s|> "a"'
    other = Vocabulary.from_bytes([b"<|s|>", b"a", b"<|e|>"], [2], [0])
    set_cache_dir(tmp_path)
    try:
        for vocabulary, token in ((VOCABULARY, 5), (other, 0), (VOCABULARY, 5)):
            vocabulary.compiled.clear()
            matcher = compile_ebnf(grammar, vocabulary).matcher()
            assert matcher.accept(token) and matcher.forced() == b"a"
        assert len(list(tmp_path.iterdir())) == 2
        vocabulary.compiled.clear()
    finally:
        set_cache_dir(None)


def test_a_grammar_is_compiled_once_more_from_its_recipe():
    made = compile_ebnf("%declare A\nstart: <|s|> A", VOCABULARY, declared={"A": 6})
    assert made.recipe.compile(VOCABULARY) is made


def test_tokens_in_structural_tags():
    def takes(format: dict, *tokens: int) -> bool:
        matcher = compile_structural({"type": "structural_tag", "format": format}, VOCABULARY).matcher()
        for token in tokens:
            shown = token in ids(matcher.mask())
            assert matcher.accept(token) == shown
            if not shown:
                return False
        return matcher.can_end

    mark = {"type": "token", "token": "<|s|>"}
    assert takes(mark, 5) and not takes(mark, 6) and takes({"type": "token", "token": 0}, 0)
    free = {"type": "any_tokens", "exclude_tokens": ["<|s|>", 0], "max_tokens": 2}
    assert takes(free) and takes(free, 6, 2) and not takes(free, 6, 2, 2) and not takes(free, 0)
    assert takes({"type": "exclude_token"}, 5) and not takes({"type": "exclude_token", "exclude_tokens": [5]}, 5)
    tag = {"type": "tag", "begin": mark, "content": {"type": "any_text"}, "end": {"type": "token", "token": 6}}
    assert takes(tag, 5, 0, 4, 6) and not takes(tag, 5, 5) and not takes(tag, 0)
    other = {"type": "tag", "begin": mark, "content": {"type": "regex", "pattern": "a+"}, "end": ["b", "ba"]}
    assert takes(other, 5, 0, 1) and takes(other, 5, 2, 0) and not takes(other, 5, 0)
    nested = {
        "type": "sequence",
        "elements": [{"type": "grammar", "grammar": 'root ::= <|s|> "a"'}, {"type": "token", "token": "<|e|>"}],
    }
    assert takes(nested, 5, 0, 10)
