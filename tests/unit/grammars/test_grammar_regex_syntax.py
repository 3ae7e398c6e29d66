"""The whole regex syntax against Python's `re`: random patterns, all code points, and anchors under search."""

import random
import re
import unicodedata
import warnings

import pytest
from grammar_support import CORES, automaton, byte_vocabulary, many

from sgl.grammars import GrammarError, GrammarLimitError, InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import NEVER, CharClass, Expr
from sgl.grammars.regex import parse_regex
from sgl.grammars.regex.regex_character_sets import cases, fold
from sgl.grammars.regex.unicode_classes import characters, class_of_re, general_category, property_class

VOCABULARY = byte_vocabulary()
EVERYTHING = characters(0, 0x10FFFF)
ATOMS = [
    "a",
    "b",
    "k",
    "K",
    "s",
    "ß",
    "é",
    "É",
    "ſ",
    "1",
    "_",
    " ",
    "\n",
    "-",
    "]",
    "}",
    "{",
    "#",
    ",",
    "^",
    "$",
    ".",
    r"\A",
    r"\Z",
    r"\d",
    r"\w",
    r"\s",
    r"\D",
    r"\W",
    r"\S",
    r"\n",
    r"\x61",
    r"\u00e9",
    r"\101",
    r"\0",
    r"\07",
    r"\\",
    r"\.",
    r"\-",
    r"\ ",
    "[ab]",
    "[^a]",
    "[a-k]",
    "[]a]",
    "[^]a]",
    r"[a\d]",
    r"[^\W]",
    "[[]",
    "[a-]",
    "[-a]",
    r"[\]]",
    "[k-s]",
    "[é-ſ]",
    r"[\101-\x63]",
    r"\N{LATIN SMALL LETTER A}",
    "(?#c)",
    "(a)",
    "(?:b)",
    "(?i:k)",
    "(?s:.)",
    "(?-i:s)",
    "(?i:[^k])",
    "(?x: a b # c\n)",
    "{1}",
    "{,2}",
    "{2,}",
    "{,}",
    "{a}",
    "()",
    "(|a)",
    "(?:)",
    r"\q",
    "(?:^|a)",
    "(a$)",
    "(^)",
    "a|b|ab",
]
COUNTS = ["", "", "", "", "*", "+", "?", "{2}", "{,2}", "{1,3}", "{2,}", "*?", "+?", "{0}"]
TEXT = "abkKsSß éÉſK1_\n-]}{#,^$.\\"


