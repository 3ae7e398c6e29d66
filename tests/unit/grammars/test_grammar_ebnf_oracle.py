"""EBNF against oracles: whole languages of random small grammars, and Lark's Earley parser on real ones."""

import random
from pathlib import Path

import pytest
from ebnf_support import LONGEST, as_bnf, as_lark, language, random_grammar, with_ignored
from grammar_support import (
    CORES,
    accepts,
    allowed,
    automaton,
    byte_vocabulary,
    many,
    random_vocabulary,
    tokens_by_bytes,
    walk,
)
from test_grammar_ebnf import COMMON, LARK

from sgl.grammars import Grammar, GrammarLimitError, InvalidGrammarError
from sgl.grammars.algebra.expr import Expr
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.ebnf import ebnf_expr
from sgl.grammars.second_opinion.lark_earley import earley_recogniser
from sgl.grammars.second_opinion.no_verdict_error import NoVerdictError

GRAMMARS = Path(__file__).parent / "ebnf"
BYTES = byte_vocabulary()
SYLLABLES = byte_vocabulary([b"ab", b"ba", b"aa", b"bb", b"aab", b"bab", b"ac", b"ca"])
TOO_AMBIGUOUS = 0.05  # random grammars such as `x: (x x | x x x | y)*` may need too many threads, and say so

REAL = {
    "arithmetic.lark": ["1 + 2.5e1*x^(3-y)", "f(1, -g(2))/h()", "((1))", "--a"],
    "ambiguous.lark": ["1+2*-3", "-1(2,3)[4]-5", "1?2:3?4:5", "(1)()"],
    "json.lark": ['{"a" : [1, -2.5E3, {"é": null}], "b": ""}', "[[], {}, true]", '"\\u00e9\\n"', "[ ]"],
    "sql.lark": [
        "select * from t where (a = 1 and b <> 'x''y') or not c is null order by d desc limit 3;",
        "Select count(*), a.b as c from (select x from y) z left join t on (a+1) = 2 group by a , b",
        "select distinct a||'b' from t u, v where a in (1,2) and b in (select c from d)",
    ],
    "clike.gbnf": [
        "int x = 3, *y; while (x != 3) { x = (x + 1) % 2; }",
        'if (a) if (b) c = d; else e(f, "g\\"")[3]->h++;',
        "return (struct s **)x ? -y : z + 1, w;",
        "{{;}{a.b = sizeof c;}}",
    ],
    "chess.gbnf": ["1. e4 e5\n2. Nf3 Nc6\n", "1. exd5 O-O-O+\n12. a8=Q# Rh1\n"],
    "date.ebnf": ["2024-02-30", "1999-12-31T23:59:59.123Z", "0001-01-01 00:00+09:30"],
    "tags.ebnf": ['<a x="1" y=\'"\'>hi<b/><!-- c - d -->&lt;</a>', "<i></i>"],
}


def _expr(text: str, start: str | None = None) -> Expr | None:
    try:
        return ebnf_expr(text, start=start)
    except InvalidGrammarError as error:
        assert "matches no text" in str(error)
        return None


def _accepted(machine: Automaton, letters: str, longest: int) -> set[str]:
    found, work = set(), [("", machine.start)]
    while work:
        text, state = work.pop()
        if machine.final(state):
            found.add(text)
        reached = [(text + c, machine.advance(state, c.encode())) for c in letters if len(text) < longest]
        work += [(longer, state) for longer, state in reached if state >= 0]
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("core", CORES)
def test_random_grammars_accept_exactly_their_language(core):
    rng, limited, count = random.Random(11), 0, many(400 if core == "C" else 100)
    for _ in range(count):
        letters, longest = rng.choice((("ab", LONGEST), ("abc", LONGEST - 1)))
        grammar = random_grammar(rng, letters)
        expected, expr = language(grammar, longest), _expr(as_bnf(grammar))
        if expr is None:
            assert not expected, as_bnf(grammar)
            continue
        try:
            assert _accepted(automaton(expr, BYTES, core), letters, longest) == expected, as_bnf(grammar)
        except GrammarLimitError:
            limited += 1
    assert limited <= TOO_AMBIGUOUS * count


@pytest.mark.whole
def test_random_grammars_with_ignored_text_accept_exactly_their_language():
    rng, limited, count = random.Random(23), 0, many(200)
    for _ in range(count):
        grammar = random_grammar(rng)
        expected = language(with_ignored(grammar, "c"), LONGEST - 1)
        expr = _expr(as_lark(grammar, "c"), start="root")
        if expr is None:
            assert not expected
            continue
        try:
            found = _accepted(automaton(expr, BYTES, CORES[0]), "abc", LONGEST - 1)
            assert found == expected, as_lark(grammar, "c")
        except GrammarLimitError:
            limited += 1
    assert limited <= TOO_AMBIGUOUS * count


