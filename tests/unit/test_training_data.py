"""Training data: packing, the mask of what is learnt, and answers that fit their schemas."""

import json
import re
from datetime import date
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import jsonschema
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl.runtime.nano.nano_prompts import PromptField, fields_of, json_text, message, render, schema_of
from training.packing import answer_mask, document_numbers, pack
from training.sums import evaluate, word_problem
from training.synthetic import Documents, Split, load_catalogue
from training.tooluse import Agents
from training.values import Pools, Values

START, SYSTEM, USER, ASSISTANT, TOOL, END = range(6)
ROLES = (SYSTEM, USER, ASSISTANT, TOOL)
DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the public data is not at {DATA}")

word = st.integers(6, 60)
turn = st.tuples(st.sampled_from(ROLES), st.lists(word, max_size=5)).map(lambda t: [t[0], *t[1], END])
document = st.lists(turn, min_size=1, max_size=4).map(lambda turns: [token for t in turns for token in t])


def slow_answer_mask(row: list[int]) -> list[bool]:
    mask, role = [], None
    for token in row:
        inside = role is not None and token not in ROLES and token != START
        mask.append(inside and role == ASSISTANT)
        if token in ROLES:
            role = token
        elif token in (END, START):
            role = None
    return mask


@given(st.lists(document, min_size=1, max_size=12))
def test_packing_keeps_every_document_whole_and_once(documents: list[list[int]]) -> None:
    rows = pack(documents, START, row=64)
    found = []
    for row in rows.tolist():
        starts = [i for i, token in enumerate(row) if token == START] + [len(row)]
        found += [row[i + 1 : j] for i, j in pairwise(starts) if j > i + 1]
    assert sorted(found) == sorted(documents)


@given(st.lists(document, min_size=1, max_size=12))
def test_answer_mask_agrees_with_reading_token_by_token(documents: list[list[int]]) -> None:
    rows = pack(documents, START, row=64)
    mask = answer_mask(rows, ROLES, ASSISTANT, END)
    assert mask.tolist() == [slow_answer_mask(row) for row in rows.tolist()]


def test_too_long_documents_are_cut_and_documents_are_numbered() -> None:
    rows = pack([[7] * 100, [8, 9]], START, row=8)
    assert rows[0].tolist() == [START] + [7] * 7
    assert document_numbers(np.array([[0, 7, 7, 0, 8]]), START).tolist() == [[1, 1, 1, 2, 2]]


@pytest.mark.few(1)
@pytest.mark.parametrize("split", ["train", "names", "domains"])
def test_extraction_answers_fit_their_schema_and_stand_in_the_document(split: Split) -> None:
    composer = Documents(Random(3), Pools(), load_catalogue(), split)
    for _ in range(300):
        example = composer.make()
        jsonschema.validate(example.answer, schema_of(example.fields))
        assert list(example.answer) == [f.name for f in example.fields if f.name in example.answer]
        for field in example.fields:
            if field.kind == "string" and field.name in example.answer:
                assert example.answer[field.name] in example.document


def test_unseen_names_never_appear_in_training_prompts() -> None:
    catalogue = load_catalogue()
    for concepts in catalogue.domains.values():
        for concept in concepts:
            assert not set(concept.seen_names) & set(concept.unseen_names)
            assert set(concept.seen_names) | set(concept.unseen_names) == set(concept.names)


def test_every_kind_of_value_can_be_drawn() -> None:
    values = Values(Random(0), Pools())
    for concepts in load_catalogue().domains.values():
        for concept in concepts:
            text, value = values.draw(concept.kind)
            assert text and json.loads(json_text(value)) == value
    with pytest.raises(ValueError, match="unknown kind of value 'colur'"):
        values.draw("colur")


def test_tool_calls_name_an_offered_tool_and_carry_json() -> None:
    agents = Agents(Random(5), Pools(), load_catalogue())
    for _ in range(200):
        messages = agents.messages()
        offered = messages[0]["content"]
        for before, after in pairwise(messages):
            if before["role"] == "user":
                name = after["content"]
                assert name == "answer" or f"- {name}" in offered
            if after["role"] == "tool":
                json.loads(before["content"])
                json.loads(after["content"])


def test_schemas_and_fields_describe_each_other() -> None:
    fields = (
        PromptField("city", description="where"),
        PromptField("size", "enum", choices=("S", "M")),
        PromptField("tags", "list"),
        PromptField("when", "date"),
        PromptField("who", "object", fields=(PromptField("age", "integer"),)),
    )
    assert [f.name for f in fields_of(schema_of(fields))] == [f.name for f in fields]
    assert fields_of(schema_of(fields))[1:] == fields[1:]


