"""Regexes against `re.fullmatch`, interegular, and case by case."""

import random
import re

import pytest
from grammar_support import (
    CORES,
    accepts,
    allowed,
    automaton,
    byte_vocabulary,
    many,
    random_vocabulary,
    tokens_by_bytes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.grammars import GrammarLimitError, InvalidGrammarError, UnsupportedGrammarError, compile_regex
from sgl.grammars.regex import parse_regex
from sgl.grammars.regex.plain_text_classes import mark_plain_text_classes

VOCABULARY = byte_vocabulary()
ALPHABET = "abcé😀\n0"

_atoms = st.sampled_from(
    [
        "a",
        "b",
        "c",
        "é",
        "😀",
        ".",
        "[ab]",
        "[^a]",
        "[^é]",
        r"\d",
        r"\w",
        r"\W",
        r"[a-c\d]",
        r"\n",
        r"[^\w]",
        "0",
    ]
)
_counts = st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}", "{0,5}", "{4,7}", "{2,}", "*?", "{,3}", "{5}"])


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(?:" + "|".join(parts) + ")"),
        st.tuples(inner, _counts).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


def _nesting(pattern: str) -> int:
    """How deep quantifiers are nested: `re`, the oracle, takes exponential time when that is deep."""
    depths = [0]
    for char, after in zip(pattern, pattern[1:] + " ", strict=True):
        if char == "(":
            depths.append(0)
            continue
        inner = (depths.pop() if char == ")" else 0) + (after in "*+?{")
        depths[-1] = max(depths[-1], inner)
    return depths[0]


patterns = st.recursive(st.tuples(_atoms, _counts).map("".join), _combine, max_leaves=6).filter(
    lambda pattern: _nesting(pattern) <= 2
)
texts = st.text(alphabet=ALPHABET, max_size=9)


def _matches(pattern: str, text: str, core: str) -> bool:
    machine = automaton(parse_regex(pattern), VOCABULARY, core)
    state = machine.advance(machine.start, text.encode())
    return state >= 0 and machine.final(state)


@settings(max_examples=many(250), deadline=None)
@given(patterns, st.lists(texts, min_size=1, max_size=6))
def test_random_patterns_agree_with_re(pattern, candidates):
    for text in candidates:
        expected = re.fullmatch(pattern, text) is not None
        for core in CORES:
            assert _matches(pattern, text, core) == expected, (pattern, text, core)


@settings(max_examples=many(60), deadline=None)
@given(patterns, st.lists(texts, min_size=1, max_size=3), st.integers(0, 2**32))
def test_masks_of_random_patterns_are_those_of_brute_force(pattern, candidates, seed):
    rng = random.Random(seed)
    vocabulary = random_vocabulary(rng, [*candidates, 'x" \\\n\x01日', "plain text, all of it"])
    try:
        source = mark_plain_text_classes(parse_regex(pattern))
    except InvalidGrammarError:
        return
    machines = [automaton(source, vocabulary, core) for core in CORES]
    for text in candidates:
        start = text.encode()[: rng.randint(0, len(text.encode()))]
        states = [machine.advance(machine.start, start) for machine in machines]
        for machine, state in zip(machines, states, strict=True):
            if state >= 0:
                assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state), (pattern, start)


@settings(max_examples=many(60), deadline=None)
@given(st.recursive(st.sampled_from(["a", "b", "[ab]", "a+", "b?"]), _combine, max_leaves=4), texts)
def test_viable_prefixes_agree_with_interegular(pattern, text):
    interegular = pytest.importorskip("interegular")
    text = re.sub("[^ab]", "", text)
    plain = pattern.replace("*?", "*").replace("{,", "{0,")  # it knows neither lazy quantifiers nor {,n}
    fsm = interegular.parse_pattern(plain).to_fsm()
    state = fsm.initial
    for char in text:
        state = fsm.map.get(state, {}).get(fsm.alphabet[char])
        if state is None:
            break
    machine = automaton(parse_regex(pattern), VOCABULARY, CORES[0])
    alive = state is not None and fsm.islive(state)
    assert (machine.advance(machine.start, text.encode()) >= 0) == alive, (pattern, text)


