"""The base of the remote backends, without a network: order, forks, retries, deadlines, aborts, messages."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from alone import alone
from lang_rules import RuleBackend

import sgl
from sgl.lang.backend import Generated, GenRequest, Media, OnChunk, SelectRequest
from sgl.lang.backends.native.json_http_client import event_data
from sgl.lang.backends.remote.base import RemoteBackend
from sgl.lang.backends.remote.remote_event_loop import PerEventLoop, remote_loop
from sgl.lang.backends.remote.remote_prompt import RemotePrompt
from sgl.lang.backends.remote.retry_policy import RetryPolicy, public_url, retry_after_of, status_error
from sgl.lang.errors import (
    BadValueError,
    ProgramError,
    RemoteAbortedError,
    RemoteConnectionError,
    RemoteError,
    RemoteStreamError,
    RemoteTimeoutError,
    UnsupportedByBackendError,
)
from sgl.lang.media.media_urls import as_url
from sgl.lang.sampling.choices import ChoicesDecision
from sgl.lang.sampling.options import DEFAULTS, make_options

REQUEST = GenRequest(DEFAULTS)


class CountingBackend(RemoteBackend):
    """Answers with the number of words in the prompt; what else it does is decided by the prompt's words."""

    takes_media = frozenset({"image"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.prompts: list[RemotePrompt] = []
        self.warmed: list[str] = []
        self.errors: list[BaseException] = []
        self.running = self.most_running = 0

    async def complete(self, prompt: RemotePrompt, request: GenRequest, emit: OnChunk | None) -> Generated:
        self.prompts.append(prompt)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._answer(prompt, emit)
        finally:
            self.running -= 1

    async def _answer(self, prompt: RemotePrompt, emit: OnChunk | None) -> Generated:
        text = f"<{len(prompt.text.split())}>"
        if emit and "late-fault" not in prompt.text:
            emit(Generated(text[:1]))
        await asyncio.sleep(3600 if "forever" in prompt.text else 0)
        if self.errors:
            raise self.errors.pop(0)
        if emit:
            emit(Generated(text[1:] if "late-fault" not in prompt.text else text))
        return Generated(text, {"prompt": prompt.text})

    async def choose(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        return ChoicesDecision(request.choices[len(prompt.text) % len(request.choices)])

    async def warm(self, prompt: RemotePrompt) -> None:
        self.warmed.append(prompt.text)


def passing(retryable: bool = True, retry_after: float | None = None) -> RemoteError:
    return RemoteConnectionError("no luck", retryable=retryable, retry_after=retry_after)


def in_order(seed: int) -> Any:
    """A random program of literals, gens, selects and forks; all of its branches end up in `s["leaves"]`."""

    @sgl.function
    def program(s: Any) -> None:
        rng = random.Random(seed)
        leaves = [s]
        for step in range(30):
            leaf = rng.choice(leaves)
            kind = rng.randrange(5)
            if kind < 2:
                leaf += f"w{step} "
            elif kind < 4:
                leaf += sgl.gen(f"g{step}", n=rng.choice([None, 2]))
            elif len(leaves) < 8:
                leaves.extend(leaf.fork(2)[i] for i in range(2))
        s["leaves"] = leaves

    return program


# --- order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_random_programs_are_those_of_a_plain_backend(stream: bool) -> None:
    """The oracle runs every operation on one thread, one after another."""
    for seed in range(25):
        ours = in_order(seed).run(backend=CountingBackend(max_concurrency=3), stream=stream)
        theirs = in_order(seed).run(backend=RuleBackend())
        theirs.sync(), ours.sync()
        texts = [[leaf.text() for leaf in state["leaves"]] for state in (ours, theirs)]
        assert texts[0] == texts[1]


def test_keep_and_restore_and_select() -> None:
    stream = CountingBackend().open()
    stream.append("a b ")
    kept = stream.generate(replace(REQUEST, keep=lambda text: text[1:-1]))
    stream.restore(Generated(" [restored]"))
    chosen = stream.select(SelectRequest(["x", "y"], sgl.token_length_normalized))
    assert kept.result(5).text == "<2>"
    assert stream.generate(REQUEST).result(5).meta_info["prompt"] == "a b 2 [restored]" + chosen.result(5).decision


def test_a_fork_is_taken_when_its_turn_has_come() -> None:
    stream = CountingBackend().open()
    stream.append("a ")
    stream.generate(REQUEST)
    children = stream.fork(2)
    stream.append(" only the parent")
    for index, child in enumerate(children):
        child.append(f" child {index}")
    found = [branch.generate(REQUEST).result(5).meta_info["prompt"] for branch in [stream, *children]]
    assert found == ["a <1> only the parent", "a <1> child 0", "a <1> child 1"]


def test_prefixes_are_warmed() -> None:
    backend = CountingBackend()
    backend.cache_prefix("the beginning")
    assert backend.warmed == ["the beginning"]


def test_a_stream_that_nobody_holds_finishes_what_was_queued() -> None:
    backend = CountingBackend()
    stream = backend.open()
    stream.append("a")
    future = stream.generate(REQUEST)
    gone = weakref.ref(stream)
    del stream
    assert future.result(5).text == "<1>"
    for _ in range(200):
        gc.collect()
        if gone() is None:
            return
        time.sleep(0.005)
    raise AssertionError("the stream is still held")


@alone
def test_one_thread_serves_all() -> None:
    backends = [CountingBackend(max_concurrency=5) for _ in range(10)]
    streams = [backend.open() for backend in backends for _ in range(100)]
    CountingBackend().open().generate(REQUEST).result(5)
    before = threading.active_count()
    futures = [stream.generate(REQUEST) for stream in streams for _ in range(3)]
    assert threading.active_count() == before
    assert [future.result(20).text for future in futures[:3]] == ["<0>", "<1>", "<1>"]
    assert all(future.result(20) for future in futures)
    assert max(backend.most_running for backend in backends) <= 5


@pytest.mark.whole
@alone
def test_five_hundred_programs_with_forks() -> None:
    @sgl.function
    def program(s: Any, words: int) -> None:
        s += "w " * words + sgl.gen("a") + " "
        forks = s.fork(3)
        forks += lambda i: "b " * i + sgl.gen("b")
        s.set_var("forks", forks)

    backend = CountingBackend()
    backend.open().generate(REQUEST).result(5)
    before = threading.active_count()
    states = [program.run(words, backend=backend) for words in range(500)]
    assert threading.active_count() == before
    for words, state in enumerate(states):
        assert state["a"] == f"<{words}>"
        assert [fork["b"] for fork in state["forks"]] == [f"<{words + 1 + i}>" for i in range(3)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_a_loop_of_its_own() -> None:
    backend = CountingBackend()
    stream = backend.open()
    stream.append("one two ")
    assert stream.generate(REQUEST).result(5).text == "<2>"
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if stream.generate(REQUEST).result(5).text == "<3>" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- what a prompt is --------------------------------------------------------------------------------------


def test_a_prompt_is_text_and_messages() -> None:
    backend = CountingBackend()
    stream = backend.open()
    stream.append("loose ")
    stream.begin_turn("user", "[U]")
    stream.append("  what is ")
    stream.attach(Media("image", "http://x/y.png"), "<img>")
    stream.append(" this?")
    stream.end_turn("user", "[/U]")
    stream.begin_turn("assistant", "[A]")
    stream.append(" It ")
    stream.generate(REQUEST).result(5)
    prompt = backend.prompts[-1]
    parts: list[Any] = [
        {"type": "text", "text": "what is "},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "text", "text": " this?"},
    ]
    assert prompt.text == "loose [U]  what is <img> this?[/U][A] It "
    assert prompt.messages == [{"role": "user", "content": parts}]
    assert (prompt.role, prompt.partial, prompt.spoken, prompt.loose) == ("assistant", " It ", True, "loose ")
    assert prompt.open_message == {"role": "assistant", "content": "It "}
    assert [media.source for media in prompt.media] == ["http://x/y.png"]
    stream.end_turn("assistant", "[/A]")
    stream.generate(REQUEST).result(5)
    answered = {"role": "assistant", "content": "It <7>"}
    assert backend.prompts[-1].messages == [{"role": "user", "content": parts}, answered]
    assert backend.prompts[-1].open_message is None and backend.prompts[-1].role is None
    assert prompt.messages == [{"role": "user", "content": parts}]


def test_pictures_become_urls(tmp_path: Any) -> None:
    image_module = pytest.importorskip("PIL.Image")
    picture = image_module.new("RGB", (2, 2), "red")
    path = tmp_path / "a.jpg"
    picture.save(path)
    assert as_url(Media("image", path)).startswith("data:image/jpeg;base64,/9j/")
    assert as_url(Media("image", path.read_bytes())) == as_url(Media("image", str(path)))
    assert as_url(Media("image", picture)).startswith("data:image/png;base64,iVBOR")
    assert as_url(Media("image", "https://x/a")) == "https://x/a"
    with pytest.raises(BadValueError, match="of type int; give a path"):
        as_url(Media("image", 3))
    with pytest.raises(UnsupportedByBackendError, match="does not accept videos"):
        CountingBackend().open().attach(Media("video", "x.mp4", 3), "<v>")


def test_a_backend_that_cannot_select_says_so() -> None:
    class Plain(CountingBackend):
        choose = RemoteBackend.choose

    stream = Plain().open()
    with pytest.raises(UnsupportedByBackendError, match="Plain cannot select"):
        stream.select(SelectRequest(["x"], sgl.token_length_normalized)).result(5)
    with pytest.raises(UnsupportedByBackendError):
        stream.generate(REQUEST).result(5)


# --- failures ------------------------------------------------------------------------------------------------


def test_the_failed_node_is_the_one_to_blame() -> None:
    backend = CountingBackend(retries=0)
    backend.errors.append(passing())

    @sgl.function
    def program(s: Any) -> None:
        s += "x " + sgl.gen("first") + " y " + sgl.gen("second")
        s["child"] = s.fork(1)[0]
        s["child"] += sgl.gen("third")

    state = program.run(backend=backend)
    for name in ("first", "second"):
        with pytest.raises(ProgramError, match=r"'first'.*no luck"):
            state[name]
    with pytest.raises(ProgramError, match="no luck"):
        state["child"]["third"]
    assert state.text() == "x "
    assert backend.open().generate(REQUEST).result(5).text == "<0>"


def test_a_bug_in_a_backend_is_an_error_of_its_call() -> None:
    backend = CountingBackend()
    backend.errors.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        backend.open().generate(REQUEST).result(5)
    stream = backend.open()
    with pytest.raises(KeyError):
        stream.generate(replace(REQUEST, keep=lambda text: {}[text])).result(5)
    assert isinstance(stream.generate(REQUEST).exception(5), KeyError)


def test_retries_back_off_and_give_up() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    backend = CountingBackend(retries=3)
    backend.policy = RetryPolicy(3, backoff=2.0, longest=5.0, sleep=sleep, random=lambda: 1.0)
    backend.errors = [passing(), passing(retry_after=11.0), passing()]
    assert backend.open().generate(REQUEST).result(5).text == "<0>"
    assert pauses == [2.0, 11.0, 5.0]
    backend.errors = [passing() for _ in range(4)]
    with pytest.raises(RemoteConnectionError, match=r"no luck \(after 4 attempts\)"):
        backend.open().generate(REQUEST).result(5)
    backend.errors = [passing(retryable=False)]
    with pytest.raises(RemoteConnectionError, match=r"no luck$"):
        backend.open().generate(REQUEST).result(5)
    backend.errors = [passing(retry_after=601.0)]
    with pytest.raises(RemoteConnectionError, match=r"no luck$"):
        backend.open().generate(REQUEST).result(5)
    assert len(pauses) == 6


def test_pauses_are_spread() -> None:
    policy = RetryPolicy(backoff=1.0)
    pauses = [policy.pause(2, passing()) for _ in range(200)]
    assert 2.0 <= min(pauses) < 2.5 and 3.5 < max(pauses) <= 4.0


def test_what_was_shown_is_never_said_twice() -> None:
    backend = CountingBackend(backoff=0.0)
    backend.errors.append(passing())
    seen: list[str] = []
    with pytest.raises(RemoteStreamError, match="the text so far: '<'") as caught:
        backend.open().generate(REQUEST, lambda chunk: seen.append(chunk.text)).result(5)
    assert caught.value.text == "<" and seen == ["<"] and isinstance(caught.value.__cause__, RemoteConnectionError)
    backend.errors.append(passing())
    stream = backend.open()
    stream.append("late-fault")
    assert stream.generate(REQUEST, lambda chunk: seen.append(chunk.text)).result(5).text == "<1>"
    assert seen == ["<", "<1>"]


def test_deadlines() -> None:
    request = GenRequest(make_options(timeout=0.05).over(DEFAULTS))
    backend = CountingBackend(max_concurrency=1)
    stream = backend.open()
    stream.append("forever")
    begun = time.monotonic()
    blocking = stream.generate(REQUEST)
    with pytest.raises(TimeoutError, match=r"had not answered in full after 0\.0"):
        backend.open().generate(request).result(5)  # waits for the only place
    stream.abort()
    assert isinstance(blocking.exception(5), RemoteAbortedError)
    assert backend.open().generate(request).result(5).text == "<0>"
    late = backend.open()
    late.append("forever")
    with pytest.raises(RemoteTimeoutError):
        late.generate(request).result(5)
    assert time.monotonic() - begun < 2


def test_abort_from_many_threads() -> None:
    backend = CountingBackend(max_concurrency=10)
    streams = [backend.open() for _ in range(60)]
    futures = []
    for stream in streams:
        stream.append("forever")
        futures += [stream.generate(REQUEST), stream.generate(REQUEST), stream.prefill()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda stream: stream.abort(), streams))
    assert all(isinstance(future.exception(5), RemoteAbortedError) for future in futures)
    assert backend.open().generate(REQUEST).result(5).text == "<0>"
    assert backend.running == 0


def test_a_callback_may_abort_other_streams() -> None:
    """As a run does that is over its budget: two streams end and abort each other."""
    for _ in range(50):
        one, two = (CountingBackend().open() for _ in range(2))
        ends = [one.generate(REQUEST), two.generate(REQUEST)]
        ends[0].add_done_callback(lambda done, other=two: other.abort())
        ends[1].add_done_callback(lambda done, other=one: other.abort())
        rest = [one.generate(REQUEST), two.generate(REQUEST)]
        for future in ends + rest:
            future.exception(5)
        assert any(isinstance(future.exception(5), RemoteAbortedError) for future in rest)


# --- small parts ----------------------------------------------------------------------------------------------


def test_retry_after() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert retry_after_of({"retry-after": "3.5"}) == 3.5
    assert 90 < (retry_after_of({"retry-after": later}) or 0) <= 100
    assert retry_after_of({"retry-after": "soon"}) is None and retry_after_of({}) is None


@pytest.mark.parametrize(
    ("status", "again"), [(400, False), (401, False), (408, True), (409, True), (429, True), (500, True), (529, True)]
)
def test_which_answers_are_worth_another_try(status: int, again: bool) -> None:
    error = status_error(status, "words", "http://u:p@h:1/a?key=secret", {"retry-after": "2"})
    assert (error.status, error.retryable, error.retry_after) == (status, again, 2.0)
    assert str(error) == f"HTTP {status} from http://h:1/a: words"


def test_public_url() -> None:
    assert public_url("https://me:pw@[::1]:80/v1?api_key=x#y") == "https://[::1]:80/v1"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_of_bytes(size: int) -> None:
    body = (
        'data: {"a":"x\u2028ü"}\n\n: ping\nevent: e\r\ndata:one\r\ndata: two\r\n\r\ndata: [DONE]\n\ndata: cut'.encode()
    )

    async def collect() -> list[str]:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(body), size):
                yield body[start : start + size]

        return [data async for data in event_data(chunks())]

    assert asyncio.run(collect()) == ['{"a":"x\u2028ü"}', "one\ntwo", "[DONE]"]


def test_each_loop_has_its_own() -> None:
    made = PerEventLoop(object)

    async def get() -> object:
        return made.get()

    ours = asyncio.run_coroutine_threadsafe(get(), remote_loop()).result(5)
    assert asyncio.run_coroutine_threadsafe(get(), remote_loop()).result(5) is ours
    assert asyncio.run(get()) is not ours