def test_fields_of_schemas_as_pydantic_makes_them() -> None:
    class Person(pydantic.BaseModel):
        name: str | None = None
        parent: "Person | None" = None

    class Ticket(pydantic.BaseModel):
        users: int | None = pydantic.Field(None, description="how many")
        urgency: Literal["low", "high"] | None = None
        day: date | None = None
        tags: list[str] = []
        reporter: Person | None = None

    users, urgency, day, tags, reporter = fields_of(Ticket.model_json_schema())
    assert users == PromptField("users", "integer", "how many") and day.kind == "date" and tags.kind == "list"
    assert urgency == PromptField("urgency", "enum", choices=("low", "high"))
    assert [inner.name for inner in reporter.fields] == ["name", "parent"]
    deepest = reporter
    while deepest.fields:
        deepest = deepest.fields[1]
    assert deepest.kind == "object"


def test_rendering_is_the_chat_template() -> None:
    text = render([message("system", "a"), message("user", "b")])
    assert text == "<|system|>a<|end|><|user|>b<|end|>"


def test_arithmetic_and_word_problems() -> None:
    assert evaluate("48/2+1") == 25
    assert evaluate("1/3") == 0.3333
    with pytest.raises(ValueError, match="not an arithmetic expression"):
        evaluate("__import__('os')")
    row = {"question": "q?", "answer": "He has 3*4=<<3*4=12>>12.\n#### 12"}
    assert [m["content"] for m in word_problem(row)][2:4] == ["calculator", '{"expression": "3*4"}']


@pytest.mark.whole
@needs_data
def test_dialogue_states_follow_the_schema() -> None:
    from training.probes import sample

    for task in ("sgd-seen-slots", "sgd-unseen-slots", "snips-slots"):
        for probe in sample(DATA, task, 200):
            assert probe.schema is not None
            jsonschema.validate(json.loads(probe.answer), probe.schema)
    for task in ("sgd-seen-intent", "snips-intent"):
        for probe in sample(DATA, task, 200):
            assert probe.answer in probe.choices


@pytest.mark.whole
@needs_data
def test_a_shard_depends_on_seed_and_number_alone() -> None:
    from training.prepare import ShardMaker

    tokenizer = Path(__file__).parents[2] / "runtime" / "nano" / "tokenizer.json"
    first = ShardMaker(DATA, tokenizer, seed=1, shard_tokens=20000)
    second = ShardMaker(DATA, tokenizer, seed=1, shard_tokens=20000)
    first.shard(0)
    assert np.array_equal(first.shard(3), second.shard(3))
    assert not np.array_equal(first.shard(3), first.shard(4))


def test_words_have_the_same_tokens_wherever_they_stand() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(__file__).parents[2] / "runtime" / "nano" / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    value = ids("Rocknwraps Zubrovka")
    for text in (
        '{"name": "Rocknwraps Zubrovka"}',
        "to Rocknwraps Zubrovka, please",
        "(Rocknwraps Zubrovka)",
    ):
        whole = ids(text)
        assert any(whole[i : i + len(value)] == value for i in range(len(whole))), text
    text = '{"a": "x", "b": [1, 2], "c": ["y"], "d": {"e": true}}\n Ünï\u4e2d\u6587 \\" 12,5\t.'
    assert tokenizer.decode(ids(text)) == text
    assert tokenizer.encode("").ids == [tokenizer.token_to_id("<|endoftext|>")]


def test_foreign_labels_have_answers_that_the_document_states() -> None:
    from training.labels import Labels

    labels, again = Labels(Random(8), Pools()), Labels(Random(8), Pools())
    for _ in range(400):
        example = labels.make()
        assert example == again.make()
        jsonschema.validate(example.answer, schema_of(example.fields))
        assert list(example.answer) == [f.name for f in example.fields if f.name in example.answer]
        for field in example.fields:
            if field.kind == "string" and field.name in example.answer:
                assert example.answer[field.name] in example.document


def test_notes_state_what_is_answered() -> None:
    from training.notes import Notes

    notes = Notes(Random(2), Pools())
    for _ in range(300):
        example = notes.make()
        jsonschema.validate(example.answer, schema_of(example.fields))
        for field in example.fields:
            if field.kind == "string" and field.name in example.answer:
                assert example.answer[field.name] in example.document


def test_no_example_sentence_is_trained_on() -> None:
    agents = Agents(Random(11), Pools(), load_catalogue())
    said = {m["content"].lower() for _ in range(3000) for m in agents.messages()}
    assert not any(re.search(r"\bbuy milk\b(?! and)", text) for text in said)
    assert not any("48 / 2 + 17" in text for text in said)
