"""Once a loop may be left, its lowest count stands for all higher ones: few threads and states, the same language."""

from __future__ import annotations

import itertools
import random
import re
from functools import reduce
from typing import NamedTuple

import pytest
from grammar_support import CORES, allowed, automaton, byte_vocabulary, tokens_by_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.grammars.algebra.expr import EMPTY, ListMember, Literal, Repeat, SeparatedList, alt, repeat, seq, words
from sgl.grammars.regex import parse_regex

VOCABULARY = byte_vocabulary([b"ab", b"aa", b"aab", b"ba", b"aaaa", b"bb"])
LONGEST = 6
TEXTS = [bytes(text) for n in range(LONGEST + 1) for text in itertools.product(b"ab", repeat=n)]


class Case(NamedTuple):
    """A pattern and its texts of at most LONGEST characters, by plain set algebra (`re` takes exponential time)."""

    pattern: str
    texts: frozenset[str]


def _joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in left for b in right if len(a + b) <= LONGEST)


def _repeated(case: Case, least: int, most: int | None) -> Case:
    found, power = set(), frozenset([""])
    for count in range((least + LONGEST if most is None else most) + 1):
        found |= power if count >= least else set()
        power = _joined(power, case.texts)
    return Case(f"({case.pattern}){{{least},{'' if most is None else most}}}", frozenset(found))


def _in_a_row(cases: list[Case]) -> Case:
    return Case("".join(case.pattern for case in cases), reduce(_joined, (case.texts for case in cases)))


def _either(cases: list[Case]) -> Case:
    return Case(f"({'|'.join(c.pattern for c in cases)})", frozenset().union(*(c.texts for c in cases)))


_leaves = st.sampled_from(
    [Case(pattern, frozenset(re.findall("[ab]+", pattern))) for pattern in ("a", "b", "(a|aa)", "(ab|a)")]
    + [Case("[ab]", frozenset("ab")), Case("a?", frozenset(["", "a"])), Case("(b|)", frozenset(["", "b"]))]
)
_bounds = st.tuples(st.integers(0, 3), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
_cases = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.tuples(inner, _bounds | st.sampled_from([(0, None), (2, None), (5, 9)])).map(
            lambda p: _repeated(p[0], *p[1])
        ),
        st.lists(inner, min_size=2, max_size=3).map(_in_a_row),
        st.lists(inner, min_size=2, max_size=2).map(_either),
    ),
    max_leaves=5,
)


def _threads_of(machine, text):
    """How many threads there are after each beginning of a text, and the last state."""
    state, counts = machine.start, []
    for byte in text:
        state = machine.advance(state, bytes([byte]))
        counts.append(len(machine.core.threads(state)))
    return max(counts), state


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=100, deadline=None)
@given(case=_cases)
def test_patterns_are_those_of_brute_force(core, case):
    machine = automaton(parse_regex(case.pattern), VOCABULARY, core)
    for text in TEXTS:
        state = machine.advance(machine.start, text)
        assert (state >= 0 and machine.final(state)) == (text.decode() in case.texts), text


@pytest.mark.skipif(len(CORES) < 2, reason="the C core is not built")
@settings(max_examples=80, deadline=None)
@given(_cases, st.integers(0, 10**6))
def test_both_cores_drop_the_same_threads(case, seed):
    rng = random.Random(seed)
    fast, slow = (automaton(parse_regex(case.pattern), VOCABULARY, core) for core in CORES)
    left, right = fast.start, slow.start
    for _ in range(12):
        assert left == right and fast.core.threads(left) == slow.core.threads(right)
        for _, _, frame in fast.core.threads(left):
            assert fast.core.frame(frame) == slow.core.frame(frame)
        assert allowed(fast.mask(left)) == allowed(slow.mask(right))
        assert allowed(fast.mask(left)) == tokens_by_bytes(fast, left) == tokens_by_bytes(slow, right)
        choices = sorted(allowed(fast.mask(left)) - set(VOCABULARY.eos_ids))
        if not choices:
            break
        token = rng.choice(choices)
        left, right = fast.move(left, token), slow.move(right, token)


