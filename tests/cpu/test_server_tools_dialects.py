"""Dialects that are forced on a server, thoughts, variables of templates, and what is refused of all that."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from server_rig import serving

import sgl.runtime
from sgl.runtime import Engine
from sgl.runtime.dialects import DIALECTS, DialectToolCall, dialect_named, tool_of
from sgl.runtime.errors import ConfigError
from sgl.runtime.sequences.generation import Chunk, Generation
from sgl.runtime.server.protocols.chat.chat_choice import ChatChoiceReader
from sgl.runtime.server.protocols.chat.chat_plan import ChatPlan
from sgl.runtime.server.protocols.chat.chat_types import ChatRequest
from sgl.runtime.server.protocols.chat.chat_writer import ChatChoiceWriter
from sgl.runtime.server.protocols.openai_common.openai_request_setup import OpenAIRequestSetup
from sgl.runtime.server.server_app import create_app
from sgl.runtime.server.server_settings import ServerSettings

MODEL = "nano"
USER: Any = {"role": "user", "content": "Hello"}
SWITCH = (
    "{% if enable_thinking %}Think. {% endif %}{% if reasoning_effort %}Effort: {{ reasoning_effort }}. {% endif %}"
    "{% if budget %}{{ budget + 1 }}{% endif %}"
)
MARKS = ("[TOOL_CALLS]", "[THINK]", "[/THINK]")


class Order(BaseModel):
    """Order something to eat"""

    dish: Literal["soup", "cake"]
    count: int = Field(ge=1, le=9)


ORDER: Any = openai.pydantic_function_tool(Order, name="order")
CANCEL: Any = {"type": "function", "function": {"name": "cancel", "description": "Cancel the order"}}
CALLS = {
    "hermes": '<tool_call>\n{"name": "order", "arguments": {"dish": "cake", "count": 2}}\n</tool_call>',
    "llama": '{"name": "order", "parameters": {"dish": "cake", "count": 2}}',
    "pythonic": '[order(dish="cake", count=2)]',
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The bundled model with a template that has switches, and with special tokens of Mistral's."""
    folder = tmp_path_factory.mktemp("switched")
    source = Path(sgl.runtime.__file__).parent / "nano"
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors"):
            shutil.copy(file, folder / file.name)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("<|assistant|>", f"<|assistant|>{SWITCH}")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = (folder / "tokenizer.json").read_text()
    for number, mark in enumerate(MARKS):
        tokens = tokens.replace(f"<|reserved_{number}|>", mark)
    (folder / "tokenizer.json").write_text(tokens)
    with Engine(str(folder)) as opened:
        yield opened


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={"messages": [USER], **body})


def streamed(url: str, **body: Any) -> list[dict[str, Any]]:
    """The choices of all events."""
    text = post(url, stream=True, **body).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    return [choice for event in events for choice in event["choices"]]


# --- other families' calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "pythonic"])
def test_calls_of_every_dialect_fit(engine: Engine, name: str) -> None:
    with serving(engine, served_name=MODEL, tool_format=name) as url, client_of(url) as client:
        for choice in ("required", {"type": "function", "function": {"name": "order"}}):
            body: Any = {
                "model": MODEL,
                "messages": [USER],
                "tools": [ORDER, CANCEL],
                "tool_choice": choice,
                "parallel_tool_calls": False,
            }
            answer = client.chat.completions.create(**body, n=4, seed=1, temperature=1.5, max_tokens=200)
            for one in answer.choices:
                assert one.finish_reason == "tool_calls" and not one.message.content
                (call,) = one.message.tool_calls
                tool = {"order": ORDER, "cancel": CANCEL}[call.function.name]
                arguments = json.loads(call.function.arguments)
                jsonschema.validate(arguments, tool["function"].get("parameters", {}))
                assert choice == "required" or call.function.name == "order"


LIMIT = 60


class Written:
    """A sample and what writes it."""

    def __init__(self, sample: ChatChoiceReader) -> None:
        self.sample, self.writer, self.go_on = sample, ChatChoiceWriter(sample, 0), sample.go_on

    def take(self, chunk: Chunk) -> list[dict[str, Any]]:
        return self.writer.write(self.sample.take(chunk))

    @property
    def message(self) -> dict[str, Any]:
        return self.writer.message

    @property
    def finish(self) -> str:
        return self.sample.finish


