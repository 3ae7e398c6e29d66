"""How a model writes JSON is said in its own directory; what the user says wins."""

from __future__ import annotations

import json
import shutil

import pytest

import sgl
from sgl.runtime import Engine
from sgl.runtime.dialects import dialect_named, tool_of
from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_json_options
from sgl.runtime.nano import nano_prompts

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 4096}
LISTS = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": [[1, 2]]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@sgl.function
def write(s, wildly):
    options = {"temperature": 5.0} if wildly else {"temperature": 0}
    s += "Say: " + sgl.gen("x", json_schema=LISTS, max_tokens=80, **options)


@sgl.function
def call(s):
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<c>",
            "content": {"type": "json_schema", "json_schema": LISTS},
            "end": "</c>",
        },
    }
    s += "Say: " + sgl.gen("x", structural_tag=json.dumps(tag), max_tokens=80, temperature=5.0)


def written(engine, program=write, **arguments):
    items = [arguments or {"wildly": True}] * 8 if program is write else [{}] * 8
    return [state["x"] for state in program.run_batch(items, backend=engine, seed=3, progress_bar=False)]


def model(tiny, tmp_path, says):
    other = tmp_path / "model"
    shutil.copytree(tiny, other)
    (other / "sgl.json").write_text(json.dumps(says))
    return other


@pytest.fixture(scope="module")
def nano():
    with Engine(**OPTIONS) as engine:
        yield engine


def test_the_bundled_model_writes_spaced_json(nano):
    assert nano.config.json_options == {"whitespace": "spaced"}
    for text in written(nano):
        assert text == json.dumps(json.loads(text))
    for text in written(nano, call):
        assert text == f"<c>{json.dumps(json.loads(text[3:-4]))}</c>"


def test_what_the_user_says_wins_and_the_rest_stays():
    with Engine(**OPTIONS, json_options={"whitespace": "compact"}) as engine:
        assert written(engine)[0] == json.dumps(json.loads(written(engine)[0]), separators=(",", ":"))
    with Engine(**OPTIONS, json_options={"order": "any"}) as engine:
        assert engine.config.json_options == {"whitespace": "spaced", "order": "any"}


def test_a_model_says_it_in_its_directory(tiny, tmp_path):
    assert load_json_options(tiny) == {}
    with Engine(model(tiny, tmp_path, {"json_options": {"whitespace": "compact", "ascii": True}}), **OPTIONS) as engine:
        assert engine.config.json_options == {"whitespace": "compact", "ascii": True}


@pytest.mark.whole
def test_it_reaches_an_engine_in_another_process():
    with Engine(**OPTIONS, process=True) as engine:
        assert engine.config.json_options == {"whitespace": "spaced"}


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (
            {"json_options": {"weaken": ["pattern"]}},
            "json_options has weaken; a model may say ascii, integers, whitespace",
        ),
        ({"json_options": "spaced"}, "json_options has spaced; a model may say"),
        ({"json_options": {"whitespace": "wide"}}, "whitespace='wide' is not one of"),
    ],
)
def test_what_a_model_may_not_say(tiny, tmp_path, says, message):
    with pytest.raises(CheckpointError, match=r"sgl\.json: .*" + message):
        Engine(model(tiny, tmp_path, says), **OPTIONS)


def test_a_plain_text_of_a_tool_is_answered_from(nano):
    """What its dialect makes of such results; written as they are, none of these was answered from."""
    about = {
        "name": "find_contact",
        "description": "Find the phone number of a contact",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
    }
    dialect, tools = dialect_named("nano"), [tool_of({"type": "function", "function": about})]
    for name, phone in {"Maria": "+49 30 5550 143", "John": "+1 415 555 0199"}.items():
        made = {"id": "a", "function": {"name": "find_contact", "arguments": json.dumps({"name": name})}}
        talk = [
            {"role": "user", "content": f"What is the phone number of {name}?"},
            {"role": "assistant", "tool_calls": [made]},
        ]
        talk = dialect.messages([*talk, {"role": "tool", "content": phone, "tool_call_id": "a"}], tools)
        text = nano.generate(
            nano_prompts.render(talk) + "<|assistant|>answer<|end|><|assistant|>", max_tokens=30, temperature=0
        ).text
        assert phone in text
