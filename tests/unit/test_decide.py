"""sgl.decide on scripted scores: kinds, names and fields are those of OpenAI's `decisions` resource."""

import asyncio
import enum
import math
from dataclasses import asdict

import pytest

import sgl
from sgl.lang.errors import BadValueError, ProgramError, UnsupportedByBackendError


class Room(enum.Enum):
    SINGLE = "single"
    DOUBLE = "double"


def logs(**probs):
    return {text: math.log(prob) for text, prob in probs.items()}


def scripted():
    return sgl.Scripted(
        {
            "angry": logs(yes=0.2, no=0.8),
            "room": logs(single=0.7, double=0.3),
            "urgency": logs(low=0.5, medium=0.25, high=0.25),
        }
    )


QUESTIONS = [
    sgl.predicate("The guest is angry.", name="angry"),
    sgl.choice("Which room is it?", {"single": "one bed", "double": None}, name="room"),
    sgl.score("How urgent is it?", ["low", "medium", "high"], name="urgency"),
]
DICTS = [
    {"type": "predicate", "instructions": "The guest is angry.", "name": "angry"},
    {
        "type": "choice",
        "instructions": "Which room is it?",
        "choices": [{"value": "single", "description": "one bed"}, {"value": "double"}],
        "name": "room",
    },
    {
        "type": "score",
        "instructions": "How urgent is it?",
        "levels": [{"label": "low"}, {"label": "medium"}, {"label": "high"}],
        "name": "urgency",
    },
]


@pytest.mark.parametrize("questions", [QUESTIONS, DICTS], ids=["made", "dicts"])
def test_each_kind_has_its_answer(questions):
    backend = scripted()
    decision = sgl.decide("A room, please.", questions, backend=backend)
    angry, room, urgency = decision
    assert angry.probability == pytest.approx(0.2) and decision["angry"] is angry is decision[0]
    assert room.choice == "single" and room.confidence == pytest.approx(0.4)
    assert [(item.value, item.probability) for item in room.probabilities] == [
        ("single", pytest.approx(0.7)),
        ("double", pytest.approx(0.3)),
    ]
    assert urgency.score == pytest.approx(0.75) and urgency.confidence == pytest.approx(0.25)
    assert [item.value for item in urgency.probabilities] == [0, 1, 2]
    assert (len(decision), decision.model, decision.usage.operations) == (3, "scripted", 3)
    prompts = [call.prompt.partition("A room, please.")[2] for call in backend.calls]
    assert "Is this true? The guest is angry.\n- yes\n- no" in prompts[0]
    assert "Which room is it?\n- single: one bed\n- double" in prompts[1]


def test_answers_are_those_of_the_protocol():
    types = pytest.importorskip("openai.types.decision")
    from pydantic import TypeAdapter

    read = TypeAdapter(types.Answer)
    for answer in sgl.decide("x", QUESTIONS, backend=scripted()):
        assert read.validate_python(asdict(answer)).model_dump() == asdict(answer)


def test_values_are_typed():
    backend = sgl.Scripted({"answer": logs(single=0.4, double=0.6)})
    assert sgl.decide("x", [sgl.choice("Which?", Room)], backend=backend)[0].choice is Room.DOUBLE
    mixed = {"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "True"}]}
    for more, message in ((True, "True is there twice"), ("true", "there is no third way to write True")):
        with pytest.raises(BadValueError, match=message):
            sgl.decide("x", [{**mixed, "choices": [*mixed["choices"], {"value": more}]}], backend=sgl.Scripted({}))
    backend = sgl.Scripted({"answer": {"true": -0.1, "True": -3.0}})
    answer = sgl.decide("x", [mixed], backend=backend)[0]
    assert answer.choice is True and [item.value for item in answer.probabilities] == [True, "True"]


def test_ties_are_for_the_first():
    backend = sgl.Scripted({"answer": logs(b=0.5, a=0.5)})
    answer = sgl.decide("x", [sgl.choice("?", ["b", "a"])], backend=backend)[0]
    assert answer.choice == "b" and answer.confidence == 0


def test_all_forms_give_the_same():
    once = sgl.decide("x", QUESTIONS, backend=scripted()).answers
    assert asyncio.run(sgl.decide.arun("x", QUESTIONS, backend=scripted())).answers == once
    assert [one.answers for one in sgl.decide.batch(["x", "y"], QUESTIONS, backend=scripted())] == [once, once]
    assert [one.answers for one in asyncio.run(sgl.decide.abatch(["x"], QUESTIONS, backend=scripted()))] == [once]


def test_instructions_are_a_system_turn():
    backend = scripted()
    sgl.decide("x", QUESTIONS[:1], instructions="Judge the mail.", backend=backend)
    assert backend.calls[0].prompt.index("Judge the mail.") < backend.calls[0].prompt.index("x")


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "at least one question"),
        ("Is it true?", "at least one question"),
        (["Is it true?"], "question 0 is 'Is it true\\?'"),
        ([{"type": "rank", "instructions": "?"}], "question 0 is"),
        ([{"type": "predicate"}], "question 0 has no 'instructions'"),
        ([{"type": "predicate", "instructions": "?", "levels": []}], "has 'levels'"),
        ([{"type": "predicate", "instructions": " "}], "instructions is ' '"),
        ([{"type": "choice", "instructions": "?", "choices": [{"value": "a"}]}], "at least 2 labels"),
        (
            [{"type": "choice", "instructions": "?", "choices": [{"value": 1}, {"value": "a"}]}],
            "value of one of choices",
        ),
        ([{"type": "choice", "instructions": "?", "choices": ["a", "b"]}], "one of choices is 'a'"),
        ([{"type": "score", "instructions": "?", "levels": [{"label": True}]}], "label of one of levels is True"),
        ([QUESTIONS[0], QUESTIONS[0]], "two questions are named 'angry'"),
    ],
)
def test_what_is_wrong_is_named(questions, message):
    with pytest.raises(BadValueError, match=message):
        sgl.decide("x", questions, backend=sgl.Scripted({}))


def test_what_cannot_be_answered_is_refused():
    parts = {"type": "predicate", "instructions": [{"type": "input_text", "text": "?"}]}
    with pytest.raises(UnsupportedByBackendError, match="a list of parts"):
        sgl.decide("x", [parts], backend=sgl.Scripted({}))
    with pytest.raises(KeyError, match="no question is named 'x'; their names: angry"):
        sgl.decide("x", QUESTIONS[:1], backend=scripted())["x"]
    with pytest.raises(BadValueError, match="text is ''"):
        sgl.decide("", QUESTIONS, backend=scripted())
    backend = sgl.OpenAI("gpt-x", api_key="none", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ProgramError, match="gives no scores for <AnswerLikelihood>"):
        sgl.decide("x", QUESTIONS[:1], backend=backend)
    backend.shutdown()


def test_a_batch_needs_a_list_of_texts():
    for texts in (None, "one"):
        with pytest.raises(BadValueError, match=r"texts is .*; give a list of texts"):
            sgl.decide.batch(texts, [sgl.predicate("It is.")], backend=scripted())
