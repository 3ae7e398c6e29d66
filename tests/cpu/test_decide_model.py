"""sgl.decide and sgl.classify on the bundled model: against the probability of each whole text, computed alone."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from server_rig import serving

import sgl
from sgl.lang.backends.default_backend import as_backend
from sgl.runtime.text.chat_templates.quoted_text import joined, quoted

END = "<|end|>"
LABELS = [
    ["yes", "no"],
    ["art", "artist", "artistic freedom", "a"],  # each is the beginning of another, or of its tokens
    ["New York", "New York City", "Newark"],
    ["größer", "gro\u0308ßer", "大きい", "🙂", "🙂🙂"],
    [" yes", "yes ", "Yes", "YES"],
    ["a long label of many words that ends in one", "a long label of many words that ends in two", "short"],
    ["<|end|>", "<|user|>", "end"],  # text, not special tokens
    ["1", "10", "100", "0"],
]


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(threads=1, dtype="float32") as opened:
        yield opened


def prompts_of(engine, task, *arguments, **options):
    """What each select of a task sees, as the program writes it."""
    template = as_backend(engine).get_chat_template()
    backend = sgl.Scripted(lambda prompt, request: request.choices[0], chat_template=template)
    task(*arguments, backend=backend, **options)
    return [call.prompt for call in backend.calls]


def whole_text(engine, text):
    """log P(every token of the text but the first), by one pass over it alone."""
    engine.flush_cache()
    tokens = np.array(engine.tokenizer.encode(text, special_prefix=True), np.int32)
    sequence = engine.open()
    sequence.extend(tokens)
    found, _ = sequence.logprobs(1).result()
    sequence.close()
    assert len(found) == len(tokens) - 1
    return math.fsum(value for value, _ in found)


def oracle(engine, prompt, labels, ended):
    """P(label | it is one of them) from the probabilities of the whole texts."""
    end = END if ended else ""
    logs = [whole_text(engine, joined([prompt, quoted(label), end])) for label in labels]
    weights = [math.exp(value - max(logs)) for value in logs]
    return [weight / math.fsum(weights) for weight in weights]


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: labels[0])
def test_probabilities_are_those_of_the_whole_texts(engine, labels):
    questions = [sgl.choice("Which one fits?", labels), sgl.predicate("It is art.")]
    text = "The museum in New York shows 10 paintings."
    prompts = prompts_of(engine, sgl.decide, text, questions)
    decision = sgl.decide(text, questions, backend=engine)
    ended = any(a != b and b.startswith(a) for a in labels for b in labels)
    expected = oracle(engine, prompts[0], labels, ended)
    assert [item.probability for item in decision[0].probabilities] == pytest.approx(expected, abs=1e-4)
    assert decision[0].choice == labels[expected.index(max(expected))]
    assert decision[1].probability == pytest.approx(oracle(engine, prompts[1], ["yes", "no"], False)[0], abs=1e-4)
    made = sgl.classify(text, labels, none=True, backend=engine)
    prompt = prompts_of(engine, sgl.classify, text, labels, none=True)[0]
    expected = oracle(engine, prompt, [*labels, "none of these"], ended)
    assert [made.probs[label] for label in [*labels, None]] == pytest.approx(expected, abs=1e-4)
    assert math.fsum(made.probs.values()) == pytest.approx(1)


def test_a_crowd_of_questions_is_one_prefix(engine):
    """Tokens are counted: the text once, and of each question its own words."""
    rng = random.Random(4)
    words = ["room", "bed", "view", "noise", "price", "staff", "food", "pool", "beach", "garden"]
    text = " ".join(rng.choice(words) for _ in range(900))
    questions = [sgl.predicate(f"The guest writes about {rng.choice(words)} number {index}.") for index in range(200)]
    alone = [sgl.decide(text, [question], backend=engine)[0].probability for question in questions[:3]]
    engine.flush_cache()
    before = engine.stats()
    decision = sgl.decide(text, questions, backend=engine)
    spent = engine.stats() - before
    length = len(engine.tokenizer.encode(text))
    assert length > 900 and spent.computed_tokens < length + 200 * 25 and spent.generated_tokens == 0
    assert spent.steps < 20
    assert [answer.probability for answer in decision.answers[:3]] == pytest.approx(alone, abs=1e-4)
    assert decision.usage.operations == 200 and decision.usage.prompt_tokens > 200 * length


def test_a_crowd_fits_into_a_small_cache(engine):
    """Forks are read one after the other, and what they hold is given back."""
    text = "room " * 150
    questions = [sgl.choice(f"Question {index}?", ["yes", "maybe", "not at all"]) for index in range(60)]
    expected = [answer.confidence for answer in sgl.decide(text, questions, backend=engine)]
    with sgl.Engine(threads=1, dtype="float32", kv_tokens=600) as small:
        found = [answer.confidence for answer in sgl.decide(text, questions, backend=small)]
    assert found == pytest.approx(expected, abs=1e-4)


def test_several_labels_share_the_text(engine):
    text = "The restaurant in Rome serves fresh fish. " * 20
    labels = {"food": "meals", "travel": None, "sports": None, "music": "songs"}
    engine.flush_cache()
    before = engine.stats()
    made = sgl.classify(text, labels, multi=True, backend=engine)
    spent = engine.stats() - before
    assert spent.computed_tokens < len(engine.tokenizer.encode(text)) + 4 * 40
    prompts = prompts_of(engine, sgl.classify, text, labels, multi=True)
    for label, prompt in zip(labels, prompts, strict=True):
        assert made.probs[label] == pytest.approx(oracle(engine, prompt, ["yes", "no"], False)[0], abs=1e-4)


@pytest.mark.parametrize("labels", [["positive", "negative"], ["art", "artist", "zoo"]], ids=lambda labels: labels[0])
def test_a_server_of_the_native_protocol_gives_the_same(engine, labels):
    here = sgl.classify("A fine painting.", labels, backend=engine)
    with serving(engine) as url:
        remote = sgl.RuntimeEndpoint(url)
        there = sgl.classify("A fine painting.", labels, backend=remote)
        remote.shutdown()
    assert there.label == here.label and there.probs == pytest.approx(here.probs, abs=1e-3)


def test_a_select_appends_the_choice_without_the_end(engine):
    @sgl.function
    def ask(s):
        s += sgl.user("A fine painting.")
        s += sgl.assistant(sgl.select("label", ["art", "artist"], choices_method=sgl.answer_likelihood))
        s += sgl.user("Why?")

    state = ask.run(backend=engine)
    assert state.text().count(END) == 3 and state.messages()[1]["content"] == state["label"]
