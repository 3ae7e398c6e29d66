"""Backends of the older, blocking interface run programs as ours do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from lang_rules import RuleBackend

import sgl
from sgl.lang.backend import GenRequest
from sgl.lang.backends.default_backend import as_backend
from sgl.lang.backends.legacy.legacy_backend import BaseBackend, LegacyParams, LegacyState
from sgl.lang.errors import ProgramError, RemoteAbortedError, RemoteTimeoutError, UnsupportedByBackendError
from sgl.lang.nodes.primitives import image
from sgl.lang.sampling.choices import ChoicesDecision
from sgl.lang.sampling.options import DEFAULTS, make_options


class Words(BaseBackend):
    """As somebody else wrote it: no call of super().__init__, all methods block."""

    def __init__(self) -> None:
        self.seen: list[tuple[LegacyState, LegacyParams]] = []
        self.hooks: list[str] = []
        self.ended = threading.Event()
        self.threads_used: set[str] = set()
        self.error: Exception | None = None

    def get_model_name(self) -> str:
        return "words"

    def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        self.seen.append((s, sampling_params))
        self.threads_used.add(threading.current_thread().name)
        if self.error:
            raise self.error
        time.sleep(0.001)
        s.messages_.append("what a backend does to its copy")
        seed = sampling_params.seed
        return (f"<{len(s.text_.split())}>" if seed is None else f"<{len(s.text_.split())}:{seed}>"), {"calls": 1}

    def select(self, s: Any, choices: list[str], temperature: float, choices_method: Any = None) -> ChoicesDecision:
        return ChoicesDecision(choices[len(s.text_) % len(choices)], {"method": repr(choices_method)})


class Streaming(Words):
    def generate_stream(self, s: Any, sampling_params: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        text, meta = self.generate(s, sampling_params)
        for position, character in enumerate(text):
            yield character, {**meta, "at": position}

    def begin_program(self, s: Any) -> None:
        self.hooks.append(f"begin {s.text_}")

    def end_program(self, s: Any) -> None:
        self.hooks.append(f"end {s.text_}")
        self.ended.set()

    def commit_lazy_operations(self, s: Any) -> None:
        self.hooks.append(f"commit {s.text_}")

    def fill_image(self, s: Any) -> None:
        self.hooks.append(f"image {s.images_}")


@sgl.function
def chatting(s: Any, question: str) -> None:
    s += sgl.system("Be kind.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("a", stop="x"))
    forks = s.fork(2)
    forks += lambda i: f"branch {i} " + sgl.gen("b")
    s["b"] = [fork["b"] for fork in forks]
    s += sgl.select("c", ["yes", "no"])
    s += " then " + sgl.gen("d")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [Words, Streaming])
@pytest.mark.parametrize("stream", [False, True])
def test_a_program_is_that_of_a_plain_backend(kind: type[Words], stream: bool) -> None:
    backend = kind()
    state = chatting.run("How are you?", backend=backend, stream=stream, seed=5)
    oracle = chatting.run("How are you?", backend=RuleBackend(), seed=5)
    for name in ("a", "b"):
        assert state[name] == oracle[name]
    chosen = ["yes", "no"][len(state.text().partition(state["c"] + " then ")[0]) % 2]
    assert state["c"] == chosen
    assert state.get_meta_info("a")["calls"] == 1
    assert backend.threads_used and all(name.startswith(f"sgl-{kind.__name__}") for name in backend.threads_used)


def test_what_a_backend_reads() -> None:
    backend = Words()
    backend.chat_template = sgl.lang.chat.get_chat_template("chatml")
    state = chatting.run("How are you?", backend=backend)
    state.sync()
    seen, params = backend.seen[0]
    assert seen.messages_[:2] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "How are you?"},
    ]
    assert seen.cur_role == "assistant" and seen.text_.endswith("<|im_start|>assistant\n")
    assert params.stop == ["x", "<|im_end|>"] and params.n == 1 and params.stop_token_ids == []
    assert params.clone() == params and params.clone() is not params
    assert params.to_openai_kwargs()["max_tokens"] == params.to_srt_kwargs()["max_new_tokens"] == 128
    assert params.to_anthropic_kwargs()["stop_sequences"] == ["x", "<|im_end|>"]
    assert params.to_vertexai_kwargs()["top_k"] is None
    assert len({state.sid for state, _ in backend.seen}) == 3  # the program and its two forks
    assert state.messages()[0]["content"] == "Be kind."


def test_streams_come_in_pieces_where_the_backend_has_them() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "one two " + sgl.gen("a")

    assert list(program.run(backend=Streaming(), stream=True).text_iter("a")) == ["<", "2", ">"]
    assert list(program.run(backend=Words(), stream=True).text_iter("a")) == ["<2>"]


def test_lifetime_hooks_are_called_in_order() -> None:
    backend = Streaming()

    @sgl.function
    def program(s: Any) -> None:
        s += "a " + image("http://x/y.png")
        s += sgl.gen("v")

    state = program.run(backend=backend)
    state["v"]
    assert backend.ended.wait(5)
    first, *rest = backend.hooks
    assert first.startswith("begin a")
    assert rest[0] == "image [('http://x/y.png', '')]"
    assert rest[-1].startswith("end a") and rest[-1].endswith(">")


def test_errors_of_the_backend_belong_to_its_node() -> None:
    backend = Words()
    backend.error = ValueError("no such model")

    @sgl.function
    def program(s: Any) -> None:
        s += "x " + sgl.gen("a") + sgl.gen("b")

    failed = program.run(backend=backend)
    with pytest.raises(ProgramError, match=r"'a'.*no such model"):
        failed["b"]
    backend.error = None
    assert program.run(backend=backend)["b"] == "<2>"


def test_what_is_not_overridden_is_said() -> None:
    stream = BaseBackend().open()
    request = GenRequest(DEFAULTS)
    with pytest.raises(NotImplementedError, match="BaseBackend has no generate"):
        stream.generate(request).result(5)
    for call in (
        lambda: BaseBackend().concatenate_and_append([], ""),
        lambda: BaseBackend().select(None, [], 0.0),
        lambda: BaseBackend().generate_stream(None, None),
    ):
        with pytest.raises(UnsupportedByBackendError):
            call()
    backend = BaseBackend()
    assert backend.get_model_name() == "BaseBackend"
    assert backend.cache_prefix("x") is None and backend.support_concate_and_append is False
    assert as_backend(backend) is backend


def test_waiting_ends_although_a_thread_goes_on() -> None:
    release = threading.Event()

    class Slow(Words):
        def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
            release.wait(5)
            return "late", {}

    backend = Slow()
    try:
        with pytest.raises(RemoteTimeoutError):
            backend.open().generate(GenRequest(make_options(timeout=0.02).over(DEFAULTS))).result(5)
        stream = backend.open()
        futures = [stream.generate(GenRequest(DEFAULTS)) for _ in range(2)]
        stream.abort()
        assert all(isinstance(future.exception(5), RemoteAbortedError) for future in futures)
    finally:
        release.set()
