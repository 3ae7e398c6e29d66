"""Programs on a real server of the native protocol: what they get, what is sent, how it begins."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from typing import Any

import certifi
import pytest
from alone import alone
from api_loopback import Fault
from api_toy import TOKENIZER, write
from native_programs import expected, options, two_gens
from native_server import NativeServer

import sgl
from sgl.lang.backends.native import json_http_client as http_client
from sgl.lang.backends.native.json_http_client import JsonHttpClient
from sgl.lang.backends.native.native_response import settled_length
from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint
from sgl.lang.errors import (
    BadValueError,
    ProgramError,
    RemoteConnectionError,
    RemoteProtocolError,
    RemoteStatusError,
    UnsupportedByBackendError,
)
from sgl.lang.nodes.primitives import image

pytest_plugins = ("native_rig",)

TRUST = [("https://h", None), ("https://h", False), ("https://h", certifi.where()), ("http://h", None)]


# --- generating ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("question", ["where?", "wer bist du, Grüße…", "1 2 3", "ε\u2028x"])
def test_a_program_gets_what_the_model_writes(endpoint: RuntimeEndpoint, question: str, stream: bool) -> None:
    state = two_gens.run(question, backend=endpoint, stream=stream)
    assert (state["a"], state["b"], state.text()) == expected(question)
    assert state.error() is None


@pytest.mark.parametrize("new_rows", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
def test_chunks_add_up(endpoint: RuntimeEndpoint, server: NativeServer, incremental: bool, new_rows: bool) -> None:
    server.incremental, server.new_rows = incremental, new_rows
    chunks: list[Any] = []
    stream = endpoint.open()
    stream.append("Tell me ")
    future = stream.generate(options(max_new_tokens=30, return_logprob=True), chunks.append)
    whole = future.result(10)
    oracle = write("Tell me ", 30)
    assert whole.text == oracle.text == "".join(chunk.text for chunk in chunks)
    assert len(chunks) == oracle.completion_tokens > 3
    rows = [row for chunk in chunks for row in chunk.meta_info["output_token_logprobs"]]
    assert rows == whole.meta_info["output_token_logprobs"]
    assert [row[2] for row in rows] == oracle.tokens
    lengths = [chunk.meta_info["output_token_logprobs_length"] for chunk in chunks]
    assert lengths == list(range(1, len(chunks) + 1))
    assert chunks[-1].meta_info["finish_reason"] == whole.meta_info["finish_reason"]


def test_no_part_of_a_stop_string_is_shown(endpoint: RuntimeEndpoint, server: NativeServer) -> None:
    server.script = lambda prompt, params: "one , two ,; three"
    chunks: list[Any] = []
    stream = endpoint.open()
    stream.append("x")
    text = stream.generate(options(stop=[" ,;"]), chunks.append).result(10).text
    assert text == "one , two" == "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize(
    ("text", "stops", "settled"),
    [("ab", (), 2), ("a�", (), 1), ("abEN", ("END",), 2), ("abE", ("END", "bET"), 1), ("abX", ("END",), 3)],
)
def test_what_may_still_change_is_kept_back(text: str, stops: tuple[str, ...], settled: int) -> None:
    assert settled_length(text, stops) == settled


def test_forks_and_samples(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "Root " + sgl.gen("root", max_tokens=4)
        forks = s.fork(3)
        forks += lambda i: f" branch {i}: " + sgl.gen("leaf", max_tokens=6)
        s["leaves"] = [fork["leaf"] for fork in forks]
        s += " and " + sgl.gen("many", max_tokens=3, n=3)

    state = program.run(backend=endpoint)
    root = write("Root ", 4).text
    texts = [f"Root {root} branch {i}: " for i in range(3)]
    assert state["leaves"] == [write(text, 6).text for text in texts]
    assert state["many"] == [write(f"Root {root} and ", 3).text] * 3
    assert state.text() == f"Root {root} and {state['many'][0]}"


def test_roles_and_messages(endpoint: RuntimeEndpoint) -> None:
    endpoint.chat_template = sgl.lang.chat.get_chat_template("chatml")

    @sgl.function
    def chat(s: Any) -> None:
        s += sgl.system("Be kind.")
        s += sgl.user(" Hello ")
        s += sgl.assistant(sgl.gen("a", max_tokens=4))

    state = chat.run(backend=endpoint)
    assert state.messages()[1] == {"role": "user", "content": "Hello "}
    assert state.text().startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hello <|im_end|>")


@pytest.mark.whole
@alone
def test_many_programs_at_once_need_no_threads(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s: Any, q: str) -> None:
        s += "Q" + q + ": "
        forks = s.fork(3)
        forks += lambda i: str(i) + " " + sgl.gen("b", max_tokens=2)
        s.set_var("forks", forks)

    before = threading.active_count()
    states = [program.run(str(i), backend=endpoint) for i in range(150)]
    most = threading.active_count()
    for i, state in enumerate(states):
        leaves = [fork["b"] for fork in state["forks"]]
        assert leaves == [write(f"Q{i}: {j} ", 2).text for j in range(3)]
    assert most - before <= 3


def test_concurrency_is_bounded(server: NativeServer) -> None:
    server.delay = 0.01
    backend = RuntimeEndpoint(server.url, max_concurrency=4)
    states = [two_gens.run(str(i), backend=backend) for i in range(12)]
    assert [state.text() for state in states] == [expected(str(i))[2] for i in range(12)]
    assert server.most_running == 4
    backend.shutdown()


# --- what is sent ---


def test_the_body_of_a_plain_gen(endpoint: RuntimeEndpoint, server: NativeServer) -> None:
    stream = endpoint.open()
    stream.append("Hello")
    stream.generate(options()).result(10)
    assert server.requests[-1] == {
        "text": "Hello",
        "sampling_params": {
            "skip_special_tokens": True,
            "spaces_between_special_tokens": True,
            "max_new_tokens": 128,
            "min_new_tokens": 0,
            "n": 1,
            "stop": [],
            "stop_token_ids": [],
            "stop_regex": [],
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "ignore_eos": False,
            "regex": None,
            "json_schema": None,
        },
    }


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"dtype": int, "stop": "x"}, {"regex": r"[-+]?[0-9]+[ \n]*", "stop": ["x", " ", "\n"]}),
        ({"regex": "a+b"}, {"regex": "a+b"}),
        ({"json_schema": {"type": "object"}}, {"json_schema": '{"type": "object"}', "regex": None}),
        ({"ebnf": "root ::= 'a'"}, {"ebnf": "root ::= 'a'"}),
        ({"structural_tag": {"type": "structural_tag"}}, {"structural_tag": '{"type": "structural_tag"}'}),
        ({"seed": 7, "keep_stop": True}, {"sampling_seed": 7, "no_stop_trim": True}),
        (
            {"logit_bias": {3: -1.0}, "repetition_penalty": 1.2},
            {"logit_bias": {"3": -1.0}, "repetition_penalty": 1.2},
        ),
        ({"top_k": 4, "stop_token_ids": [5], "stop_regex": "a"}, {"top_k": 4, "stop_token_ids": [5]}),
    ],
)
def test_options_have_the_names_of_the_protocol(
    endpoint: RuntimeEndpoint, server: NativeServer, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    stream = endpoint.open()
    stream.append("Hello")
    stream.generate(options(**given)).result(10)
    params = server.requests[-1]["sampling_params"]
    assert {name: params[name] for name in sent} == sent


def test_logprob_options_stand_beside_the_text(endpoint: RuntimeEndpoint, server: NativeServer) -> None:
    stream = endpoint.open()
    stream.append("a b c")
    meta = stream.generate(options(return_logprob=True, logprob_start_len=1, top_logprobs_num=2)).result(10).meta_info
    assert server.requests[-1]["logprob_start_len"] == 1 and server.requests[-1]["top_logprobs_num"] == 2
    assert [row[2] for row in meta["input_token_logprobs"]] == [" ", "b", " ", "c"]


def test_pictures_are_sent_as_base64(endpoint: RuntimeEndpoint, server: NativeServer, tmp_path: Any) -> None:
    picture = b"\x89PNG\r\n\x1a\n and so on"
    path = tmp_path / "a.png"
    path.write_bytes(picture)

    @sgl.function
    def look(s: Any, images: list[Any]) -> None:
        for picture in images:
            s += image(picture)
        s += "What is it?" + sgl.gen("a", max_tokens=3)

    assert look.run([str(path)], backend=endpoint).error() is None
    assert server.requests[-1]["image_data"] == "iVBORw0KGgogYW5kIHNvIG9u"
    assert look.run([picture, "http://x/y.png"], backend=endpoint)["a"]
    assert server.requests[-1]["image_data"] == ["iVBORw0KGgogYW5kIHNvIG9u", "http://x/y.png"]
    with pytest.raises(ProgramError, match=r"cannot read the image .*missing\.png"):
        look.run(["/missing.png"], backend=endpoint)


def test_what_the_protocol_lacks_is_said_at_once(endpoint: RuntimeEndpoint) -> None:
    with pytest.raises(UnsupportedByBackendError, match="close_at_limit"):
        endpoint.open().generate(options(close_at_limit=True))


def test_small_calls(endpoint: RuntimeEndpoint, server: NativeServer) -> None:
    assert endpoint.flush_cache() and endpoint.health()
    endpoint.start_profile(), endpoint.stop_profile()
    assert server.paths == ["/flush_cache", "/health", "/start_profile", "/stop_profile"]
    assert endpoint.get_server_info()["tokenizer_path"] == "toy"
    assert endpoint.get_model_name() == endpoint.model_info["model_path"] == "toy/toy-instruct"
    endpoint.cache_prefix("A long prefix")
    assert server.requests[-1] == {"text": "A long prefix", "sampling_params": {"max_new_tokens": 0}}


def test_the_key_is_sent(server: NativeServer) -> None:
    backend = RuntimeEndpoint(server.url, api_key="sk-secret")
    stream = backend.open()
    stream.append("x")
    stream.generate(options()).result(10)
    assert server.headers[-1]["authorization"] == "Bearer sk-secret"
    backend.shutdown()


def test_errors_show_no_secrets(server: NativeServer) -> None:
    backend = RuntimeEndpoint(server.url.replace("http://", "http://user:hunter2@"), retries=0)
    stream = backend.open()
    stream.append("x")
    server.faults.append(Fault(status=403, message="no entry"))
    with pytest.raises(RemoteStatusError, match=r"HTTP 403 from .*: no entry") as caught:
        stream.generate(options()).result(10)
    assert caught.value.status == 403 and caught.value.url == f"{server.url}/generate"
    assert "hunter2" not in str(caught.value)
    backend.shutdown()


# --- the constructor ---


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(RemoteConnectionError, match=f"no server answers at {url}/get_model_info"):
            RuntimeEndpoint(url)
    for wrong in ("localhost:30000", "http://[::1", "http://host:port", ""):
        with pytest.raises(BadValueError, match="give a URL"):
            RuntimeEndpoint(wrong)
    with pytest.raises(BadValueError, match="max_concurrency=0"):
        RuntimeEndpoint("http://127.0.0.1:1", max_concurrency=0)


def test_a_server_of_another_kind(server: NativeServer) -> None:
    server.reply = lambda info: {"name": "?"}
    with pytest.raises(RemoteProtocolError, match="has no model_path"):
        RuntimeEndpoint(server.url)
    server.faults.append(Fault(status=404))
    with pytest.raises(RemoteStatusError, match=r"HTTP 404 from .*/model_info"):
        RuntimeEndpoint(server.url)
    server.faults.append(Fault(status=401, message="who are you"))
    with pytest.raises(RemoteStatusError, match="who are you"):
        RuntimeEndpoint(server.url)


def test_connections_are_used_again_and_given_up_when_idle(
    endpoint: RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    new_client = endpoint.client._new_client
    monkeypatch.setattr(endpoint.client, "_new_client", lambda: made.append(new_client()) or made[-1])
    states = [two_gens.run("where?", backend=endpoint) for _ in range(20)]
    assert {state.text() for state in states} == {expected("where?")[2]}
    at_once = len(made)
    for _ in range(5):
        assert two_gens.run("where?", backend=endpoint).text() == expected("where?")[2]
    assert len(made) == at_once <= 20
    monkeypatch.setattr(http_client, "KEPT_SECONDS", 0.0)
    two_gens.run("where?", backend=endpoint)["a"]
    assert sum(not client.is_closed for client in made) <= 2


def test_which_certificates_are_trusted() -> None:
    modes = [JsonHttpClient(url, verify=verify)._trust.verify_mode for url, verify in TRUST]
    assert modes == [ssl.CERT_REQUIRED, ssl.CERT_NONE, ssl.CERT_REQUIRED, ssl.CERT_NONE]


def test_templates(server: NativeServer) -> None:
    server.reply = lambda info: {**info, "model_path": "Qwen/Qwen2.5-7B-Instruct"}
    assert RuntimeEndpoint(server.url).get_chat_template().name == "qwen"
    assert RuntimeEndpoint(server.url, chat_template_name="chatml").chat_template.name == "chatml"


def test_tokens_of_the_answer(endpoint: RuntimeEndpoint) -> None:
    stream = endpoint.open()
    stream.append("ids ")
    generated = stream.generate(options(max_new_tokens=4)).result(10)
    assert TOKENIZER.decode(generated.token_ids or []) == generated.text
    assert json.dumps(generated.meta_info)
