"""Ambiguous grammars: few threads however many readings a text has, and limits that are one text's own."""

import random

import pytest
from grammar_support import CORES, accepts, allowed, byte_vocabulary, tokens_by_bytes, walk

from sgl.grammars import Grammar, GrammarLimitError, compile_ebnf, fill_masks
from sgl.grammars.automaton import grammar_automaton as module
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.ebnf import ebnf_expr
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex import parse_regex

VOCABULARY = byte_vocabulary([b"aa", b"aaa", b"if x", b" then", b"()", b" end"])
MANY_WAYS = 'start: s\ns: s s | s s s | "a"'
LUA_LIKE = """
start: block
block: (stat | block)*
stat: "if" NAME "then" block "end" | NAME "(" ")" | block ";"
NAME: /[a-z]+/
%ignore / +/
"""
ROOM = 120  # states


def _fed(matcher, text):
    for byte in text.encode():
        matcher.mask()
        assert matcher.accept(byte)
    return matcher


def _cramped(pattern, core=None):
    grammar = Grammar(parse_regex(pattern), VOCABULARY)

    def fresh():
        return TransitionNetwork(parse_regex(pattern))

    grammar._automaton = Automaton(fresh(), VOCABULARY, core, limit=ROOM, fresh=fresh)
    return grammar


@pytest.mark.parametrize("core", CORES)
def test_readings_that_go_on_alike_are_one_thread(core):
    machine = Grammar(ebnf_expr(MANY_WAYS), VOCABULARY, core).automaton
    state = machine.advance(machine.start, b"a" * 200)
    assert machine.final(state) and len(machine.core.threads(state)) <= 2
    assert machine.core.held() < 5000


def test_an_ambiguous_language_of_statements_lives():
    text = "if x then y() end " * 20
    matcher = _fed(compile_ebnf(LUA_LIKE, VOCABULARY).matcher(), text)
    assert matcher.can_end and not matcher.copy().accept(ord(")"))
    assert len(matcher.automaton.core.threads(matcher.state)) < 60


@pytest.mark.parametrize("core", CORES)
def test_masks_of_merged_threads_are_those_of_the_bytes(core):
    rng = random.Random(3)
    for source in (MANY_WAYS, LUA_LIKE):
        grammar = Grammar(ebnf_expr(source), VOCABULARY, core)
        for _ in range(3):
            matcher = grammar.matcher()
            for _ in range(25):
                row = matcher.mask()
                assert allowed(row) == tokens_by_bytes(matcher.automaton, matcher.state)
                choices = sorted(allowed(row) - set(VOCABULARY.eos_ids))
                assert matcher.accept(rng.choice(choices))
            assert accepts(grammar, _end(matcher))


def _end(matcher):
    text = b"".join(VOCABULARY.tokens[token] for token in matcher._tokens)
    return (text + matcher.shortest_end()).decode()


def test_walks_end():
    rng = random.Random(4)
    grammar = compile_ebnf(LUA_LIKE, VOCABULARY)
    assert all(accepts(grammar, walk(grammar.matcher(), rng).decode()) for _ in range(5))


@pytest.mark.parametrize("core", CORES)
def test_a_text_that_reaches_the_limit_leaves_the_grammar_as_it_was(core):
    grammar = _cramped("([ab]*a[ab]{60}!|c{0,90})", core)
    bystander = _fed(grammar.matcher(), "c" * 10)
    with pytest.raises(GrammarLimitError, match="for this text"):
        _fed(grammar.matcher(), "".join(random.Random(5).choices("ab", k=400)))
    for matcher in (grammar.matcher(), bystander):
        assert _fed(matcher, "c" * 60).can_end
    assert not accepts(grammar, "c" * 91) and accepts(grammar, "c" * 90)


def test_a_crowded_automaton_is_left_in_the_middle_of_a_text():
    pattern = "a[xy]{0,50}A|b[xy]{0,50}B|c[xy]{0,50}C|d[xy]{0,50}D"
    grammar, roomy = _cramped(pattern), Grammar(parse_regex(pattern), VOCABULARY)
    matchers = [grammar.matcher() for _ in "abcd"]
    for letter, matcher in zip("abcd", matchers, strict=True):
        _fed(matcher, letter + "xy" * 20)
    ahead, behind = matchers[-1], matchers[0]
    assert ahead.automaton is not behind.automaton and ahead.accepted == 41
    ahead.rollback(30)
    assert ahead.accepted == 11 and len(ahead._states) == 12
    rows = fill_masks([ahead, ahead.copy(), behind])
    for row, text in zip(rows, ("d" + "xy" * 5, "d" + "xy" * 5, "a" + "xy" * 20), strict=True):
        assert allowed(row) == allowed(_fed(roomy.matcher(), text).mask())
    assert not ahead.accept(ord("A")) and ahead.accept(ord("D")) and ahead.finished


def test_what_is_held_counts_for_crowding(monkeypatch):
    grammar = compile_ebnf(LUA_LIKE + "// held", VOCABULARY)
    before = grammar.automaton
    _fed(grammar.matcher(), "if x then y() end ")
    assert grammar.automaton is before
    monkeypatch.setattr(module, "MAX_HELD", 8 * before.core.held() - 8)
    assert grammar.automaton is not before