CASES = [
    (r"a|ab", ["a", "ab"], ["", "b", "abb"]),
    (r"cat|category", ["cat", "category"], ["cate"]),
    (r"12(\.5)?", ["12", "12.5"], ["12."]),
    (r"[0-9]+(,[0-9]+)*", ["1", "1,2", "10,20,3"], ["1,", ",1"]),
    (r"(?P<year>\d{4})-(?<month>\d\d)", ["2026-11"], ["2026-1"]),
    (r"^abc$", ["abc"], ["ab", "abcd"]),
    (r"(^a|b)c", ["ac", "bc"], ["c"]),
    (r"\x41\u00e9\n\t", ["Aé\n\t"], ["Ae\n\t"]),
    (r"[]a]+", ["]a]"], [""]),
    (r"[^]a]", ["b"], ["]", "a"]),
    (r"[a\-z]", ["-", "a", "z"], ["b"]),
    (r"a{2}b{,2}c{1,}", ["aac", "aabbccc"], ["ac", "aabbbc"]),
    (r"x{", ["x{"], ["x"]),
    (r"a{x}", ["a{x}"], ["a"]),
    (r"(?:)", [""], ["a"]),
    (r"(a*)*b", ["b", "aaab"], ["a"]),
    (r"(a?){3,5}b", ["b", "aaaaab"], ["aaaaaab"]),
    (r"(a{2,3}){2,3}", ["aaaa", "aaaaaaaaa"], ["aaa", "aaaaaaaaaa"]),
    (r"[α-ω]+", ["αβγ"], ["abc"]),
    (r".", ["é", "😀"], ["\n", "ab", ""]),
    (r"\S\s", ["a "], [" a"]),
    (r"(?#note)a", ["a"], ["b"]),
    (r"a\Z", ["a"], ["ab"]),
]


@pytest.mark.parametrize("pattern,good,bad", CASES, ids=[c[0] for c in CASES])
def test_cases(pattern, good, bad):
    grammar = compile_regex(pattern, VOCABULARY)
    assert [t for t in good if not accepts(grammar, t)] == []
    assert [t for t in bad if accepts(grammar, t)] == []


def test_large_bounded_repeats_are_registers():
    grammar = compile_regex(r"(.{0,20000} ){3,1000}x", VOCABULARY)
    assert accepts(grammar, "ab  é x")
    assert grammar.automaton.core.size() < 200


def test_many_alternatives():
    choices = "|".join(f"word{i}x" for i in range(500))
    grammar = compile_regex(choices, VOCABULARY)
    assert accepts(grammar, "word499x") and not accepts(grammar, "word500x")


REFUSED = [
    (r"a(?=b)", "look-ahead (?=", 1),
    (r"a(?!b)", "look-ahead (?!", 1),
    (r"(?<=a)b", "look-behind (?<=", 0),
    (r"(?<!a)b", "look-behind (?<!", 0),
    (r"(a)\1", r"back-reference \1", 3),
    (r"(?P<x>a)(?P=x)", "back-reference (?P=", 8),
    (r"\bword", r"word boundary \b", 0),
    (r"a++", "possessive quantifier", 2),
    (r"(?>a)b", "atomic group (?>", 0),
    (r"(a)?(?(1)b|c)", "conditional (?(", 4),
    (r"a\B", r"word boundary \B", 1),
    (r"(?m)a|^b", "anchor ^ with the flag m", 6),
    (r"\p{Block=Greek}", r"unicode property \p{Block=Greek}", 0),
    (r"a{1000001}", "a repeat of more than 1000000", 1),
]


@pytest.mark.parametrize("pattern,construct,position", REFUSED, ids=[c[0] for c in REFUSED])
def test_refused_by_name_and_position(pattern, construct, position):
    with pytest.raises(UnsupportedGrammarError) as caught:
        compile_regex(pattern, VOCABULARY)
    assert caught.value.keyword == construct
    assert f"position {position} " in caught.value.where


MALFORMED = [
    "(a",
    "a)",
    "[a",
    "*a",
    "a**",
    "[b-a]",
    "a{3,2}",
    r"\q",
    "a|{2}",
    r"\x4",
    "\\",
    "^*",
    "a(?i)",
    "(?-a:b)",
    "(?ii",
    "(?z)",
    "(?au)",
    "(?i-i:a)",
    r"\400",
    r"\N{no such name}",
    "(?P<a>b)(?P<a>c)",
    "(?#a",
    r"[\d-z]",
    "\ud800",
    "a{1}{2}",
]


@pytest.mark.parametrize("pattern", MALFORMED)
def test_malformed(pattern):
    with pytest.raises(InvalidGrammarError) as caught:
        compile_regex(pattern, VOCABULARY)
    assert repr(pattern) in str(caught.value) and "position" in caught.value.where


@pytest.mark.parametrize("pattern", ["a^b", "a$b", r"[^\s\S]", "a(b$c|^d)", r"x\Ay"])
def test_a_pattern_without_texts_is_refused(pattern):
    with pytest.raises(InvalidGrammarError, match="no text matches"):
        compile_regex(pattern, VOCABULARY)


def test_nested_repeats_beyond_the_limit_are_refused():
    with pytest.raises(GrammarLimitError, match="more than 1000000"):
        compile_regex("((((a{100}){100}){100}){100})", VOCABULARY)


def test_not_a_string():
    with pytest.raises(InvalidGrammarError, match="must be a string"):
        compile_regex(7, VOCABULARY)
