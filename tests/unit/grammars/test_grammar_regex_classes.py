"""Classes of characters over all code points: Python's `re` and the `regex` package are the references."""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache

import pytest
import regex
from grammar_support import CORES, automaton, byte_vocabulary, many

from sgl.grammars import UnsupportedGrammarError
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import CharClass
from sgl.grammars.regex import parse_regex
from sgl.grammars.regex.regex_character_sets import fold
from sgl.grammars.regex.unicode_classes import characters, property_class, script
from sgl.grammars.regex.unicode_script_table import NAMES

EVERYTHING = characters(0, 0xD7FF) + characters(0xE000, 0x10FFFF)
SPACES_OF_ECMA = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + characters(0x2000, 0x200A)
VOCABULARY = byte_vocabulary()


def _codes(chars: CharSet) -> set[int]:
    return {code for low, high in chars for code in range(low, high + 1)}


def _of(pattern: str, dialect="python") -> set[int]:
    expr = parse_regex(pattern, dialect)
    assert isinstance(expr, CharClass)
    return _codes(expr.chars)


@pytest.mark.few(4)
@pytest.mark.parametrize("flags", ["", "(?a)", "(?i)", "(?ai)", "(?u)"])
@pytest.mark.parametrize("body", [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\d_]", r"[^\w\s]", r"[\Wk]", r"[^\Sx]"])
def test_classes_are_those_of_re_over_all_code_points(body, flags):
    assert _of(flags + body) == set(map(ord, re.findall(flags + body, EVERYTHING)))


@pytest.mark.parametrize("letter,members", [("d", "0123456789"), ("s", SPACES_OF_ECMA)])
def test_classes_of_ecma_are_its_own(letter, members):
    assert _of(rf"\{letter}", "ecma") == set(map(ord, members))
    assert _of(rf"\{letter.upper()}", "ecma") == set(map(ord, EVERYTHING)) - set(map(ord, members))


def test_words_of_ecma_are_ascii():
    assert _of(r"\w", "ecma") == set(map(ord, re.findall(r"\w", EVERYTHING, re.ASCII)))


@pytest.mark.few(30)
@pytest.mark.parametrize("names", [word.split(":") for word in NAMES.split()], ids=lambda names: names[0])
def test_scripts_are_those_of_the_regex_package(names):
    """For characters that this Python knows: later versions of Unicode give scripts to others."""
    known = _known()
    try:
        expected = set(map(ord, regex.findall(rf"\p{{Script={names[1]}}}", known)))
    except regex.error:
        pytest.skip("a script that the regex package does not know")
    found = script(names[1])
    assert found is not None and _codes(found) & set(map(ord, known)) == expected
    assert all(script(name) == found for name in names)


@cache
def _known() -> str:
    return "".join(c for c in EVERYTHING if unicodedata.category(c) not in ("Cn", "Co"))


def test_scripts_by_name_and_in_patterns():
    assert _of(r"\p{Han}") == _of(r"\p{Script=Hani}") == _of(r"\p{sc=Han}", "ecma")
    assert ord("字") in _of(r"\p{Han}") and ord("字") not in _of(r"\P{Han}")
    assert _of(r"[\p{Greek}a]") == _of(r"\p{Greek}") | {ord("a")}
    for pattern in (r"\p{Greekish}", r"\p{Script_Extensions=Greek}"):
        with pytest.raises(UnsupportedGrammarError, match="unicode property"):
            parse_regex(pattern)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["Lu", "Ll", "Lt", "Greek", "L"])
def test_properties_fold_where_case_is_ignored(name):
    """The set with what folds to its members, one by one; negation is of the folded set."""
    plain = property_class(name)
    assert plain is not None
    folded = {c for code in _codes(plain) for c in _codes(fold(((code, code),)))}
    assert _of(rf"(?i)\p{{{name}}}") == _of(rf"(?i)[\p{{{name}}}]") == folded
    assert _of(rf"(?i)\P{{{name}}}") == _of(rf"(?i)[^\p{{{name}}}]") == set(map(ord, EVERYTHING)) - folded
    letters = set(map(ord, regex.findall(rf"(?i)\p{{{name}}}", EVERYTHING)))
    assert len(folded - letters) < 200  # `regex` takes all cased letters for Lu, Ll and Lt


LETTERS = "aZ_0 é٣ßǅ字Ωω\u2003-"  # not the control characters that are spaces to `re` but not to `regex`
ATOMS = [r"\d", r"\w", r"\s", r"\W", r"\D", r"\S", r"\p{Han}", r"\p{Greek}", r"\P{Lu}", r"[\w-]", r"[^\d\s]", "é", "."]


@pytest.mark.parametrize("seed", range(4))
def test_random_patterns_of_classes_agree_with_regex_token_by_token(seed):
    rng = random.Random(seed)
    for _ in range(many(60)):
        flags = rng.choice(["", "", "(?a)"])
        usable = [atom for atom in ATOMS if not (flags and atom[1:2] in ("p", "P"))]  # `regex` has no others then
        atoms = "".join(rng.choice(usable) + rng.choice(["", "", "+", "?", "{2}"]) for _ in range(rng.randint(1, 4)))
        machine = automaton(parse_regex(flags + atoms), VOCABULARY, rng.choice(CORES))
        expected = regex.compile(flags + atoms)
        for _ in range(6):
            text = "".join(rng.choice(LETTERS) for _ in range(rng.randint(0, 5)))
            state = machine.start
            for i, byte in enumerate(text.encode()):
                state = machine.advance(state, bytes([byte]))
                whole = text.encode()[: i + 1].decode(errors="ignore")
                assert (state >= 0) == (expected.fullmatch(whole, partial=True) is not None) or len(whole.encode()) <= i
                if state < 0:
                    break
            else:
                assert machine.final(state) == (expected.fullmatch(text) is not None), (flags + atoms, text)
