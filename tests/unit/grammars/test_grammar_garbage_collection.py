"""What the collector of cyclic garbage need not look at, and that what is in cycles is still collected."""

from __future__ import annotations

import gc

import pytest

from sgl.grammars.algebra.expr import (
    AutomatonExpr,
    ByteClass,
    CharClass,
    GrammarRule,
    ListMember,
    Literal,
    Repeat,
    RuleCall,
    SeparatedList,
    Seq,
    alt,
    seq,
)
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex import parse_regex

pytestmark = pytest.mark.skipif(extension() is None, reason="the C core is not built")


def lowered(expr):
    network = TransitionNetwork(expr)
    network.build(network.rule_id(GrammarRule("all", lambda: expr)))
    return expr


def test_what_leads_to_no_rule_is_settled_once_it_is_lowered():
    made = lowered(
        seq(
            Repeat(ByteClass(6), 1, None),
            SeparatedList((ListMember(Literal(bytes([97])), True),), None, Literal(b","), 0, None),
            alt(Literal(b"bc"), CharClass(((300, 400),))),
        )
    )
    assert isinstance(made, Seq) and not any(map(gc.is_tracked, (made, made.items, *made.items)))


def test_a_product_is_settled_when_it_is_made():
    graph = combine([parse_regex("[a-zé]{3,9}"), parse_regex("(ab|[^q])*")])
    assert isinstance(graph, AutomatonExpr)
    assert not any(
        gc.is_tracked(each) for each in (graph.edges, *graph.edges, *(edge for out in graph.edges for edge in out))
    )
    lowered(graph)
    assert not gc.is_tracked(graph)


def test_rules_that_call_themselves_are_collected():
    def make() -> None:
        rule = GrammarRule("nested", lambda: alt(seq(Literal(b"("), RuleCall(rule), Literal(b")")), Literal(b"")))
        call = RuleCall(rule)
        network = TransitionNetwork(call)
        for each in (GrammarRule("all", lambda: call), rule):
            network.build(network.rule_id(each))
        assert gc.is_tracked(call)

    def count() -> int:
        gc.collect()
        return sum(type(each) is GrammarRule for each in gc.get_objects())

    before = count()
    for _ in range(5):
        make()
    assert count() <= before