@pytest.mark.parametrize("core", CORES)
def test_ambiguous_repeats_stay_small(core):
    machine = automaton(parse_regex("(a|aa){0,300}b?"), VOCABULARY, core)
    most, state = _threads_of(machine, b"a" * 600)
    assert most <= 4 and machine.core.size() <= 610
    assert machine.final(state) and machine.advance(state, b"a") < 0
    assert machine.final(machine.advance(state, b"b"))


@pytest.mark.parametrize("core", CORES)
def test_a_repeat_that_may_begin_anywhere_stays_small(core):
    machine = automaton(parse_regex("[ab]{0,500}a{0,500}"), VOCABULARY, core)
    most, state = _threads_of(machine, b"a" * 1000)
    assert most <= 4 and machine.core.size() <= 1100
    assert machine.final(state) and machine.advance(state, b"a") < 0
    assert machine.advance(machine.advance(machine.start, b"a" * 700), b"b") < 0
    assert machine.advance(machine.advance(machine.start, b"a" * 499), b"b") >= 0


@pytest.mark.parametrize("core", CORES)
def test_exact_counts_are_kept_apart(core):
    machine = automaton(parse_regex("([ab]{40}a){50}"), VOCABULARY, core)
    most, state = _threads_of(machine, (b"ab" * 20 + b"a") * 50)
    assert most <= 2 and machine.core.size() <= 41 * 50 + 2
    assert machine.final(state) and machine.advance(state, b"a") < 0
    short = machine.advance(machine.start, (b"ab" * 20 + b"a") * 49 + b"ab" * 20)
    assert machine.live(short) == 1 << ord("a")


@pytest.mark.parametrize("core", CORES)
def test_counts_below_the_least_are_kept_apart(core):
    """Which of them comes first to the least depends on the text."""
    machine = automaton(parse_regex("(a|aa){10,12}"), VOCABULARY, core)
    ends = [n for n in range(30) if (s := machine.advance(machine.start, b"a" * n)) >= 0 and machine.final(s)]
    assert ends == list(range(10, 25))
    assert len(machine.core.threads(machine.advance(machine.start, b"a" * 9))) > 4


def test_counts_in_frames_are_dropped_as_well():
    """Both ways of the outer loop are in the inner one: its frame keeps the caller with the lowest count alone."""
    inner = repeat(Literal(b"b"), 4, 9)
    outer = Repeat(seq(words([b"a", b"aa"]), alt(EMPTY, seq(Literal(b"c"), inner))), 0, 300)
    sizes = []
    for core in CORES:
        machine = automaton(outer, VOCABULARY, core)
        state = machine.advance(machine.start, b"a" * 100 + b"cbb")
        threads = machine.core.threads(state)
        assert len(threads) == 1 and len(machine.core.frame(threads[0][2])) == 1
        assert machine.final(machine.advance(state, b"bb" + b"aa" * 249))
        assert machine.advance(state, b"bb" + b"aa" * 250 + b"a") < 0
        sizes.append(machine.core.size())
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=60, deadline=None)
@given(least=st.integers(0, 3), more=st.integers(0, 4), required=st.booleans())
def test_lists_with_ambiguous_members(core, least, more, required):
    """Items `a`, `aa` or `aaa` without anything between them: many ways to count the same text."""
    item, most = words([b"a", b"aa", b"aaa"]), least + more
    machine = automaton(
        SeparatedList((ListMember(Literal(b"b"), required),), item, EMPTY, least, most), VOCABULARY, core
    )
    for text in TEXTS:
        rest = text.removeprefix(b"b") if text[:1] == b"b" else text
        members, fewest = (len(text) > len(rest)), -(-len(rest) // 3)
        fits = b"b" not in rest and fewest + members <= most and len(rest) + members >= least
        expected = fits and (members or not required)
        state = machine.advance(machine.start, text)
        assert (state >= 0 and machine.final(state)) == bool(expected), text
