"""The product of languages in C against the same in Python: the same graphs, state by state."""

import random
import sys

import pytest
from grammar_support import many

from sgl.grammars import GrammarLimitError
from sgl.grammars.algebra.expr import (
    NEVER,
    Alt,
    AutomatonExpr,
    ByteClass,
    CharClass,
    Expr,
    Literal,
    Seq,
    alt,
    nonempty,
    repeat,
    seq,
    words,
)
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.algebra.language_operations import combine, matches, product
from sgl.grammars.regex import parse_regex

pytestmark = pytest.mark.skipif(extension() is None, reason="the C core is not built")

ATOMS = ["a", "b", "[ab]", ".", "é", "(ab)", "(a|ba|bb)", "(ab|cde|a)", "((aa)+)", "[^a]", r"\d", r"(\w+)", "日本"]
COUNTS = ["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,20}"]
Languages = list[Expr]


def _pattern(rng: random.Random, depth: int = 2) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return rng.choice(ATOMS) + rng.choice(COUNTS)
    if kind < 0.8:
        return _pattern(rng, depth - 1) + _pattern(rng, depth - 1)
    return f"({_pattern(rng, depth - 1)}|{_pattern(rng, depth - 1)})" + rng.choice(COUNTS)


def _language(rng: random.Random) -> Expr:
    expr = parse_regex(_pattern(rng, rng.choice([1, 2, 3])), "ecma", search=rng.random() < 0.4)
    kind = rng.random()
    if kind < 0.2:
        return words(bytes(rng.choices(b"abc", k=rng.randint(0, 4))) for _ in range(rng.choice([1, 6])))
    if kind > 0.4:
        return expr
    try:
        again = product([expr], [])
    except GrammarLimitError:
        return expr
    forms = [seq(Literal("é".encode()), again, again), repeat(nonempty(again), 1, 3), alt(again, expr), again]
    return rng.choice(forms) if isinstance(again, AutomatonExpr) else expr


def _by_content(expr: Expr) -> object:
    """Graphs are compared by what they say."""
    if not isinstance(expr, AutomatonExpr):
        return expr
    return [[(_by_content(item), target) for item, target in out] for out in expr.edges], expr.accepting


def _in_c(included: Languages, excluded: Languages, least: int, most: int | None) -> Expr:
    """Without the short cut that `combine` takes for one language alone."""
    everything = CharClass(((0, 0xD7FF), (0xE000, 0x10FFFF)))
    return combine([*included, repeat(everything)], excluded, least, most)


def _outcome(function, *args) -> object:
    try:
        return _by_content(function(*args))
    except GrammarLimitError:
        return "too much"


@pytest.mark.parametrize("seed", range(8))
def test_both_make_the_same_graph(seed):
    rng = random.Random(seed)
    for _ in range(many(40)):
        included = [_language(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        excluded = [_language(rng) for _ in range(rng.choice([0, 0, 1, 2]))]
        least, most = rng.choice([0, 0, 1, 5]), rng.choice([None, None, 3, 9])
        free = repeat(CharClass(((0, 0xD7FF), (0xE000, 0x10FFFF))))
        expected = _outcome(product, [*included, free], excluded, least, most)
        assert _outcome(_in_c, included, excluded, least, most) == expected, (included, excluded, least, most)


def test_more_than_32_classes_of_characters():
    letters = [parse_regex(f"[^{chr(code)}]*") for code in range(0x430, 0x430 + 40)]
    allowed = words(["я".encode(), "а".encode(), "яц".encode(), "xж".encode(), b"plain"])
    found = combine([*letters, allowed])
    assert _by_content(found) == _by_content(product([*letters, allowed], []))
    assert [t for t in ("plain", "а", "я", "яц", "xж") if matches(found, t)] == ["plain"]


@pytest.mark.parametrize(
    "expr,error",
    [
        (ByteClass(1), "no language of characters"),
        (Literal(b"\xff"), "utf-8"),
        (AutomatonExpr((((CharClass(((97, 97),)), 5),),), (True,)), "edge to no state"),
        (AutomatonExpr(((),), ()), "lacks states"),
        (repeat(CharClass(((97, 97),)), 0, 1 << 40), "32 bits"),
    ],
    ids=str,
)
def test_what_is_no_language_is_refused(expr, error):
    with pytest.raises((TypeError, ValueError, IndexError, OverflowError), match=error):
        combine([expr, expr])


def test_the_deepest_expressions_are_refused_and_not_crashed_on():
    expr: Expr = CharClass(((97, 97),))
    for _ in range(20_000):
        expr = Alt((Seq((CharClass(((98, 98),)), expr)), Literal(b"x")))
    with pytest.raises(RecursionError):
        combine([expr, Literal(b"bx")])


def test_nothing_is_leaked():
    shared = CharClass(((97, 122),))
    languages = [repeat(shared, 1, 3), parse_regex("a.*")]
    before = [sys.getrefcount(o) for o in (shared, shared.chars, None, *languages)]
    for _ in range(50):
        assert combine(languages) != NEVER
        assert combine([languages[0], Literal(b"0")]) == NEVER
        with pytest.raises(TypeError):
            combine([languages[1], ByteClass(1)])
    after = [sys.getrefcount(o) for o in (shared, shared.chars, None, *languages)]
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 40
