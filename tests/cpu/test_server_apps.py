"""What existing applications send: fields of no effect, histories as clients
keep them, functions, names, vLLM's words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from server_rig import serving
from test_server_tools import QUESTIONS, TOOLS

from sgl.runtime import Engine

USER = {"role": "user", "content": "Hello"}
CHAT = {"messages": [USER], "max_tokens": 6, "temperature": 0}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FUNCTIONS = [tool["function"] for tool in TOOLS]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(threads=1, dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine, served_name=("nano", "gpt-4o")) as found:
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(url: str, path: str = "/v1/chat/completions", **body: Any) -> Any:
    answer = httpx.post(url + path, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(url: str, **body: Any) -> str:
    return ask(url, **body)["choices"][0]["message"]["content"]


def refusal(url: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


# of no effect


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "field",
    [
        {"store": True},
        {"metadata": {"a": "b"}},
        {"service_tier": "auto"},
        {"safety_identifier": "u"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"verbosity": "low"},
        {"modalities": ["text"]},
        {"user": "u"},
        {"prediction": {"type": "content", "content": "Hello"}},
        {"guided_decoding_backend": "xgrammar"},
    ],
)
def test_fields_of_no_effect_are_taken(url, field):
    assert said(url, **CHAT, **field) == said(url, **CHAT)


@pytest.mark.parametrize(
    ("field", "value"),
    [("verbosity", "loud"), ("modalities", ["text", "audio"]), ("store", "yes"), ("service_teir", "auto")],
)
def test_what_they_do_not_take(url, field, value):
    assert refusal(url, **CHAT, **{field: value})["param"].partition(".")[0] == field


def test_all_of_it_by_the_official_client(client):
    answer = client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=4,
        store=False,
        metadata={"run": "1"},
        service_tier="default",
        safety_identifier="u",
        prompt_cache_key="k",
        verbosity="medium",
        modalities=["text"],
        prediction={"type": "content", "content": "Hi"},
    )
    assert answer.usage.completion_tokens <= 4


# histories


HISTORY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "role": "assistant",
            "content": "Hi",
            "annotations": [],
            "refusal": None,
            "audio": None,
            "function_call": None,
            "tool_calls": None,
        },
        {"role": "assistant", "content": "Hi"},
    ),
    ({"role": "assistant", "content": None, "refusal": "I can not"}, {"role": "assistant", "content": "I can not"}),
    ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}, {"role": "assistant", "content": "No"}),
    (
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "Hi"},
    ),
    (
        {"role": "assistant", "content": [{"type": "text", "text": "Hi", "annotations": []}]},
        {"role": "assistant", "content": "Hi"},
    ),
    ({"role": "system", "content": "Hi", "cache_control": {"type": "ephemeral"}}, {"role": "system", "content": "Hi"}),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("message", "plain"), HISTORY)
def test_messages_as_clients_keep_them(url, message, plain):
    rest = [{"role": "user", "content": "And now?"}]
    usages = [ask(url, **CHAT | {"messages": [first, *rest]})["usage"] for first in (message, plain)]
    assert usages[0]["prompt_tokens"] == usages[1]["prompt_tokens"]


def test_an_answer_goes_back_as_it_came(client):
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(model="nano", messages=messages, max_tokens=4)
    again = [*messages, answer.choices[0].message.model_dump(), {"role": "user", "content": "Go on"}]
    assert client.chat.completions.create(model="nano", messages=again, max_tokens=4).usage


def test_unknown_fields_stay_errors(url):
    assert refusal(url, **CHAT | {"messages": [USER | {"cache_controll": {}}]})["param"] == "messages.0.cache_controll"
    part = {"type": "text", "text": "a", "colour": "red"}
    assert "messages.0.content" in refusal(url, **CHAT | {"messages": [USER | {"content": [part]}]})["message"]


# functions


def question(number: int) -> list[Any]:
    return [{"role": "user", "content": QUESTIONS[number][0]}]


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_functions_are_tools_in_old_words(client, number):
    common: dict[str, Any] = {"model": "nano", "messages": question(number), "temperature": 0}
    new = client.chat.completions.create(tools=TOOLS, parallel_tool_calls=False, **common).choices[0]
    old = client.chat.completions.create(functions=FUNCTIONS, **common).choices[0]
    assert new.message.tool_calls and old.message.tool_calls is None and old.message.function_call
    function = new.message.tool_calls[0].function
    assert (old.message.function_call.name, old.message.function_call.arguments) == (function.name, function.arguments)
    assert (new.finish_reason, old.finish_reason) == ("tool_calls", "function_call")


def test_a_stream_of_a_function_adds_up(client):
    common: dict[str, Any] = {"model": "nano", "messages": question(0), "temperature": 0, "functions": FUNCTIONS}
    whole = client.chat.completions.create(**common).choices[0].message.function_call
    name, arguments, finish = "", "", None
    for chunk in client.chat.completions.create(stream=True, **common):
        [choice] = chunk.choices
        finish = choice.finish_reason or finish
        if (call := choice.delta.function_call) is not None:
            name, arguments = name + (call.name or ""), arguments + (call.arguments or "")
    assert (name, arguments, finish) == (whole.name, whole.arguments, "function_call")


def test_a_result_of_a_function_is_read(client):
    common: dict[str, Any] = {"model": "nano", "temperature": 0, "functions": FUNCTIONS}
    called = client.chat.completions.create(messages=question(0), **common).choices[0].message
    messages = [
        *question(0),
        called.model_dump(),
        {"role": "function", "name": called.function_call.name, "content": '{"result": 84}'},
    ]
    assert re.search("84", client.chat.completions.create(messages=messages, **common).choices[0].message.content or "")


def test_function_call_says_which(client):
    common: dict[str, Any] = {
        "model": "nano",
        "messages": question(0),
        "temperature": 0,
        "functions": FUNCTIONS,
        "max_tokens": 60,
    }
    assert client.chat.completions.create(function_call="none", **common).choices[0].message.function_call is None
    named = client.chat.completions.create(function_call={"name": "add_todo"}, **common).choices[0].message
    assert named.function_call.name == "add_todo"


def test_functions_that_make_no_sense(url):
    assert refusal(url, **CHAT, functions=FUNCTIONS, tools=TOOLS)["param"] == "tools"
    assert refusal(url, **CHAT, function_call="auto")["param"] == "function_call"
    assert refusal(url, **CHAT, functions=[{"nmae": "x"}])["param"].startswith(("functions.0.", "tools.0.function."))


# names


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("asked", "told"), [("nano", "nano"), ("gpt-4o", "gpt-4o"), ("default", "nano"), ("", "nano"), (None, "nano")]
)
def test_names_of_the_model(url, asked, told):
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/embeddings", {"input": "a"}),
    ):
        assert ask(url, path, model=asked, **body)["model"] == told


def test_all_names_are_listed(url):
    assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["nano", "gpt-4o"]
    assert httpx.get(f"{url}/v1/models/gpt-4o").json()["root"] == "nano"
    error = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "model": "other"})
    assert error.status_code == 404 and "'nano' and 'gpt-4o'" in error.json()["error"]["message"]


def test_the_command_line_takes_several():
    from sgl.cli import _parser
    from sgl.commands.serve_command import _settings

    assert _settings(_parser().parse_args(["serve", "--served-name", "a", "--served-name", "b"])).served_names == (
        "a",
        "b",
    )
    assert _settings(_parser().parse_args(["serve"])).served_names == ()


# vLLM's words


GUIDED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": PERSON}, "json"),
    ({"guided_json": json.dumps(PERSON)}, "json"),
    ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
    ({"guided_choice": ["yes.", "n(o"]}, r"yes\.|n\(o"),
    ({"guided_grammar": 'root ::= "x" | "yz"'}, "x|yz"),
    ({"structured_outputs": {"json": PERSON}}, "json"),
    ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"structured_outputs": {"grammar": 'start: "x" | "yz"'}}, "x|yz"),
    ({"structured_outputs": {"json_object": True}}, r"(?s)\{.*\}"),
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("field", "expected"), GUIDED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_vllms_constraints(url, path, field, expected):
    prompt = {"messages": [USER]} if "chat" in path else {"prompt": "Hello"}
    choice = ask(url, path, max_tokens=80, temperature=0, close_at_limit=True, **prompt, **field)["choices"][0]
    text = choice["message"]["content"] if "chat" in path else choice["text"]
    if expected == "json":
        assert json.loads(text).keys() == {"name", "age"}
    else:
        assert re.fullmatch(expected, text), text


def test_a_choice_beside_tools(url):
    text = said(url, **CHAT, tools=TOOLS, structured_outputs={"choice": ["perhaps"]})
    assert text is None or text == "perhaps"


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_json": PERSON, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"json": PERSON, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"jason": PERSON}}, "structured_outputs.jason"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"guided_choice": [1] * 1000}, "guided_choice.0"),
    ],
)
def test_vllms_constraints_that_are_none(url, field, param):
    assert refusal(url, **CHAT, **field)["param"] == param


# what the limit cuts


@pytest.mark.parametrize("tokens", [1, 5, 9])
def test_json_that_the_limit_cuts(url, tokens):
    format = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    common = {"messages": [USER], "response_format": format, "max_tokens": tokens, "temperature": 0}
    cut = ask(url, **common)["choices"][0]
    assert cut["finish_reason"] == "length"
    with pytest.raises(ValueError):
        json.loads(cut["message"]["content"])
    closed = ask(url, **common, close_at_limit=True)["choices"][0]
    assert closed["finish_reason"] == "length"
    assert json.loads(closed["message"]["content"]).keys() == {"name", "age"}


def test_the_other_routes_close_too(url):
    text = ask(url, "/v1/completions", prompt="a", json_schema=PERSON, max_tokens=4, close_at_limit=True)["choices"][0]
    assert text["finish_reason"] == "length" and json.loads(text["text"]).keys() == {"name", "age"}
    native = ask(
        url, "/generate", text="a", sampling_params={"json_schema": PERSON, "max_new_tokens": 4, "close_at_limit": True}
    )
    assert native["meta_info"]["finish_reason"]["type"] == "length" and json.loads(native["text"]).keys() == {
        "name",
        "age",
    }
    events = httpx.post(
        f"{url}/v1/chat/completions",
        json={"messages": [USER], "json_schema": PERSON, "max_tokens": 4, "close_at_limit": True, "stream": True},
    ).text
    chunks = [json.loads(line[6:])["choices"][0] for line in events.splitlines() if line.startswith("data: {")]
    assert json.loads("".join(chunk["delta"].get("content") or "" for chunk in chunks)).keys() == {"name", "age"}
    assert chunks[-1]["finish_reason"] == "length"
