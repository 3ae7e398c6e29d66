"""Masks of a batch: equal to single ones, the same objects, with errors in their places, from many threads."""

import json
import random
import threading

import numpy as np
import pytest
from grammar_support import CORES, JSON_PIECES, allowed, automaton, byte_vocabulary

from sgl.grammars import GrammarError, compile_json_schema, compile_regex
from sgl.grammars.algebra.expr import GrammarRule, Literal, RuleCall, seq
from sgl.grammars.automaton.batch_token_masks import fill_masks
from sgl.grammars.automaton.grammar_matcher import Matcher

VOCABULARY = byte_vocabulary(JSON_PIECES)
SCHEMAS = [
    {"type": "string"},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 30},
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}, "required": ["name"]},
    {},
]


def matchers(rng, count):
    """Matchers of several grammars, some steps into a random text."""
    grammars = [compile_json_schema(schema, VOCABULARY) for schema in SCHEMAS] + [compile_regex("[a-z ]+", VOCABULARY)]
    found = [rng.choice(grammars).matcher() for _ in range(count)]
    for matcher in found:
        for _ in range(rng.randint(0, 12)):
            choices = sorted(allowed(matcher.mask()) - set(VOCABULARY.eos_ids))
            if choices:
                assert matcher.accept(rng.choice(choices))
    return found


def fresh(core, expr):
    return Matcher(automaton(expr, VOCABULARY, core))


def test_a_batch_gives_the_masks_of_its_matchers():
    rng = random.Random(1)
    for _ in range(5):
        batch = [m if rng.random() < 0.9 else None for m in matchers(rng, 20)]
        for matcher in batch:
            if matcher is not None:
                matcher.accept(rng.choice(sorted(allowed(matcher.mask()))))
        out = np.full((len(batch), VOCABULARY.words), 7, np.int32)
        masks = fill_masks(batch, out)
        for matcher, mask, row in zip(batch, masks, out, strict=True):
            if matcher is None:
                assert mask is None and (row == 7).all()
            else:
                assert mask is matcher.mask() and (row == mask).all()


@pytest.mark.parametrize("core", CORES)
def test_new_states_of_one_grammar_share_equal_rows(core):
    rule = GrammarRule("text", lambda: seq(Literal(b'"a'), Literal(b'"')))
    matcher = fresh(core, seq(RuleCall(rule), RuleCall(rule), Literal(b".")))
    second = matcher.copy()
    for byte in b'"a"':
        assert second.accept(byte)
    masks = fill_masks([matcher, second, matcher])
    assert masks[0] is masks[1] is masks[2]
    assert not masks[0].flags.writeable


def test_a_grammar_that_fails_disturbs_no_other():
    def broken():
        raise GrammarError("this rule has no body")

    failing = [
        fresh(core, seq(Literal(b"a"), Literal(b"b"), RuleCall(GrammarRule("broken", broken)))) for core in CORES
    ]
    others = matchers(random.Random(3), 4)
    for matcher in failing:
        assert matcher.accept(ord("a"))
    masks = fill_masks([*failing, *others])
    assert all(isinstance(mask, GrammarError) for mask in masks[: len(failing)])
    assert all(mask is matcher.mask() for mask, matcher in zip(masks[len(failing) :], others, strict=True))


def test_matchers_after_their_end():
    matcher = compile_regex("a", VOCABULARY).matcher()
    assert matcher.accept(ord("a")) and matcher.accept(VOCABULARY.eos_ids[0])
    (mask,) = fill_masks([matcher])
    assert allowed(mask) == set(VOCABULARY.eos_ids)


def test_threads_with_the_same_grammars_in_any_order():
    """Batches and single masks at once: no deadlock, and every mask is what it is alone."""
    texts = [json.dumps(value) for value in ("quick name", [10, 20], {"name": "the"}, {"name": [None, 1]})]
    vocabulary = byte_vocabulary(JSON_PIECES)
    grammars = [compile_json_schema(schema, vocabulary) for schema in SCHEMAS]
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(15):
            batch = [grammar.matcher() for grammar in rng.sample(grammars, len(grammars))]
            for byte in rng.choice(texts).encode():
                masks = fill_masks(batch)
                for matcher, mask in zip(batch, masks, strict=True):
                    wrong.extend([matcher] * (mask is not matcher.mask()))
                batch = [matcher for matcher in batch if matcher.accept(byte)]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
