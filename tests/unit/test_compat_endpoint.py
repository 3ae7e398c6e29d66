"""Where `RuntimeEndpoint(url)` of a program leads: to a server that answers, or to the one that `sgl run` names."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from native_server import NativeServer

import sgl
from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint as HttpEndpoint
from sgl.lang.compat import sglang_alias_settings
from sgl.lang.compat.sglang_alias_endpoint import RuntimeEndpoint, answers
from sgl.lang.compat.sglang_runtime import Runtime

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def running() -> Iterator[NativeServer]:
    with NativeServer() as server:
        yield server


@pytest.fixture
def server(running: NativeServer) -> Iterator[NativeServer]:
    running.reset()
    yield running
    sglang_alias_settings.configure(local=False, url=None, model=None)


def test_what_answers(server):
    assert answers(server.url)
    assert not answers(NOWHERE)


def test_a_server_that_answers_is_used_though_endpoints_are_local(server):
    sglang_alias_settings.configure(local=True, url=None, model=None)
    endpoint = RuntimeEndpoint(server.url, chat_template_name="chatml")
    assert isinstance(endpoint, HttpEndpoint)
    assert endpoint.get_chat_template().name == "chatml"
    endpoint.shutdown()


def test_without_sgl_run_a_server_that_does_not_answer_is_an_error(server):
    with pytest.raises(sgl.lang.errors.LanguageError, match=NOWHERE):
        RuntimeEndpoint(NOWHERE)


def test_the_named_backend_stands_in_for_every_url(server, capsys):
    sglang_alias_settings.configure(local=False, url=server.url, model=None)
    for url in (NOWHERE, server.url, NOWHERE):
        endpoint = RuntimeEndpoint(url)
        assert endpoint.base_url == server.url
        endpoint.shutdown()
    assert capsys.readouterr().err == f"sgl: {server.url} stands in for {NOWHERE}\n"


def test_a_runtime_is_the_named_backend_too(server):
    sglang_alias_settings.configure(local=False, url=server.url, model=None)
    runtime = Runtime(model_path="a/b")
    assert runtime.endpoint.base_url == server.url
    answer = json.loads(runtime.generate("1 2 3", {"max_new_tokens": 4}))
    assert server.requests[-1] == {
        "text": "1 2 3",
        "sampling_params": {"max_new_tokens": 4},
        "return_logprob": False,
    }
    assert answer["text"]
    with pytest.raises(sgl.lang.errors.UnsupportedByBackendError, match="encode"):
        runtime.encode("x")
    runtime.shutdown()
    runtime.endpoint.shutdown()


@pytest.mark.whole
def test_sgl_run_with_a_backend(server, tmp_path):
    program = """
        import sglang as sgl

        @sgl.function
        def count(s):
            s += "1 2 3" + sgl.gen("more", max_tokens=3)

        default = count.run()["more"]
        named = count.run(backend=sgl.RuntimeEndpoint("http://localhost:30000"))["more"]
        info = sgl.Runtime(model_path="a/b").endpoint.get_server_info()
        print(default == named != "", info["tokenizer_path"])
    """
    (tmp_path / "count.py").write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "sgl.cli", "run", "--backend", server.url, str(tmp_path / "count.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True toy\n", done.stderr
    asked = [request for request in server.requests if request.get("sampling_params", {}).get("max_new_tokens") == 3]
    assert len(asked) == 2
    assert "stands in for http://localhost:30000" in done.stderr
