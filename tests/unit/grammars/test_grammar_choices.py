"""Lists of literal texts against set membership, small and by the tens of thousands."""

import random
import time

import pytest
from grammar_support import CORES, accepts, allowed, automaton, byte_vocabulary, many, random_vocabulary

from sgl.grammars import InvalidGrammarError, compile_choices
from sgl.grammars.literal_choices import choices_expr

VOCABULARY = byte_vocabulary()
LETTERS = "abcé日😀 -"


def _texts(rng: random.Random, count: int, longest: int) -> list[str]:
    found: set[str] = set()
    while len(found) < count:
        found.add("".join(rng.choice(LETTERS) for _ in range(rng.randint(0, longest))))
    return sorted(found, key=lambda _: rng.random())


@pytest.mark.parametrize("seed", range(many(6)))
def test_masks_are_those_of_the_list(seed):
    """At every place exactly the tokens that some text goes on with, prefixes of each other included."""
    rng = random.Random(seed)
    texts = _texts(rng, rng.choice([2, 8, 60]), 5)
    vocabulary = random_vocabulary(rng, [text for text in texts if text] * 2)
    data = [text.encode() for text in texts]
    for core in CORES:
        machine = automaton(choices_expr(texts), vocabulary, core)
        for whole in rng.sample(data, min(8, len(data))):
            start = whole[: rng.randint(0, len(whole))]
            state = machine.advance(machine.start, start) if start else machine.start
            expected = {
                token
                for token in vocabulary.text_ids
                if any(word.startswith(start + vocabulary.tokens[token]) for word in data)
            }
            expected |= set(vocabulary.eos_ids) if start in data else set()
            assert allowed(machine.mask(state)) == expected, (texts, start)


def test_an_empty_text_is_a_choice_like_any_other():
    grammar = compile_choices(["", "yes"], VOCABULARY)
    assert accepts(grammar, "") and accepts(grammar, "yes") and not accepts(grammar, "y")
    assert grammar.matcher().shortest_end() == b""


def test_one_choice_is_forced():
    assert compile_choices(["ünïcode", "ünïcode"], VOCABULARY).matcher().forced() == "ünïcode".encode()


@pytest.mark.parametrize(
    "choices,where",
    [
        ([], ""),
        ("abc", ""),
        (["a", 7], "choices[1]"),
        (["a", "b", "\ud800"], "choices[2]"),
        ([b"a"], "choices[0]"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(choices, where):
    with pytest.raises(InvalidGrammarError) as caught:
        compile_choices(choices, VOCABULARY)
    assert caught.value.where == where


def test_fifty_thousand_texts():
    rng = random.Random(1)
    texts = _texts(rng, 50_000, 12)
    start = time.process_time()
    grammar = compile_choices(texts, VOCABULARY)
    assert time.process_time() - start < 5
    known = set(texts)
    machine = grammar.automaton
    for text in rng.sample(texts, 200):
        for candidate in (text, text + "a", text[:-1], "b" + text):
            state = machine.advance(machine.start, candidate.encode()) if candidate else machine.start
            assert (state >= 0 and machine.final(state)) == (candidate in known)
