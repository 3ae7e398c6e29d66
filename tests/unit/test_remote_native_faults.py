"""What goes wrong at a server or on the way to it ends in an error at its node, and all goes on after."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from api_loopback import Fault
from api_toy import write
from native_programs import expected, options, two_gens
from native_server import NativeServer

import sgl
from sgl.lang.backend import SelectRequest
from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint
from sgl.lang.errors import (
    ProgramError,
    RemoteAbortedError,
    RemoteConnectionError,
    RemoteError,
    RemoteStatusError,
    RemoteStreamError,
    RemoteTimeoutError,
)

pytest_plugins = ("native_rig",)

METHOD = sgl.token_length_normalized


FAULTS = [
    (Fault(status=500, message="out of luck"), RemoteStatusError, "HTTP 500 .*out of luck"),
    (Fault(status=429, retry_after="7", message="slow down"), RemoteStatusError, "HTTP 429 .*slow down"),
    (Fault(status=400, message="bad word"), RemoteStatusError, "HTTP 400 .*bad word"),
    (Fault(status=404), RemoteStatusError, "HTTP 404 from .*/generate"),
    (Fault(drop=True), RemoteConnectionError, "broke before the answer was complete"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS, ids=[kind.__name__ + w[:9] for _, kind, w in FAULTS])
def test_a_fault_ends_at_its_node(
    server: NativeServer, fault: Fault, kind: type[Exception], words: str, stream: bool
) -> None:
    backend = RuntimeEndpoint(server.url, retries=0)
    server.faults.extend([Fault()] * (2 if stream else 1) + [fault])  # a stream asks /server_info first
    state = two_gens.run("where?", backend=backend, stream=stream)
    with pytest.raises(ProgramError, match=words) as caught:
        state["b"]
    assert isinstance(caught.value.__cause__, kind) and "'b'" in str(caught.value)
    assert state["a"] == expected("where?")[0]
    assert isinstance(state.error(), ProgramError)
    assert state.text() == expected("where?")[2].rpartition(" So: ")[0] + " So: "
    assert two_gens.run("where?", backend=backend).text() == expected("where?")[2]
    backend.shutdown()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("this is no JSON", "not answer with JSON: 'this is no JSON'"),
        ({"words": "?"}, "without a text"),
        (["a", "b"], "without a text"),
        (
            {"text": "x", "meta_info": {"finish_reason": {"type": "abort", "message": "evicted"}}},
            "gave up: evicted",
        ),
    ],
)
def test_answers_that_are_none(server: NativeServer, reply: Any, words: str) -> None:
    backend = RuntimeEndpoint(server.url, retries=0)
    server.reply = lambda answer: reply
    state = two_gens.run("where?", backend=backend)
    with pytest.raises(ProgramError, match=words):
        state["a"]
    with pytest.raises(ProgramError, match=words):
        state["b"]
    select = backend.open()
    select.append("x")
    with pytest.raises(RemoteError):
        select.select(SelectRequest(["a", "b"], METHOD)).result(10)
    server.reply = lambda answer: answer
    assert two_gens.run("where?", backend=backend).text() == expected("where?")[2]
    backend.shutdown()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(half=3), "broke before the answer was complete"),
        (
            Fault(event=b'data: {"error": {"message": "worker died", "code": 500}}\n\n'),
            "HTTP 500 .*worker died",
        ),
        (Fault(event=b'data: {"error": "worker died"}\n\n'), "says: worker died"),
        (Fault(event=b"data: {half an eve\n\n"), "not answer with JSON"),
        (Fault(event=b"data: [DONE]\n\n"), "ended before its text was complete"),
        (Fault(event=b'data: {"text": "changed my mind", "meta_info": {}}\n\n'), "first said"),
    ],
)
def test_half_a_stream_is_an_error_with_the_text_so_far(
    endpoint: RuntimeEndpoint, server: NativeServer, fault: Fault, words: str
) -> None:
    server.faults.extend([Fault(), fault])
    state = two_gens.run("where?", backend=endpoint, stream=True)
    seen: list[str] = []
    with pytest.raises(ProgramError, match=words):
        for chunk in state.text_iter("a"):
            seen.append(chunk)
    cause = (state.error() or ProgramError("none")).__cause__
    assert isinstance(cause, RemoteStreamError) and "Part of the stream had arrived" in str(cause)
    assert cause.text == "".join(seen) and expected("where?")[0].startswith(cause.text) and cause.text
    assert len(server.requests) == 1  # never a second try
    with pytest.raises(ProgramError):
        state["b"]
    assert two_gens.run("where?", backend=endpoint, stream=True).text() == expected("where?")[2]


def test_a_stream_that_breaks_before_its_first_text_is_tried_again(
    endpoint: RuntimeEndpoint, server: NativeServer
) -> None:
    server.faults.extend([Fault(), Fault(half=0), Fault(drop=True)])
    assert two_gens.run("where?", backend=endpoint, stream=True).text() == expected("where?")[2]


def test_retries_wait_as_the_server_asks(endpoint: RuntimeEndpoint, server: NativeServer) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    endpoint.policy = replace(endpoint.policy, backoff=1.0, sleep=sleep, random=lambda: 0.5)
    server.faults.extend([Fault(status=503), Fault(status=429, retry_after="17"), Fault(drop=True)])
    assert two_gens.run("where?", backend=endpoint).text() == expected("where?")[2]
    assert pauses == [0.75, 17.0, 3.0]
    server.faults.extend([Fault(status=503, message="still ill")] * 4)
    with pytest.raises(ProgramError, match=r"still ill \(after 4 attempts\)"):
        two_gens.run("where?", backend=endpoint)["a"]
    server.faults.append(Fault(status=429, retry_after="9999"))
    with pytest.raises(ProgramError, match="HTTP 429"):  # longer than the call has
        two_gens.run("where?", backend=endpoint)["a"]


def test_time_runs_out(server: NativeServer) -> None:
    backend = RuntimeEndpoint(server.url)

    @sgl.function
    def hurried(s: Any) -> None:
        s += "x" + sgl.gen("a") + sgl.gen("b")

    server.faults.append(Fault(hang=5.0))
    stream = backend.open()
    stream.append("x")
    begun = time.monotonic()
    with pytest.raises(RemoteTimeoutError, match="had not answered in full"):
        stream.generate(options(timeout=0.1)).result(10)
    backend.timeout = 0.1
    server.faults.append(Fault(hang=5.0))
    state = hurried.run(backend=backend)
    with pytest.raises(ProgramError, match="had not answered in full"):
        state["b"]
    assert time.monotonic() - begun < 2
    backend.timeout = 60
    assert two_gens.run("where?", backend=backend).text() == expected("where?")[2]
    backend.shutdown()


def test_random_faults_end_in_the_right_text_or_an_error(server: NativeServer) -> None:
    """Whatever the server does: each value is right or its read raises, nothing hangs, and all goes on after."""
    rng = random.Random(3)
    kinds = [
        Fault(status=500),
        Fault(drop=True),
        Fault(half=1),
        Fault(event=b"data: ?\n\n"),
        Fault(status=400),
    ]
    outcomes = {"right": 0, "failed": 0}

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += "Q: " + q + sgl.gen("a", max_tokens=6)
        forks = s.fork(2)
        forks += lambda i: f" {i}: " + sgl.gen("b", max_tokens=6)
        s += " C: " + sgl.gen("c", max_tokens=6)
        s.set_var("forks", forks)

    def check(read: Any, start: str, own: str) -> str | None:
        try:
            text = read()
        except ProgramError:
            outcomes["failed"] += 1
            return None
        assert text == write(start + own, 6).text
        outcomes["right"] += 1
        return start + own + text

    for number in range(16):
        backend = RuntimeEndpoint(server.url, retries=rng.randint(0, 1), backoff=0.0)
        server.faults.extend(rng.choice([*kinds, Fault(), Fault(), Fault()]) for _ in range(6))
        state = program.run(str(number), backend=backend, stream=rng.random() < 0.5)
        after = check(lambda s=state: s["a"], "Q: ", str(number))
        if after is not None:
            for i in range(2):
                check(lambda s=state, i=i: s["forks"][i]["b"], after, f" {i}: ")
            check(lambda s=state: s["c"], after, " C: ")
        server.faults.clear()
        assert two_gens.run("where?", backend=backend).text() == expected("where?")[2]
        backend.shutdown()
    assert min(outcomes.values()) > 10


def test_abort_closes_the_connection(endpoint: RuntimeEndpoint, server: NativeServer) -> None:
    server.script = lambda prompt, params: "word " * 100
    server.pause = 0.02
    first, stream = threading.Event(), endpoint.open()
    stream.append("x")
    running = stream.generate(options(max_new_tokens=200), lambda chunk: first.set())
    waiting = stream.generate(options())
    (child,) = stream.fork(1)
    childs = child.generate(options())
    assert first.wait(5)
    stream.abort()
    for future in (running, waiting, childs, stream.generate(options())):
        assert isinstance(future.exception(5), RemoteAbortedError)
    deadline = time.monotonic() + 5
    while not server.left and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.left == 1 and len(server.requests) == 1
    server.reset()
    assert two_gens.run("where?", backend=endpoint).text() == expected("where?")[2]


def test_cancelled_runs_leave_the_server(endpoint: RuntimeEndpoint, server: NativeServer) -> None:
    server.script = lambda prompt, params: "word " * 100
    server.pause = 0.02

    @sgl.function
    def endless(s: Any) -> None:
        s += "x"
        forks = s.fork(3)
        forks += sgl.gen("a", max_tokens=200)
        s += sgl.gen("a", max_tokens=200)

    def all_left(least: int) -> bool:
        """All that came; on a busy machine not every branch comes before its deadline."""
        deadline = time.monotonic() + 20
        while not least <= server.left == len(server.requests) and time.monotonic() < deadline:
            time.sleep(0.01)
        return least <= server.left == len(server.requests)

    state = endless.run(backend=endpoint, stream=True)
    assert next(iter(state.text_iter("a")))
    while len(server.requests) < 4:
        time.sleep(0.01)
    state.cancel(reason="enough")
    with pytest.raises(sgl.ProgramCancelled, match="enough"):
        state["a"]
    assert all_left(4)
    with pytest.raises(sgl.DeadlineExceeded):
        endless.run(backend=endpoint, stream=True, timeout=0.3)["a"]
    assert all_left(5)
    server.reset()
    assert two_gens.run("where?", backend=endpoint).text() == expected("where?")[2]


def test_a_budget_stops_all_branches(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "where?"
        forks = s.fork(8)
        forks += lambda i: f" {i} " + sgl.gen("a", max_tokens=4)
        s.set_var("forks", forks)
        for _ in range(50):
            s += " more " + sgl.gen("b", max_tokens=4)

    for _ in range(5):
        with pytest.raises(sgl.BudgetExceeded):
            program.run(backend=endpoint, budget=sgl.Budget(operations=4))["b"]
    assert two_gens.run("where?", backend=endpoint).text() == expected("where?")[2]


def test_aborts_at_any_moment_leave_no_connection_behind(server: NativeServer) -> None:
    """A connection that was cut off while it was made, written or read must not be waited for later."""
    rng = random.Random(11)
    backend = RuntimeEndpoint(server.url, max_concurrency=4, timeout=5, retries=0)
    for _ in range(150):
        stream = backend.open()
        stream.append("where?")
        stream.generate(options(max_new_tokens=4), (lambda chunk: None) if rng.random() < 0.5 else None)
        time.sleep(rng.random() * 0.008)
        stream.abort()
    states = [two_gens.run("where?", backend=backend) for _ in range(8)]
    assert {state.text() for state in states} == {expected("where?")[2]}
    backend.shutdown()


def test_a_batch(endpoint: RuntimeEndpoint) -> None:
    questions = [f"number {i}" for i in range(30)]
    states = two_gens.run_batch([{"question": question} for question in questions], backend=endpoint)
    assert [state.text() for state in states] == [expected(question)[2] for question in questions]
    assert states[0].usage().operations == 2 and states[0].usage().generated_tokens > 0
