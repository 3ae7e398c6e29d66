"""Patterns that end a text: what `re` would find is found, and nothing they do takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.text.stop_patterns import SECONDS, WINDOW, StopPatterns, check_patterns

BACKTRACKING = r"(a|aa)+$"
PATTERNS = [
    r"a+b",
    r"é$",
    r"(?<=b)a",
    r"\n\n",
    r"b(?=a)",
    r"a.*b",
    r"^a",
    r"\bb\b",
    r"(?i)AB",
    r"(a|b){2,3}c",
    r"(?P<x>a)b(?P=x)",
    r"[^ab]c",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("abcA\n é", min_size=1, max_size=6), min_size=1, max_size=12), st.sampled_from(PATTERNS))
def test_a_growing_text_is_searched_as_re_would(pieces, pattern):
    patterns, text = StopPatterns([pattern]), ""
    for piece in pieces:
        text += piece
        found = re.search(pattern, text) is not None
        assert (patterns.search(text, len(piece)) == pattern) == found
        if found:
            return


def test_the_first_of_the_patterns_is_named():
    assert StopPatterns(["c", "b", "a"]).search("ab", 2) == "b"
    assert StopPatterns(["c", "d"]).search("ab", 2) is None


def cost(patterns: StopPatterns, text: str, fresh: int) -> float:
    """Seconds of this thread until the search gives up."""
    started = time.thread_time()
    with pytest.raises(ConfigError, match="repeats inside repeats"):
        while True:
            patterns.search(text, fresh)
    return time.thread_time() - started


def test_a_pattern_that_backtracks_for_ever_fails_soon():
    assert cost(StopPatterns([BACKTRACKING]), "a" * 200 + "b", 201) < 20 * SECONDS


def test_a_pattern_that_is_a_little_slow_each_time_fails_too():
    slow = "a" * 17 + "b"  # a few milliseconds
    started = time.thread_time()
    StopPatterns([BACKTRACKING]).search(slow, len(slow))
    assert time.thread_time() - started < SECONDS
    assert cost(StopPatterns([BACKTRACKING] * 3), slow, len(slow)) < 20 * SECONDS


def test_an_ordinary_pattern_never_runs_out_of_time():
    patterns, text = StopPatterns([r"(?:\n\s*){3}", r"END\b", r"a.*z"]), ""
    for _ in range(4000):
        text += "a word, "
        assert patterns.search(text, 8) is None
    assert patterns.search(text + "END.", 4) == r"END\b"


def test_a_match_lies_within_the_window():
    text = "a" + "x" * (WINDOW - 10)
    assert StopPatterns(["a.*b"]).search(text + "b", 1) == "a.*b"
    assert StopPatterns(["a.*b"]).search(text + "x" * 10 + "b", 1) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:" * 90 + "ab" + ")+" * 90,  # the searching library would write it out: 2 ** 90 times
        "(?:" * 7 + "ab|c" + "){10,20}" * 7,
        "(?:(?:ab){1000}){1000}",
        "a{100000}",
        "a{99999999999999999999}",
        "(" * 400 + ")" * 400,
        "x" * 1001,
        "(",
        r"\p{L}",
        "(?r)a",
        "(?:cat){e<=2}" + "(",
    ],
)
def test_patterns_that_are_refused_at_once(pattern):
    started = time.thread_time()
    with pytest.raises(ConfigError, match="stop_regex"):
        SamplingParams(stop_regex=(pattern,)).validate()
    assert time.thread_time() - started < 1


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", r"(?:\w+\s?)*", "[a-z]{1,500}", "(((a?)+)?b)*", "a|b|c" * 150, "(?>a|ab)c", "a++b"]
)
def test_patterns_that_are_taken_compile_fast(pattern):
    started = time.thread_time()
    check_patterns([pattern])
    assert time.thread_time() - started < 1


def test_many_patterns_are_refused():
    with pytest.raises(ConfigError, match="at most 32"):
        SamplingParams(stop_regex=tuple(f"a{i}" for i in range(33))).validate()


def test_patterns_are_counted_together():
    with pytest.raises(ConfigError, match="1050 characters in all"):
        SamplingParams(stop_regex=tuple(f"{i}" * 350 for i in range(3))).validate()