def writer_of(engine: Engine, settings: dict[str, Any], prompt: str = "", **body: Any) -> Written:
    """What writes one sample of such a request, the model left out."""
    app = create_app(engine, ServerSettings(served_name=MODEL, **settings))
    request: Any = SimpleNamespace(app=app)
    asked = ChatRequest(messages=[USER], max_tokens=LIMIT, **body)
    plan = ChatPlan(OpenAIRequestSetup(request), asked, asked.params(LIMIT, asked.logprobs, 0))
    asyncio.run(plan.prepare())
    return Written(ChatChoiceReader(plan, prompt))


def ended(text: str, count: int, stop: str | None = None) -> Chunk:
    """The last chunk of a gen of so many tokens."""
    reason = {"type": "stop", "matched": stop}
    return Chunk(text, [], None, True, Generation(text, [], reason, 10, count, 0, 0, None, None, 0.0))


def message_of(entries: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls that the deltas make."""
    content, calls = "", list[tuple[str, str]]()
    for delta in (entry["delta"] for entry in entries):
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append((call["function"]["name"], ""))
            else:
                name, arguments = calls[call["index"]]
                calls[call["index"]] = name, arguments + call["function"]["arguments"]
    return content, calls


@pytest.mark.parametrize("name", list(CALLS))
def test_calls_in_free_text_are_told_however_it_comes(engine: Engine, name: str) -> None:
    text = f"I will.\n{CALLS[name]}"
    for size in (1, 2, 7, len(text)):
        writer = writer_of(engine, {"tool_format": name}, tools=[ORDER, CANCEL])
        entries: list[dict[str, Any]] = []
        for start in range(0, len(text), size):
            entries += writer.take(Chunk(text[start : start + size], []))
        entries += writer.take(ended("", 9))
        content, [(called_name, arguments)] = message_of(entries)
        assert (content, called_name) == ("I will.", "order")
        assert json.loads(arguments) == {"dish": "cake", "count": 2}
        assert entries[-1]["finish_reason"] == "tool_calls"
        (call,) = writer.message["tool_calls"]
        assert (writer.message["content"], call["function"]) == (content, {"name": called_name, "arguments": arguments})


def test_mistrals_calls_follow_the_mark_that_ends_the_text(engine: Engine) -> None:
    writer = writer_of(engine, {"tool_format": "mistral"}, tools=[ORDER])
    entries = writer.take(ended("I will.", 3, "[TOOL_CALLS]"))
    move = asyncio.run(writer.go_on())
    assert move is not None and move.grammar is not None and not move.params.close_at_limit
    entries += writer.take(ended('[{"name": "order", "arguments": {"dish": "cake", "count": 2}}]', 20))
    assert message_of(entries)[0] == "I will." and writer.finish == "tool_calls"
    silent = writer_of(engine, {"tool_format": "mistral"}, tools=[ORDER])
    silent.take(ended("I will not.", 3))
    assert asyncio.run(silent.go_on()) is None and silent.finish == "stop"


@pytest.mark.parametrize("tools", [{}, {"tools": [ORDER]}])
@pytest.mark.parametrize("opened", [False, True])
def test_stops_of_the_request_end_the_answer_and_not_the_thought(
    engine: Engine, tools: dict[str, Any], opened: bool
) -> None:
    """Whether the template begins the thought or the model; with tools and without."""
    prompt = "<|assistant|><think>" if opened else "<|assistant|>"
    writer = writer_of(engine, {"tool_format": "hermes", "reasoning_format": "qwen3"}, prompt, stop=["Second"], **tools)
    entries = [] if opened else writer.take(ended("", 1, "<think>"))
    thinking = asyncio.run(writer.go_on()) if not opened else None
    assert thinking is None or thinking.params.stop == ("</think>",)
    entries += writer.take(ended("First. Second.", 4, "</think>"))
    saying = asyncio.run(writer.go_on())
    assert saying is not None and "Second" in saying.params.stop and (saying.grammar is not None) == bool(tools)
    entries += writer.take(ended("One. ", 2, "Second"))
    assert (
        writer.message["reasoning_content"] == "First. Second."
        and writer.message["content"].strip() == "One."
        and writer.finish == "stop"
    )


def test_a_mark_that_is_a_special_token_ends_the_text(engine: Engine) -> None:
    first = {str(engine.tokenizer.token_id("[TOOL_CALLS]")): 100}
    with serving(engine, served_name=MODEL, tool_format="mistral") as url:
        body: dict[str, Any] = {"tools": [ORDER], "logit_bias": first, "max_tokens": 100, "temperature": 0}
        choice, entries = post(url, **body).json()["choices"][0], streamed(url, **body)
        spoken = post(url, **{**body, "logit_bias": {}}).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    Order.model_validate_json(call["function"]["arguments"])
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert message_of(entries) == ("", [("order", call["function"]["arguments"])])
    assert spoken["message"]["content"] and "tool_calls" not in spoken["message"]


def test_a_call_that_broke_off_is_no_reason_to_call(engine: Engine) -> None:
    writer = writer_of(engine, {"tool_format": "hermes"}, tools=[ORDER])
    entries = writer.take(ended('<tool_call>\n{"name": "order", "arguments": {"dish": "c', 9, "stop here"))
    assert message_of(entries)[1] == [("order", '{"dish": "c')] and writer.finish == "stop"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "more",
    [
        {"regex": "yes|no"},
        {"json_schema": {"enum": ["yes"]}},
        {"ebnf": 'root ::= "yes" | "no"'},
        {"response_format": {"type": "json_object"}},
    ],
)
@pytest.mark.parametrize("name", ["hermes", "llama", "pythonic"])
def test_beside_calls_the_text_keeps_to_its_constraint(engine: Engine, name: str, more: dict[str, Any]) -> None:
    with serving(engine, served_name=MODEL, tool_format=name) as url:
        for seed in range(2):
            answer = post(url, tools=[ORDER], max_tokens=100, temperature=2.0, seed=seed, close_at_limit=True, **more)
            message = answer.json()["choices"][0]["message"]
            for call in message.get("tool_calls", ()):
                Order.model_validate_json(call["function"]["arguments"])
            text = message["content"]
            assert text in (None, "yes", "no", '"yes"') or isinstance(json.loads(text), dict)
            assert (text is None) == ("tool_calls" in message)


def test_mistrals_mark_and_a_constraint_do_not_go_together(engine: Engine) -> None:
    with serving(engine, served_name=MODEL, tool_format="mistral") as url:
        error = post(url, tools=[ORDER], regex="a").json()["error"]
        assert error["param"] == "regex" and "tool_choice" in error["message"]
        for choice in ("required", "none"):
            assert post(url, tools=[ORDER], regex="a", tool_choice=choice).status_code == 200


# --- thoughts --------------------------------------------------------------------------------------------

THOUGHT = {"regex": r"<think>[ab]{3}</think>[cd]{4}", "seed": 3}


def test_thoughts_stand_beside_the_content(engine: Engine) -> None:
    with serving(engine, served_name=MODEL, reasoning_format="qwen3") as url:
        message = post(url, **THOUGHT, max_tokens=40).json()["choices"][0]["message"]
        deltas = [choice["delta"] for choice in streamed(url, **THOUGHT, max_tokens=40)]
        together = post(url, **THOUGHT, max_tokens=40, separate_reasoning=False).json()["choices"][0]["message"]
    assert set(message["reasoning_content"]) <= set("ab") and len(message["reasoning_content"]) == 3
    assert set(message["content"]) <= set("cd") and len(message["content"]) == 4
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
    assert "reasoning_content" not in together
    assert together["content"] == f"<think>{message['reasoning_content']}</think>{message['content']}"


def test_logprobs_leave_thoughts_out(engine: Engine) -> None:
    with serving(engine, served_name=MODEL, reasoning_format="qwen3") as url:
        choice = post(url, **THOUGHT, max_tokens=40, logprobs=True).json()["choices"][0]
        entries = streamed(url, **THOUGHT, max_tokens=40, logprobs=True)
    rows = choice["logprobs"]["content"]
    said = b"".join(bytes(row["bytes"]) for row in rows).decode()
    assert said.endswith(choice["message"]["content"]) and "<think>" not in said
    assert [row["token"] for entry in entries for row in (entry["logprobs"] or {"content": []})["content"]] == [
        row["token"] for row in rows
    ]


def test_a_thought_that_the_limit_cut_is_no_content(engine: Engine) -> None:
    with serving(engine, served_name=MODEL, reasoning_format="deepseek-r1") as url:
        choice = post(url, regex="[ab]{50}", max_tokens=3).json()["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"]


@pytest.mark.parametrize("more", [{"tools": [ORDER], "tool_choice": "required"}, {"regex": "[ab]{5}"}, {}])
def test_what_is_asked_of_the_answer_begins_behind_an_open_thought(engine: Engine, more: dict[str, Any]) -> None:
    writer = writer_of(engine, {"reasoning_format": "deepseek-r1", "tool_format": "hermes"}, "Think:", **more)
    if not more:  # the whole answer is one free text
        entries = writer.take(ended("Hm.\n</think>\n\nNo.", 5))
        assert asyncio.run(writer.go_on()) is None
        assert (writer.message["reasoning_content"], writer.message["content"]) == ("Hm.", "No.")
        return
    entries = writer.take(ended("Hm.\n", 3, "</think>"))
    move = asyncio.run(writer.go_on())
    assert move is not None and move.grammar is not None and move.params.max_tokens == LIMIT - 3
    assert engine.tokenizer.decode(move.prefix) == "</think>\n\n"
    entries += writer.take(ended(CALLS["hermes"] if "tools" in more else "ababa", 20))
    assert asyncio.run(writer.go_on()) is None
    assert writer.message["reasoning_content"] == "Hm."
    assert entries[-1]["finish_reason"] == ("tool_calls" if "tools" in more else "stop")


def test_marks_that_are_special_tokens_are_seen(engine: Engine) -> None:
    again = {str(engine.tokenizer.token_id("[THINK]")): 100}
    with serving(engine, served_name=MODEL, reasoning_format="mistral") as url:
        message = post(url, logit_bias=again, max_tokens=3).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("[THINK][THINK]", "")


def test_a_model_without_marks_has_no_thoughts(engine: Engine) -> None:
    with serving(engine, served_name=MODEL) as url:
        message = post(url, **THOUGHT, max_tokens=40).json()["choices"][0]["message"]
    assert "reasoning_content" not in message and message["content"].startswith("<think>")


# --- what the template reads -----------------------------------------------------------------------------


def test_what_the_template_reads_reaches_it(engine: Engine) -> None:
    switches: list[dict[str, Any]] = [
        {},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
    ]
    with serving(engine, served_name=MODEL) as url:
        plain, thinking, silent, effort = (
            post(url, max_tokens=1, **switch).json()["usage"]["prompt_tokens"] for switch in switches
        )
    count = len(engine.tokenizer.encode("Think. "))
    assert thinking == plain + count and silent == plain
    assert effort == plain + len(engine.tokenizer.encode("Effort: high. "))


# --- refusals --------------------------------------------------------------------------------------------


def called(*names: str, arguments: str = "{}") -> dict[str, Any]:
    calls = [{"id": name, "type": "function", "function": {"name": "order", "arguments": arguments}} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answered(name: str | None) -> dict[str, Any]:
    return {"role": "tool", "content": "ok", **({} if name is None else {"tool_call_id": name})}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


NO_SUCH: Any = {"type": "function", "function": {"name": "nothing"}}
UNIQUE: Any = {
    "type": "object",
    "properties": {"a": {"type": "array", "contains": {"type": "string", "minLength": 3}, "uniqueItems": True}},
}


@pytest.mark.few(10)
@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function", "missing"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "web_search"),
        ({"tools": [function(name="a b")]}, "tools.0.function.name", "a b"),
        ({"tools": [function(descripton="x")]}, "tools.0.function.descripton", "'description'"),
        ({"tools": [function(parameters="x")]}, "tools.0.function.parameters", "'x'"),
        ({"tools": [ORDER, function(parameters=UNIQUE)]}, "tools.1.function.parameters", "f: "),
        ({"tools": [ORDER, ORDER]}, "tools.1.function.name", "'order'"),
        ({"tools": [ORDER] * 129}, "tools", "128"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [ORDER], "tool_choice": NO_SUCH}, "tool_choice.function.name", "'nothing'"),
        ({"tools": [ORDER], "tool_choice": "always"}, "tool_choice", "'always'"),
        ({"tools": [ORDER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "allowed_tools"),
        ({"messages": [USER, called("a", arguments="no JSON"), answered("a")]}, "messages", "'no JSON'"),
        ({"tools": [ORDER], "add_generation_prompt": False}, "add_generation_prompt", "tool_choice"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages.1", "content"),
        ({"messages": [{**called("a"), "role": "user"}]}, "messages.0", "'assistant'"),
        ({"messages": [USER, called("a")]}, "messages.1.tool_calls", "'a'"),
        ({"messages": [USER, called("a", "b"), answered("a"), USER]}, "messages.1.tool_calls", "'b'"),
        ({"messages": [USER, called("a"), answered("b")]}, "messages.2.tool_call_id", "'a'"),
        ({"messages": [USER, called("a"), answered(None)]}, "messages.2.tool_call_id", "'a'"),
        ({"messages": [USER, called("a"), answered("a"), answered("a")]}, "messages.3.tool_call_id", "'a'"),
        ({"messages": [USER, answered("a")]}, "messages.1.tool_call_id", "'a'"),
        ({"chat_template_kwargs": {"enable_thinkin": True}}, "chat_template_kwargs.enable_thinkin", "enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "enable_thinking"),
        ({"chat_template_kwargs": {"budget": "much"}}, None, "template"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_name_the_field_and_the_value(
    url: str, body: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    answer = post(url, **body, stream=stream)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param) and words in error["message"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["nano", "hermes", "llama", "mistral", "pythonic"])
def test_schemas_that_are_none_are_refused_before_any_dialect_reads_them(engine: Engine, name: str) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    odd: list[dict[str, Any]] = [
        {"properties": [1]},
        {"properties": {"a": 5}},
        {"properties": {"a": True}, "required": 5},
    ]
    with serving(engine, served_name=MODEL, tool_format=name) as url:
        for schema in odd:
            error = post(url, tools=[function(parameters={"type": "object", **schema})])
            assert (error.status_code, error.json()["error"]["param"]) == (400, "tools.0.function.parameters")
        answer = post(url, tools=[function(parameters=deep)], max_tokens=4)
        assert answer.status_code == 200 or "nested too deeply" in answer.text or "shorten it" in answer.text


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine, served_name=MODEL) as found:
        yield found


def test_a_dialect_that_nobody_knows_is_refused_at_the_start(engine: Engine) -> None:
    for setting in ({"tool_format": "hermse"}, {"reasoning_format": "qwen33"}):
        with pytest.raises(ConfigError, match=next(iter(setting.values()))):
            create_app(engine, ServerSettings(**setting))


def test_any_json_beside_tools(engine: Engine) -> None:
    with serving(engine, served_name=MODEL, tool_format="hermes") as url:
        for source in ("$$ANY$$", True, '{"type": "integer"}'):
            answer = post(url, tools=[ORDER], json_schema=source, max_tokens=20)
            assert answer.status_code == 200, answer.text


# --- every format of a table ---------------------------------------------------------------------------------------

FRAMED = sorted(DIALECTS.keys() - {"nano", "qwen", "mistral", "hermes", "llama", "pythonic"})


@pytest.mark.parametrize("name", FRAMED)
def test_calls_of_every_format_are_told_in_pieces(engine: Engine, name: str) -> None:
    text = dialect_named(name).write(
        "I will.", [DialectToolCall("order", {"dish": "cake", "count": 2}), DialectToolCall("cancel", {})]
    )
    for size in (3, len(text)):
        writer = writer_of(engine, {"tool_format": name}, tools=[ORDER, CANCEL])
        entries: list[dict[str, Any]] = []
        for start in range(0, len(text), size):
            entries += writer.take(Chunk(text[start : start + size], []))
        entries += writer.take(ended("", 9))
        content, calls = message_of(entries)
        assert content == "I will." and [called for called, _ in calls] == ["order", "cancel"]
        assert json.loads(calls[0][1]) == {"dish": "cake", "count": 2} and json.loads(calls[1][1]) == {}
        assert entries[-1]["finish_reason"] == "tool_calls"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["qwen3-coder", "deepseek-v32", "kimi-k2", "harmony", "lfm2", "cohere", "mistral-args"]
)
def test_choices_are_kept_to_over_http(engine: Engine, name: str) -> None:
    with serving(engine, served_name=MODEL, tool_format=name) as url:
        for choice in ("required", {"type": "function", "function": {"name": "order"}}):
            body: dict[str, Any] = {
                "tools": [ORDER, CANCEL],
                "tool_choice": choice,
                "parallel_tool_calls": False,
                "max_tokens": 150,
                "seed": 3,
                "temperature": 1.2,
            }
            (whole,) = post(url, **body).json()["choices"]
            (call,) = whole["message"]["tool_calls"]
            assert whole["finish_reason"] in ("tool_calls", "length")
            tool = {"order": ORDER, "cancel": CANCEL}[call["function"]["name"]]
            jsonschema.validate(json.loads(call["function"]["arguments"]), tool["function"].get("parameters", {}))
            _, [(called, arguments)] = message_of(streamed(url, **body))
            assert (called, arguments) == (call["function"]["name"], call["function"]["arguments"])


def test_marks_that_are_special_tokens_are_written_as_such(engine: Engine) -> None:
    app = create_app(engine, ServerSettings(served_name=MODEL, tool_format="mistral-args"))
    mark = engine.tokenizer.token_id("[TOOL_CALLS]")
    source = dialect_named("mistral-args").plan([tool_of(ORDER)], "required").constraint
    assert source is not None
    grammar = asyncio.run(app.state.compiler.compile("calls", source[1]))
    assert grammar.matcher().accept(mark)
    plain = asyncio.run(app.state.compiler.compile("structural_tag", source[1]))
    assert not plain.matcher().accept(mark)