def _pattern(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return rng.choice(ATOMS) + rng.choice(COUNTS)
    if kind < 0.75:
        return "".join(_pattern(rng, depth - 1) for _ in range(rng.randint(0, 3)))
    if kind < 0.88:
        return rng.choice(["(", "(?:", "(?i:", "(?s:"]) + _pattern(rng, depth - 1) + ")" + rng.choice(COUNTS)
    return "(" + "|".join(_pattern(rng, depth - 1) for _ in range(rng.randint(2, 3))) + ")" + rng.choice(COUNTS)


def _mutated(rng: random.Random, pattern: str) -> str:
    at = rng.randrange(len(pattern) + 1)
    return pattern[:at] + rng.choice("()[]{}*+?|\\^$-,1a") + pattern[at + rng.randint(0, 2) :]


def _reference(pattern: str) -> re.Pattern[str] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(pattern)
        except (re.error, OverflowError):
            return None


def _ours(pattern: str) -> Expr | None:
    """NEVER for a pattern without texts, None for a malformed one."""
    try:
        return parse_regex(pattern)
    except InvalidGrammarError as error:
        return NEVER if "no text matches" in error.what else None


def _accepts(expr: Expr, text: str, core: str) -> bool:
    if expr == NEVER:
        return False
    machine = automaton(expr, VOCABULARY, core)
    state = machine.advance(machine.start, text.encode())
    return state >= 0 and machine.final(state)


def _flagged(rng: random.Random) -> str:
    flags = rng.choice(["", "", "(?s)", "(?x)", "(?i)", "(?ai)", "(?a)", "(?u)", "(?ax)"])
    pattern = "".join(_pattern(rng, 2) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.2:
        pattern = _mutated(rng, pattern)
    return flags + pattern


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_syntax_agrees_with_re(seed):
    rng = random.Random(seed)
    compared = 0
    for _ in range(many(350)):
        pattern = _flagged(rng)
        if re.search(r"(\*|\+|\{2,\}|\{,\})\??\)+[*+{]", pattern):
            continue  # exponential in `re`
        reference = _reference(pattern)
        try:
            expr = _ours(pattern)
        except UnsupportedGrammarError:
            continue
        assert (expr is None) == (reference is None), pattern
        if expr is None or reference is None:
            continue
        for _ in range(8):
            text = "".join(rng.choice(TEXT) for _ in range(rng.randint(0, 5)))
            expected = reference.fullmatch(text) is not None
            assert _accepts(expr, text, rng.choice(CORES)) == expected, (pattern, text)
            compared += 1
    assert compared > 500


ANCHORED = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    "(^a)",
    "(a$)",
    "(^|b)",
    "(b|$)",
    "(?:^)",
    "(?:$)",
    "(^a|b$)",
    "(?:a?^)",
    "(?:$b?)",
]


def _anchored(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if kind < 0.15:
        return rng.choice("^$")
    if depth == 0 or kind < 0.55:
        return rng.choice(ANCHORED) + rng.choice(["", "", "*", "+", "?", "{2}", "{2,3}", "{0,2}"])
    if kind < 0.8:
        return "".join(_anchored(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    return (
        "(?:" + "|".join(_anchored(rng, depth - 1) for _ in range(rng.randint(1, 3))) + ")" + rng.choice(["", "?", "*"])
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dialect,search", [("python", False), ("python", True), ("ecma", True)])
def test_anchors_anywhere_agree_with_re(dialect, search, seed):
    """Python's `$` also holds before a last line feed; ECMA's does not, so it sees no line feeds here."""
    rng = random.Random(seed)
    letters = "ab\n" if dialect == "python" else "ab"
    for _ in range(many(150)):
        pattern = "".join(_anchored(rng, 2) for _ in range(rng.randint(1, 4)))
        reference = re.compile(pattern)
        try:
            expr = parse_regex(pattern, dialect, search)
        except InvalidGrammarError:
            expr = NEVER
        for _ in range(8):
            text = "".join(rng.choice(letters) for _ in range(rng.randint(0, 5)))
            expected = (reference.search if search else reference.fullmatch)(text) is not None
            assert _accepts(expr, text, CORES[0]) == expected, (pattern, text)


def _codes(chars: charset.CharSet) -> set[int]:
    return {code for low, high in chars for code in range(low, high + 1)}


def test_letters_fold_as_in_re():
    """Each character with a case against all others; `re` itself is the reference."""
    cased = "".join(map(chr, cases().codes))
    assert cased == "".join(c for c in EVERYTHING if c.lower() != c or c.upper() != c)
    for char in cased:
        expected = {ord(c) for c in re.findall(re.escape(char), cased, re.IGNORECASE)}
        assert _codes(fold(((ord(char), ord(char)),))) == expected, hex(ord(char))


@pytest.mark.parametrize(
    "pattern", ["k", "K", "s", "ſ", "i", "ß", "µ", "Ω", "ﬅ", "[a-z]", "[^k]", "[À-ʯ]", "[^Ͱ-Ͽ]", "[𐐀-𐐧]"]
)
@pytest.mark.parametrize("flags,letters", [(re.IGNORECASE, "i"), (re.IGNORECASE | re.ASCII, "ia")])
def test_folded_sets_match_the_same_code_points_as_re(pattern, flags, letters):
    if flags & re.ASCII and max(pattern) > "\uffff":
        pytest.skip("`re` folds ranges beyond the BMP with Unicode's rule even under re.ASCII")
    expr = parse_regex(pattern, flags=letters)
    found = {match.start() for match in re.finditer(pattern, EVERYTHING, flags)} - set(range(0xD800, 0xE000))
    assert isinstance(expr, CharClass) and _codes(expr.chars) == found


@pytest.mark.parametrize(
    "escape,member", [(r"\d", str.isdecimal), (r"\s", str.isspace), (r"\w", lambda c: c.isalnum() or c == "_")]
)
def test_unicode_classes_are_those_of_re(escape, member):
    assert _codes(class_of_re(escape)) == {ord(c) for c in EVERYTHING if member(c) and not 0xD800 <= ord(c) <= 0xDFFF}


def test_general_categories_are_those_of_unicodedata():
    expected: dict[str, set[int]] = {}
    for char in EVERYTHING:
        expected.setdefault(unicodedata.category(char), set()).add(ord(char))
    del expected["Cs"]
    assert {name: _codes(general_category(name)) for name in expected} == expected
    assert _codes(general_category("L")) == set().union(*(expected[n] for n in ("Lu", "Ll", "Lt", "Lm", "Lo")))


@pytest.mark.parametrize(
    "name,char", [("L", "é"), ("Lu", "É"), ("gc=Nd", "٣"), ("General_Category=Letter", "ß"), ("ASCII", "~")]
)
def test_properties(name, char):
    chars = property_class(name)
    assert chars and charset.contains(chars, ord(char))
    assert _accepts(parse_regex(rf"\p{{{name}}}"), char, CORES[0]) and not _accepts(
        parse_regex(rf"\P{{{name}}}"), char, CORES[0]
    )
    assert not _accepts(parse_regex(rf"[^\p{{{name}}}]"), char, CORES[0])


ECMA = [
    (r"^[^]$", ["\n", "a"], ["", "ab"]),
    (r"^a|[]$", ["a", "ab"], ["b"]),
    (r"^\s$", ["\ufeff", "\u2003", "\u00a0", "\u2028"], ["\u0001", "\x1c"]),
    (r"^\d\w$", ["1a"], ["١a", "1é"]),
    (r"^\cA\u{1F600}$", ["\x01😀"], ["\x01"]),
    (r"^\ud83d\ude00$", ["😀"], ["x"]),
    (r"^.$", ["a"], ["\r", "\u2028"]),
    (r"^[\w-.]+$", ["a-.b"], ["+"]),
    (r"^a{,2}$", ["a{,2}"], ["aa"]),
    (r"^(?<$x>a)$", ["a"], ["b"]),
    (r"^(?i:AB)c$", ["abc", "AbC"[:2] + "c"], ["abC"]),
    (r"a$|^b", ["xa", "bx", "b"], ["ax", "xb"]),
    (r"^$", [""], ["a"]),
    (r"", ["", "a"], []),
    (r"(?:)$", ["x"], []),
    (r"\/\-", ["a/-"], ["a/"]),
]


@pytest.mark.parametrize("pattern,good,bad", ECMA, ids=[case[0] for case in ECMA])
def test_ecma_patterns_anywhere_in_the_text(pattern, good, bad):
    expr = parse_regex(pattern, "ecma", search=True)
    assert [t for t in good if not _accepts(expr, t, CORES[0])] == []
    assert [t for t in bad if _accepts(expr, t, CORES[0])] == []


@pytest.mark.parametrize("pattern", [r"\p{Greek}", r"\p{Script=Greekish}", r"\pL", r"\12", r"(?=a)", r"\bx", r"(a)\1"])
def test_ecma_refusals(pattern):
    with pytest.raises(UnsupportedGrammarError):
        parse_regex(pattern, "ecma", search=True)


@pytest.mark.parametrize("pattern", [r"\A", r"x\Z", r"\ud83d", r"\c1", r"\u{110000}", r"[b-a]", "(?<a>x)(?<a>y)"])
def test_ecma_malformed(pattern):
    with pytest.raises(InvalidGrammarError):
        parse_regex(pattern, "ecma", search=True)


SIMPLER = [
    ("(a{500}){500}", "a{250000}"),
    ("(a{1,500}){1,500}", "a{1,250000}"),
    ("(a*)*", "a*"),
    ("(a+)+", "a+"),
    ("(?:a?){7}", "a{0,7}"),
    ("(a?){1000}a{1000}", "a{1000,2000}"),
    ("aa*", "a+"),
    ("(x+x+)+y", "x{2,}y"),
    ("(a{2,3}){2,3}", "a{4,9}"),
    ("[ab][ab]{3}", "[ab]{4}"),
    ("a|b|[cd]", "a|b|[cd]"),
]


@pytest.mark.parametrize("pattern,same", SIMPLER)
def test_repeats_are_brought_together(pattern, same):
    assert parse_regex(pattern) == parse_regex(same)


def test_repeats_with_gaps_stay_apart():
    expr = parse_regex("(a{3,4}){1,2}")
    assert [n for n in range(10) if _accepts(expr, "a" * n, CORES[0])] == [3, 4, 6, 7, 8]


@pytest.mark.parametrize("pattern", ["a", "[a]", r"\n", r"\u00e9", "(?:é)", "[^a]", "(?i)k"])
def test_one_character_is_a_set(pattern):
    assert isinstance(parse_regex(pattern), CharClass)


def test_random_garbage_never_crashes():
    rng = random.Random(5)
    for _ in range(4000):
        pattern = "".join(rng.choice("ab()[]{}*+?|\\^$.-,:=!<>P#12dwpNux \ud800é") for _ in range(rng.randint(0, 12)))
        for dialect in ("python", "ecma"):
            try:
                parse_regex(pattern, dialect, search=dialect == "ecma")
            except GrammarError:
                continue


HEAVY = [
    (".*a.{2000}", "may begin at many places"),
    ("(a|b.{0,3}|.{5}){3000}", "may begin at many places"),
    (r"(\d+-?){90}x{0,3}.{1200}", "may begin at many places"),
    ("(a{1000000}b){1000000}", "no text shorter than"),
    ("((((a{100}){100}){100}){100})", "more than 1000000"),
]


@pytest.mark.parametrize("pattern,reason", HEAVY)
def test_repeats_that_cannot_be_followed_are_refused_at_once(pattern, reason):
    with pytest.raises(GrammarLimitError, match=reason):
        parse_regex(pattern)


@pytest.mark.parametrize(
    "pattern,text",
    [
        ("[^a]*a.{2000}", "xxa" + "é" * 2000),
        (".{20000}", "x" * 20000),
        ("(.{1000}x){50}", ("a" * 1000 + "x") * 50),
        ("([A-Z][a-z]{1,20} ){900}", "Word " * 900),
        (r"(\d{4}-){600}", "1234-" * 600),
        ("a{500}", "a" * 500),
    ],
)
def test_large_repeats_at_one_place_are_followed(pattern, text):
    expr = parse_regex(pattern)
    assert _accepts(expr, text, CORES[0]) and not _accepts(expr, text[:-1], CORES[0])
