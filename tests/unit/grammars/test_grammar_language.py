"""Intersections, differences and length bounds of languages against `re` on every short text."""

import random
import re
import time
from itertools import product

import pytest
from grammar_support import CORES, accepts, automaton, byte_vocabulary

from sgl.grammars import GrammarLimitError, compile_json_schema
from sgl.grammars.algebra.expr import NEVER, AutomatonExpr, CharClass, Expr, Literal, LiteralSet, words
from sgl.grammars.algebra.language_operations import combine, matches
from sgl.grammars.algebra.length_clipping import clip_lengths
from sgl.grammars.regex import parse_regex

VOCABULARY = byte_vocabulary()
TEXTS = ["".join(letters) for size in range(6) for letters in product("abé", repeat=size)]
ATOMS = ["a", "b", "[ab]", ".", "é", "(ab)", "(a|ba|bb)", "(ab|cde|a)", "((aa)+)", "[^a]"]
COUNTS = ["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"]


def _pattern(rng: random.Random, depth: int = 2) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return rng.choice(ATOMS) + rng.choice(COUNTS)
    if kind < 0.8:
        return _pattern(rng, depth - 1) + _pattern(rng, depth - 1)
    return f"({_pattern(rng, depth - 1)}|{_pattern(rng, depth - 1)})" + rng.choice(COUNTS)


def _accepted(expr: Expr, text: str) -> bool:
    """Whether the automaton takes a text; on the way no state may be without an end."""
    if expr == NEVER:
        return False
    machine = automaton(expr, VOCABULARY, CORES[0])
    state = machine.start
    for byte in text.encode():
        state = machine.advance(state, bytes([byte]))
        if state < 0:
            return False
        machine.shortest_end(state)
    return machine.final(state)


@pytest.mark.parametrize("seed", range(6))
def test_set_operations_agree_with_re(seed):
    rng = random.Random(seed)
    for _ in range(60):
        included = [_pattern(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        excluded = [_pattern(rng) for _ in range(rng.choice([0, 0, 1, 2]))]
        least, most = rng.choice([0, 0, 1, 2, 3]), rng.choice([None, None, 1, 3, 4, 5])
        expr = combine([parse_regex(p, "ecma") for p in included], [parse_regex(p) for p in excluded], least, most)
        for text in rng.sample(TEXTS, 25):
            expected = all(re.fullmatch(p, text) for p in included) and not any(re.fullmatch(p, text) for p in excluded)
            expected = expected and least <= len(text) and (most is None or len(text) <= most)
            assert _accepted(expr, text) == expected, (included, excluded, least, most, text)
            assert matches(expr, text) == expected


def test_literals_beyond_ascii_and_tries_are_languages():
    expr = combine([words(["é".encode(), "éa".encode(), "日本".encode()])], [Literal("éa".encode())])
    assert [t for t in ("é", "éa", "日本", "日") if matches(expr, t)] == ["é", "日本"]
    assert isinstance(words([b"a", b"b"]), LiteralSet)


def test_a_graph_is_a_language_again():
    once = combine([parse_regex("[ab]*")], [parse_regex(".*bb.*")])
    assert isinstance(once, AutomatonExpr)
    twice = combine([once, parse_regex("a.*")])
    assert [t for t in ("ab", "ba", "abb", "aba") if matches(twice, t)] == ["ab", "aba"]


@pytest.mark.parametrize(
    "pattern,least,most,same",
    [
        ("[a-z]*", 2, 5, "[a-z]{2,5}"),
        ("([a-z][0-9])+", 10000, None, "([a-z][0-9]){5000,}"),
        ("a[ab]+", 0, 2048, "a[ab]{1,2047}"),
        ("[ab]{3}", 4, None, None),
        ("x(.*)y", 0, 1, None),
    ],
)
def test_bounds_go_into_repeats(pattern, least, most, same):
    expected = NEVER if same is None else parse_regex(same)
    assert combine([parse_regex(pattern)], (), least, most) == expected


def test_bounds_with_alternatives_of_several_lengths_need_no_product():
    expr = parse_regex("data:(jpg|jpeg|png|svg);([A-Za-z0-9]*)")
    bounded = combine([expr], (), 0, 32767)
    assert not isinstance(bounded, AutomatonExpr)
    assert matches(bounded, "data:jpeg;" + "x" * 32757) and not matches(bounded, "data:jpeg;" + "x" * 32758)
    assert clip_lengths(parse_regex(".*a.*"), 0, 10) is None  # two repeats share the length


@pytest.mark.parametrize(
    "pattern,least,most,good,bad",
    [
        ("^abcdef$", 3, None, "abcdef", "abc"),
        ("^(abc|abcdef)$", 0, 3, "abc", "abcdef"),
        ("^(a_|abcdef|é)+$", 0, 3, "éa_", "abcdef"),
    ],
)
def test_literals_count_towards_the_length_of_a_string(pattern, least, most, good, bad):
    schema = {"type": "string", "pattern": pattern, "minLength": least, **({"maxLength": most} if most else {})}
    grammar = compile_json_schema(schema, VOCABULARY)
    assert accepts(grammar, f'"{good}"') and not accepts(grammar, f'"{bad}"')


def test_what_takes_too_long_is_refused_in_time():
    blocks = [parse_regex(f"(.{{{n}}})*a.{{{n}}}", "ecma") for n in (7, 11, 13, 17)]
    start = time.process_time()
    with pytest.raises(GrammarLimitError, match="too much work"):
        combine(blocks)
    assert time.process_time() - start < 2


def test_many_recognised_texts_share_their_states():
    expr = parse_regex("[a-z]+[0-9]{1,3}")
    assert all(matches(expr, f"word{i}") for i in range(1000))
    assert not matches(expr, "word1000") and not matches(expr, "") and matches(CharClass(((65, 65),)), "A")
