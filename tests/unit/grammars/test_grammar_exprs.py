"""Expressions made and walked in C against the same in Python, on random expressions."""

import random

import pytest
from grammar_support import many

from sgl.grammars.algebra import expr as algebra
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    Alt,
    AutomatonExpr,
    ByteClass,
    CharClass,
    Expr,
    GrammarRule,
    ListMember,
    Literal,
    LiteralSet,
    NameComplement,
    RegexAnchor,
    Repeat,
    RuleCall,
    SeparatedList,
    Seq,
)
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.ebnf import epsilon_removal, left_corners
from sgl.grammars.ebnf.assemble_rules import plain_size, size

pytestmark = pytest.mark.skipif(extension() is None, reason="the C core is not built")

RULES = [GrammarRule(name, lambda: NEVER) for name in "abcd"]
SAME = AutomatonExpr((((Literal(b"g"), 0),),), (True,))


def _leaf(rng: random.Random) -> Expr:
    kind = rng.randrange(12)
    if kind < 4:
        return Literal(rng.choice([b"", b"a", b"b", b"ab"]))
    if kind < 7:
        return RuleCall(rng.choice(RULES))
    if kind == 7:
        return LiteralSet(tuple(sorted({rng.choice([b"", b"x", b"yz"]) for _ in range(2)})))
    if kind == 8:
        return CharClass(((97, 97 + rng.randrange(3)),))
    others = [
        NEVER,
        EMPTY,
        ByteClass(rng.randrange(4)),
        SAME,
        RegexAnchor(True, 0),
        NameComplement(("", "n")[rng.randrange(2) :], 1, EMPTY, {}, {}),
    ]
    return rng.choice(others)


def _tree(rng: random.Random, depth: int) -> Expr:
    """As it may be written by hand, so not flat, and with equal parts that are not the same object."""
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return _leaf(rng)
    if kind < 0.7:
        items = tuple(_tree(rng, depth - 1) for _ in range(rng.randrange(4)))
        return Seq(items) if rng.random() < 0.5 else Alt(items)
    if kind < 0.85:
        least = rng.randrange(3)
        return Repeat(_tree(rng, depth - 1), least, rng.choice([None, least, least + 2]))
    if kind < 0.92:
        parts = tuple(ListMember(_leaf(rng), rng.random() < 0.3) for _ in range(rng.randrange(3)))
        return SeparatedList(parts, rng.choice([None, Literal(b"e")]), Literal(b","), rng.choice([0, 0, 1]))
    rows = tuple(tuple((_tree(rng, depth - 1), rng.randrange(2)) for _ in range(rng.randrange(3))) for _ in range(2))
    return AutomatonExpr(rows, (rng.random() < 0.5, True))


def _shown(expr: object) -> object:
    """Graphs are equal only to themselves: here they are told by what they have."""
    if isinstance(expr, AutomatonExpr) and expr is not SAME:
        return "graph", tuple(tuple((_shown(e), t) for e, t in row) for row in expr.edges), expr.accepting
    if isinstance(expr, Seq | Alt):
        return type(expr).__name__, *map(_shown, expr.items)
    return ("repeat", _shown(expr.item), expr.minimum, expr.maximum) if isinstance(expr, Repeat) else expr


def _outcome(call, *args):
    try:
        return _shown(call(*args))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("seed", range(4))
def test_made_expressions_are_those_of_python(seed):
    rng = random.Random(seed)
    for _ in range(many(800)):
        items = [_tree(rng, rng.randrange(4)) for _ in range(rng.choice([0, 1, 2, 3, 3, 40]))]
        assert _outcome(algebra.seq, *items) == _outcome(algebra.plain_seq, *items)
        assert _outcome(algebra.alt, *items) == _outcome(algebra.plain_alt, *items)
        assert [*map(algebra.nullable, items)] == [*map(algebra.plain_nullable, items)]


@pytest.mark.parametrize("seed", range(4))
def test_walks_find_what_those_of_python_find(seed):
    rng = random.Random(seed)
    for _ in range(many(800)):
        expr, chosen = _tree(rng, rng.randrange(5)), set(rng.sample(RULES, 2))
        bodies = dict.fromkeys(rng.sample(RULES, 3), EMPTY)
        replace = {rule: _leaf(rng) for rule in chosen}.get
        sizes = {rule: rng.randrange(8) for rule in chosen}
        assert epsilon_removal.calls(expr) == epsilon_removal.plain_calls(expr)
        assert left_corners.left_calls(expr) == left_corners.plain_left_calls(expr)
        assert epsilon_removal.may_be_empty(expr, chosen, bodies) == epsilon_removal.plain_may_be_empty(
            expr, chosen, bodies
        )
        assert epsilon_removal.may_end(expr, chosen, bodies) == epsilon_removal.plain_may_end(expr, chosen, bodies)
        assert _outcome(epsilon_removal.substitute, expr, replace) == _outcome(
            epsilon_removal.plain_substitute, expr, replace
        )
        assert size(expr, sizes, 4) == plain_size(expr, sizes, 4)


def test_what_is_unchanged_stays_the_same_object():
    expr = Seq((RuleCall(RULES[0]), Alt((Literal(b"a"), Repeat(RuleCall(RULES[1]), 0, None)))))
    assert epsilon_removal.substitute(expr, lambda rule: None) is expr
    assert algebra.alt(expr, Seq(expr.items)) is expr
    assert algebra.seq() is EMPTY and algebra.seq(Literal(b"a"), NEVER) is NEVER


def test_errors_of_a_replacement_come_out():
    def fail(rule: GrammarRule) -> Expr:
        raise KeyError(rule.name)

    with pytest.raises(KeyError):
        epsilon_removal.substitute(Seq((Literal(b"a"), Alt((RuleCall(RULES[0]), EMPTY)))), fail)


def test_what_nests_too_deeply_is_an_error():
    expr: Expr = RuleCall(RULES[0])
    for _ in range(100_000):
        expr = Alt((expr, EMPTY))
    walks = [
        epsilon_removal.calls,
        left_corners.left_calls,
        algebra.nullable,
        lambda e: epsilon_removal.may_end(e, set(), {RULES[0]: EMPTY}),
    ]
    walks += [lambda e: epsilon_removal.substitute(e, lambda rule: None), lambda e: size(e, {}, 4)]
    for walk in walks:
        with pytest.raises(RecursionError):
            walk(expr)
    while isinstance(expr, Alt):  # give it back from the outside, which a deep object cannot do by itself
        expr = expr.items[0]
