"""Choices with definitions, as an Enum or a Literal: what is scored, what is read,
what the model is told, and the probabilities.
"""

from __future__ import annotations

import asyncio
import enum
import math
import pickle
import warnings
from typing import Annotated, Literal

import pytest

import sgl
from sgl.lang.check import check_source
from sgl.lang.errors import BadValueError
from sgl.lang.interpreter.node_handlers import UnreadDefinitionsWarning

KINDS = {"billing": "invoices and\n  payments", "technical": "something does not work", "other": None}


class Kind(enum.Enum):
    """What a ticket is about."""

    BILLING = "billing"
    "invoices and payments"
    TECHNICAL = "technical"
    OTHER = "other"


class Stars(enum.IntEnum):
    ONE = 1
    TWO = 2


Kind.OTHER.__doc__ = "anything else"
WORDS = (
    "Choose the label that fits the text.\n- billing: invoices and payments\n- technical: something does not "
    "work\n- other"
)


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        (KINDS, WORDS),
        (
            Kind,
            "Choose the label that fits the text.\n- billing: invoices and payments\n- technical\n- other: anything "
            "else",
        ),
        (Literal["a", "b"], "Choose the label that fits the text.\n- a\n- b"),
        (["a", "b\nc"], 'Choose the label that fits the text.\n- a\n- "b\\nc"'),
        (Stars, "Choose the label that fits the text.\n- 1\n- 2"),
        (bool, "Choose the label that fits the text.\n- True\n- False"),
    ],
)
def test_labels_in_words(choices, text):
    assert sgl.labels(choices).text() == text
    assert sgl.labels(choices, task="").text() == "\n".join(text.splitlines()[1:])
    with pytest.raises(TypeError, match="used as a string"):
        f"{sgl.labels(choices)}"


@pytest.mark.parametrize(
    ("choices", "answer", "value"),
    [
        (KINDS, "technical", "technical"),
        (Kind, "technical", Kind.TECHNICAL),
        (Stars, "2", Stars.TWO),
        (Literal["yes", "no"], "no", "no"),
        (Literal[3, 4], "4", 4),
        (bool, "False", False),
        (["yes", "no"], "no", "no"),
    ],
)
@pytest.mark.parametrize("word", ["select", "choices", "compiled", "pickled", "forks"])
def test_the_text_and_the_value(choices, answer, value, word):
    @sgl.function
    def pick(s):
        s += sgl.system(sgl.labels(choices))
        with s.assistant():
            s += sgl.gen("x", choices=choices) if word == "choices" else sgl.select("x", choices)
        return s.get("x") if word != "compiled" else None

    backend = sgl.Scripted({"x": answer})
    state = pick.compile(backend).run(backend=backend) if word == "compiled" else pick.run(backend=backend)
    state = pickle.loads(pickle.dumps(state)) if word == "pickled" and choices in (Kind, Stars, bool) else state
    assert (state["x"], state.get("x"), type(state.get("x"))) == (answer, value, type(value))
    assert state.ret_value == (None if word == "compiled" else value)
    assert next(iter(state.probs("x"))) == answer
    assert sgl.labels(choices).text() in state.text()


@pytest.mark.parametrize(
    ("choices", "match"),
    [
        ({}, "choices is {}"),
        ({"a": 1}, "the definition of 'a' is 1"),
        ({1: "one"}, "give a list of strings: '1', not 1"),
        (enum.Enum("Mixed", {"A": "a", "B": 2}), "all texts or all whole numbers"),
        (enum.Enum("Empty", {}), "has no labels"),
        (Literal["a", 1], "all texts or all whole numbers"),
        (Annotated[int, 3], "choices is"),
        (int, "choices is <class 'int'>"),
        ("yes", "choices is 'yes'"),
        ([], "a dict of definitions, an Enum or a Literal"),
        ({"": "nothing"}, "is an empty text"),
    ],
)
def test_what_has_no_labels_is_refused(choices, match):
    for word in (lambda: sgl.select("x", choices), lambda: sgl.gen("x", choices=choices), lambda: sgl.labels(choices)):
        with pytest.raises(BadValueError, match=match):
            word()