@pytest.mark.skipif(len(CORES) < 2, reason="the C core is not built")
def test_both_cores_number_states_alike():
    rng = random.Random(7)
    for _ in range(many(60)):
        grammar = random_grammar(rng)
        texts, expr = sorted(language(grammar)), _expr(as_bnf(grammar))
        if not texts or expr is None:
            continue
        machines = [automaton(expr, SYLLABLES, core) for core in CORES]
        for text in rng.sample(texts, min(4, len(texts))):
            states = [
                [machine.advance(machine.start, text[:i].encode()) for i in range(len(text) + 1)]
                for machine in machines
            ]
            assert states[0] == states[1]
            assert (machines[0].mask(states[0][-1]) == machines[1].mask(states[1][-1])).all()


def _check_mask(machine: Automaton, state: int, before: str, texts: set[str], longer: set[str]) -> None:
    """Every token that some text goes on with is allowed, and each that is allowed can be completed."""
    vocabulary = machine.vocabulary
    shown = allowed(machine.mask(state))
    assert shown == tokens_by_bytes(machine, state)
    for token in vocabulary.text_ids:
        after = before + vocabulary.tokens[token].decode("latin-1")
        if any(text.startswith(after) for text in texts):
            assert token in shown
        elif token in shown:
            end = machine.shortest_end(machine.advance(state, vocabulary.tokens[token])).decode()
            assert len(after + end) > LONGEST + 2 or after + end in longer, (before, after, end)
    assert (vocabulary.eos_ids[0] in shown) == (before in texts)


@pytest.mark.parametrize("core", CORES)
def test_masks_of_random_grammars_equal_brute_force(core):
    rng, limited, count = random.Random(5), 0, many(80 if core == "C" else 20)
    for _ in range(count):
        grammar = random_grammar(rng)
        texts, longer = language(grammar), language(grammar, LONGEST + 2)
        if not texts:
            continue
        try:
            machine = automaton(ebnf_expr(as_bnf(grammar)), SYLLABLES, core)
            for text in rng.sample(sorted(texts), min(3, len(texts))):
                before = text[: rng.randrange(len(text) + 1)]
                _check_mask(machine, machine.advance(machine.start, before.encode()), before, texts, longer)
        except GrammarLimitError:
            limited += 1
    assert limited <= TOO_AMBIGUOUS * count


def _mutated(rng: random.Random, text: str) -> str:
    at, other = rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[:at] + rng.choice(text) + text[at:]
    return text[:at] + text[other:] if kind == 2 else text[:at]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", REAL)
def test_real_grammars_accept_their_texts(name):
    for core in CORES:
        grammar = Grammar(ebnf_expr((GRAMMARS / name).read_text()), BYTES, core)
        assert [text for text in REAL[name] if not accepts(grammar, text)] == []


@pytest.mark.few(1)
@pytest.mark.parametrize("name", REAL)
def test_real_grammars_agree_with_larks_earley_parser(name):
    rng = random.Random(3)
    text = (GRAMMARS / name).read_text()
    grammar, parses = Grammar(ebnf_expr(text), BYTES), earley_recogniser(text)
    for valid in REAL[name]:
        assert parses(valid)
        for candidate in {_mutated(rng, valid) for _ in range(25 if name.endswith(".lark") else 8)}:
            assert accepts(grammar, candidate) == parses(candidate), candidate
    matcher_vocabulary = random_vocabulary(rng, REAL[name])
    for _ in range(6):
        made = walk(Grammar(ebnf_expr(text), matcher_vocabulary).matcher(), rng, 15)
        assert parses(made.decode()), made


def test_lark_reads_the_same_in_the_cases_of_its_syntax():
    cases = [*LARK, *((f"%import common.{name}\nstart: {name}", *texts) for name, texts in COMMON.items())]
    refused = 0
    for text, good, bad in cases:
        try:
            parses = earley_recogniser(text)
        except NoVerdictError:
            refused += 1  # %json, empty terminals, and line breaks in brackets are not Lark's
            continue
        assert [t for t in good if not parses(t)] == [], text
        assert [t for t in bad if parses(t)] == [], text
    assert refused == 3


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", REAL)
def test_random_walks_end_in_accepted_texts_under_sound_masks(name, core):
    rng = random.Random(name)
    grammar = Grammar(ebnf_expr((GRAMMARS / name).read_text()), random_vocabulary(rng, REAL[name]), core)
    byte_by_byte = automaton(ebnf_expr((GRAMMARS / name).read_text()), BYTES, core)
    for _ in range(6):
        text = walk(grammar.matcher(), rng, 25)
        state = byte_by_byte.advance(byte_by_byte.start, text)
        assert state >= 0
        assert byte_by_byte.final(state)
    machine = grammar.automaton
    for state in range(0, machine.core.size(), max(1, machine.core.size() // 12)):
        assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state)
