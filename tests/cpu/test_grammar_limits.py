"""A grammar that meets its limit in the middle of a text stops its own request, and nobody else's."""

from __future__ import annotations

import re

import pytest

from sgl import grammars
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex import parse_regex
from sgl.runtime import SamplingParams

ROOM = 60  # states


class Cramped(grammars.Grammar):
    """A grammar whose automata have room for few states."""

    def __init__(self, source, vocabulary):
        super().__init__(source, vocabulary)
        self._automaton = Automaton(
            TransitionNetwork(source), vocabulary, limit=ROOM, fresh=lambda: TransitionNetwork(source)
        )


@pytest.mark.parametrize("jump", [True, False])
def test_only_the_request_of_that_grammar_fails(open_engine, jump):
    engine = open_engine(jump_forward=jump)
    pattern = "so: [ab]*a[ab]{60}!"
    cramped = Cramped(parse_regex(pattern), engine.vocabulary)
    roomy = grammars.compile_regex("[0-9]{60}", engine.vocabulary)
    futures = []
    for index in range(6):
        sequence = engine.open()
        sequence.extend(engine.tokenizer.encode("x", special_prefix=True))
        params = SamplingParams(max_tokens=80, seed=index, temperature=1.5)
        futures.append(sequence.generate(params, [cramped, roomy, None][index % 3]))
    for failed in futures[::3]:
        with pytest.raises(grammars.GrammarLimitError, match="states"):
            failed.result(60)
    assert all(re.fullmatch("[0-9]{60}", done.result(60).text) for done in futures[1::3])
    assert all(done.result(60).completion_tokens > 0 for done in futures[2::3])
    assert engine.stats().steps > 1
    later = engine.generate("x", grammar=roomy, max_tokens=80)
    assert re.fullmatch("[0-9]{60}", later.text)


def test_the_limit_is_met_after_a_few_tokens(engine):
    matcher = Cramped(parse_regex("so: [ab]*a[ab]{60}!"), engine.vocabulary).matcher()
    accepted = 0
    with pytest.raises(grammars.GrammarLimitError):
        for token in engine.tokenizer.encode("so: " + "abbab" * 40, parse_special=False).tolist():
            matcher.mask()
            assert matcher.accept(token)
            accepted += 1
    assert accepted > 4
