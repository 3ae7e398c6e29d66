"""Lazy repeats, the order of alternatives, and look-around, as a lexer reads them: `re.match` is the oracle."""

from __future__ import annotations

import random
import re
import warnings
from itertools import product

import pytest
from grammar_support import CORES, automaton, byte_vocabulary, many

from sgl.grammars import GrammarLimitError, UnsupportedGrammarError
from sgl.grammars.algebra.expr import NEVER
from sgl.grammars.regex import parse_ordered
from sgl.grammars.regex.ordered_matching import matched_texts

VOCABULARY = byte_vocabulary()
TEXTS = ["".join(letters) for size in range(7) for letters in product('a"\\', repeat=size)]

WRITTEN = [
    r'"(?!"").*?(?<!\\)(\\\\)*?"',
    r'("""(?<!\\).*?""")',
    r'""".*?(?<!\\)(\\\\)*?"""',
    r'"(\*(?!")|[^"])*a"',
    r"a*?",
    r"a+?",
    r"(a|aa)",
    r"(aa|a)*?\\",
    r"(?=a)[a\\]+",
    r"(?=aa)a",
    r'a(?!a)"?',
    r"(?!a)",
    r"(?<=a)a",
    r'(a(?=")|")*',
    r'(a|")*?(?<=a")a',
    r"(?!aa|\\).{2,4}?a",
]


def _longest(pattern: str, text: str) -> bool:
    found = re.match(pattern, text, re.DOTALL)
    return found is not None and found.end() == len(text)


def _agrees(pattern: str, texts: list[str]) -> None:
    expr = matched_texts(parse_ordered(pattern, "s"))
    expected = [text for text in texts if _longest(pattern, text)]
    if expr == NEVER:
        assert expected == [], pattern
        return
    machine = automaton(expr, VOCABULARY, CORES[0])
    ends = {text: machine.advance(machine.start, text.encode()) for text in texts}
    assert [text for text, state in ends.items() if state >= 0 and machine.final(state)] == expected, pattern


@pytest.mark.parametrize("pattern", WRITTEN)
def test_what_grammars_write(pattern):
    _agrees(pattern, TEXTS)


def _pattern(rng: random.Random, depth: int, look: bool = True) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return rng.choice(["a", '"', r"\\", ".", '[a"]', r"[^\\]"]) + rng.choice(
            ["", "", "*", "+?", "*?", "??", "?", "{1,2}?"]
        )
    if kind < 0.6 and look:
        inner = _pattern(rng, 1, False)
        if rng.random() < 0.6:
            return f"(?{rng.choice('=!')}{inner})"
        return f"(?<{rng.choice('=!')}{rng.choice(['a', 'a.', '[^a]', chr(34)])})"
    if kind < 0.8:
        return "".join(_pattern(rng, depth - 1, look) for _ in range(rng.randint(2, 3)))
    return (
        "("
        + "|".join(_pattern(rng, depth - 1, look) for _ in range(2))
        + ")"
        + rng.choice(["", "", "*", "*?", "+", "?"])
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_patterns_agree_with_re(seed):
    rng = random.Random(seed)
    texts = [text for text in TEXTS if len(text) < 6]
    for _ in range(many(40)):
        pattern = "".join(_pattern(rng, 2) for _ in range(rng.randint(1, 3)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _agrees(pattern, texts)


def test_refusals_and_limits():
    with pytest.raises(UnsupportedGrammarError, match="look-around in look-around"):
        matched_texts(parse_ordered("(?=a(?!b))a"))
    with pytest.raises(UnsupportedGrammarError, match="anchor"):
        parse_ordered("a*?$")
    with pytest.raises(GrammarLimitError, match="instructions"):
        matched_texts(parse_ordered("(?!a)a{100000}"))
    with pytest.raises(GrammarLimitError, match="states"):
        matched_texts(parse_ordered(".*?a.{30}(?!b)b*?c"))