def test_definitions_that_the_prompt_lacks_are_said_once():
    @sgl.function
    def silent(s):
        for number in range(2):
            s += sgl.select(f"x{number}", KINDS)

    @sgl.function
    def told(s, words):
        s += words + sgl.select("x", KINDS)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        silent.run_batch([{}, {}], backend=sgl.Scripted({"x0": "other", "x1": "other"}))
    assert [one.category for one in said] == [UnreadDefinitionsWarning]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in (sgl.labels(KINDS), "A ticket on invoices and payments is billing.\n"):
            assert told.run(words, backend=sgl.Scripted({"x": "other"}))["x"] == "other"


def scoring() -> sgl.Scripted:
    """Its scores of choices depend on the prompt."""

    def answer(prompt, request):
        if not hasattr(request, "choices"):
            return "abc" if request.name == "before" else ANSWERS[request.options.regex]
        return {choice: -1.0 - len(prompt) / 100 * index for index, choice in enumerate(request.choices)}

    return sgl.Scripted(answer, chat_template="chatml")


ANSWERS = {"yes|no": "no", "billing|technical|other": "other", "True|False": "True", "1|2": "2"}


@pytest.mark.parametrize("kind", [Literal["yes", "no"], Kind, bool, Stars])
def test_a_typed_gen_has_the_probabilities_of_a_select_in_its_place(kind):
    @sgl.function
    def both(s):
        s += sgl.system("x") + sgl.user("y")
        s += sgl.assistant_begin() + sgl.gen("before", max_tokens=3)
        typed, chosen = s.fork(2)
        typed += sgl.gen("x", kind)
        chosen += sgl.select("x", kind)
        return typed.probs("x"), chosen.probs("x"), typed.text()

    backend = scoring()
    typed, chosen, text = both.run(backend=backend).ret_value
    assert typed == pytest.approx(chosen) and math.isclose(sum(typed.values()), 1)
    assert both.run(backend=backend).ret_value[2] == text


def test_probabilities_of_a_typed_gen_are_awaited_and_recorded(tmp_path):
    @sgl.function
    async def ask(s):
        s += sgl.user("y")
        with s.assistant():
            s += sgl.gen("x", Literal["yes", "no"])
        return await s.probs("x")

    run = {"backend": scoring(), "journal": tmp_path / "runs.journal"}
    first = asyncio.run(ask.arun(**run)).ret_value
    assert asyncio.run(ask.arun(**run)).ret_value == first
    assert asyncio.run(ask.arun(backend=sgl.replay(tmp_path / "runs.journal"))).ret_value == first


def test_other_gens_have_no_probabilities():
    @sgl.function
    def ask(s):
        s += sgl.gen("text") + sgl.gen("number", int)

    state = ask.run(backend=sgl.Scripted({"text": "a", "number": "3"}))
    for name in ("text", "number"):
        with pytest.raises(BadValueError, match="or gen of a Literal, Enum or bool, made it"):
            state.probs(name)


def test_check_knows_them():
    source = """
import enum
import sgl
from typing import Literal
KINDS = {"a": "first", "b": "second"}
class Kind(enum.Enum):
    A = "a"
@sgl.function
def pick(s, q):
    s += sgl.system(sgl.labels(KINDS)) + sgl.user(q)
    s += sgl.assistant(sgl.select("a", KINDS) + sgl.select("b", Kind) + sgl.select("c", Literal["x"]))
    s += sgl.assistant(sgl.gen("d", choices=KINDS) + sgl.gen("e", choices={q: "what was asked"}) + sgl.select("f", bool))
"""  # noqa: E501
    assert check_source(source, "x.py") == []
    wrong = source.replace('"first"', "1")
    assert {problem.rule for problem in check_source(wrong, "x.py")} == {"SGL403"}
