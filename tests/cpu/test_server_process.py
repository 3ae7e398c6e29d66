"""The server with its engine in a process of its own, which dies in the middle of what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

LONG = {"max_tokens": 480, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(tiny):
    """A real `sgl serve` of the tiny model: its process, and its URL."""
    command = [
        sys.executable,
        "-m",
        "sgl.cli",
        "serve",
        str(tiny),
        "--port",
        "0",
        "process=true",
        "--served-name",
        "m",
        "kv_tokens=40000",
        "threads=1",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stderr is not None
    line = server.stdout.readline()
    if "ready at " not in line:
        server.kill()
        pytest.fail(line + server.stderr.read())
    yield server, line.split()[-1]
    server.kill()
    server.communicate()


def engine_pid(url: str) -> int:
    return httpx.get(f"{url}/server_info", timeout=30).json()["engine"]["pid"]


def stream(url: str, begun: threading.Semaphore, told: list[tuple[float, str]]) -> None:
    """Read a stream of completions to its end; its last lines and when they came."""
    body = {"model": "m", "prompt": "hello", "stream": True, "n": 8, **LONG}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        lines = (line for line in answer.iter_lines() if line)
        seen = [next(lines)]
        begun.release()
        seen += lines
    told.append((time.monotonic(), seen[-2] if seen[-1] == "data: [DONE]" else seen[-1]))


def test_streams_are_told_within_two_seconds_and_later_requests_succeed(served):
    _, url = served
    pid, begun, told = engine_pid(url), threading.Semaphore(0), []
    readers = [threading.Thread(target=stream, args=(url, begun, told), daemon=True) for _ in range(8)]
    for reader in readers:
        reader.start()
    for _ in readers:
        assert begun.acquire(timeout=30)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for reader in readers:
        reader.join(30)
    assert len(told) == 8 and max(at for at, _ in told) - killed < 2
    for _, line in told:
        error = json.loads(line.removeprefix("data: "))["error"]
        assert (
            error["code"] == "engine_restarting"
            and "SIGKILL" in error["message"]
            and "started again" in error["message"]
        )
    body = {"model": "m", "prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
    assert engine_pid(url) != pid and httpx.get(f"{url}/health", timeout=30).status_code == 200


@pytest.mark.whole
def test_a_waiting_request_gets_503_and_the_server_ends_cleanly(served):
    server, url = served
    pid, found = engine_pid(url), []
    body = {"model": "m", "prompt": "hello", "n": 32, **LONG}
    asker = threading.Thread(target=lambda: found.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60)))
    asker.start()
    until = time.monotonic() + 30
    while not httpx.get(f"{url}/server_info", timeout=30).json()["stats"]["running"] and time.monotonic() < until:
        pass
    os.kill(pid, signal.SIGKILL)
    asker.join(30)
    assert found[0].status_code == 503 and found[0].json()["error"]["code"] == "engine_restarting"
    assert int(found[0].headers["retry-after"]) >= 1
    pid = engine_pid(url)
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
