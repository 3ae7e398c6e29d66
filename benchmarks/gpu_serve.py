"""Servers of one model under the same load, in turns: ours, and any other that speaks OpenAI's /v1/completions.

    python benchmarks/gpu_serve.py --shape llama8b --rates 4,8,16,32,inf
    python benchmarks/gpu_serve.py --server "peer=python -m peer --model {model} --port {port} ..." --rounds 3

Requests are rows of token ids with ignore_eos, their lengths lognormal, sent as a Poisson process of so many a second,
or all at once (inf); the same to every server. Reported in milliseconds: until the first token, between pieces of a
stream, and a token after the first; and output tokens/s. Clients run in separate processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_report import text_table
from gpu_shapes import SHAPES, shape_of, write_model
from server_client import DONE, Broken, Client

OURS = "sgl={python} -m sgl serve {model} --port {port} --served-name m dummy=true"
NAME = "m"  # of the model, in requests
READY = 300.0  # seconds
LOG = 20_000  # characters of a failed server's log: the cause stands before what it brought down
HEADER = (
    "server",
    "rate/s",
    "requests",
    "out tok/s",
    "first token p50, p99",
    "between p50, p99, max",
    "a token p50, p99",
    "failed",
)


@dataclass(frozen=True, slots=True)
class Request:
    """at: seconds after the start."""

    at: float
    prompt: list[int]
    tokens: int


@dataclass(slots=True)
class Heard:
    """Of one answer, in seconds: until its first piece, between pieces, until
    its end; tokens by the server's own count.
    """

    first: float
    gaps: list[float]
    end: float
    tokens: int


def requests(rate: float, window: float, burst: int, vocabulary: int, scale: float, seed: int) -> list[Request]:
    """scale: of all lengths."""
    draw = random.Random(f"{seed} {rate}")
    times = [0.0] * burst if rate == math.inf else list(_arrivals(draw, rate, window))
    lengths = [(_length(draw, 512 * scale, 4096), _length(draw, 128 * scale, 1024)) for _ in times]
    return [
        Request(at, [draw.randrange(100, vocabulary) for _ in range(n)], m)
        for at, (n, m) in zip(times, lengths, strict=True)
    ]


def _arrivals(draw: random.Random, rate: float, window: float) -> Iterator[float]:
    at = draw.expovariate(rate)
    while at < window:
        yield at
        at += draw.expovariate(rate)


def _length(draw: random.Random, median: float, most: int) -> int:
    return max(8, min(most, round(draw.lognormvariate(math.log(median), 0.6))))


async def ask(client: Client, request: Request, started: float) -> Heard | None:
    """None: it failed."""
    body = {
        "model": NAME,
        "prompt": request.prompt,
        "max_tokens": request.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    await asyncio.sleep(max(0.0, started + request.at - time.time()))
    asked, times, tokens = time.perf_counter(), [], 0
    try:
        async with client.asked("/v1/completions", body) as answer:
            async for event in answer.events():
                piece = None if event == DONE else json.loads(event)
                if piece and piece.get("usage"):
                    tokens = piece["usage"]["completion_tokens"]
                if piece and piece.get("choices"):
                    times.append(time.perf_counter())
            if answer.status != 200 or not times:
                return None
    except (OSError, Broken, asyncio.IncompleteReadError):
        return None
    gaps = [b - a for a, b in pairwise(times)]
    return Heard(times[0] - asked, gaps, times[-1] - asked, tokens)


def share(given: tuple[str, list[Request], float]) -> list[Heard | None]:
    """The work of one client process."""
    url, mine, started = given

    async def all_of_them() -> list[Heard | None]:
        return await asyncio.gather(*(ask(Client(url), request, started) for request in mine))

    return asyncio.run(all_of_them())


def load(url: str, wanted: list[Request], processes: int) -> tuple[list[Heard | None], float]:
    """What was heard, and the seconds from the first request to the last answer."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        started = time.time() + 2.0
        parts = pool.map(share, [(url, wanted[index::processes], started) for index in range(processes)])
        return [one for part in parts for one in part], time.time() - started


def row(label: str, rate: float, heard: list[Heard | None], seconds: float) -> tuple[str, ...]:
    good = [one for one in heard if one is not None]
    each = [(one.end - one.first) / (one.tokens - 1) for one in good if one.tokens > 1]
    gaps = [gap for one in good for gap in one.gaps]
    return (
        label,
        "all at once" if rate == math.inf else f"{rate:g}",
        str(len(heard)),
        f"{sum(one.tokens for one in good) / seconds:,.0f}",
        _at([one.first for one in good], 50, 99),
        f"{_at(gaps, 50, 99)}, {1e3 * max(gaps, default=math.nan):.0f}",
        _at(each, 50, 99),
        str(len(heard) - len(good)),
    )


def _at(values: list[float], *percents: int) -> str:
    ordered = sorted(values) or [math.nan]
    return ", ".join(
        f"{1e3 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]:.1f}" for percent in percents
    )


@contextmanager
def running(command: str, model: Path, log: Path) -> Iterator[tuple[str, float]]:
    """The server's address, and the seconds until it was ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = shlex.split(command.format(python=sys.executable, model=model, port=port))
    started = time.perf_counter()
    with log.open("w") as out, subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            asyncio.run(_ready(url, server, log))
            yield url, time.perf_counter() - started
        finally:
            server.terminate()


async def _ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}:\n{log.read_text()[-LOG:]}")
        try:
            async with Client(url).asked("/health") as answer:
                if answer.status == 200:
                    return
        except (OSError, Broken, asyncio.IncompleteReadError):
            pass
        await asyncio.sleep(0.1)
    raise SystemExit(f"the server is not ready after {READY:.0f} s:\n{log.read_text()[-LOG:]}")


def measured(label: str, url: str, args: argparse.Namespace, vocabulary: int) -> Iterator[tuple[str, ...]]:
    warm = requests(math.inf, 0, args.warm, vocabulary, args.scale, args.seed + 1)
    [fresh] = share((url, [Request(0.0, list(range(100, 612)), 2)], time.time()))
    print(
        f"{label}: first token of a fresh server {1e3 * fresh.first:.1f} ms"
        if fresh
        else f"{label}: its first request failed",
        flush=True,
    )
    load(url, warm, args.processes)
    for rate in args.rates:
        yield row(
            label,
            rate,
            *load(url, requests(rate, args.window, args.burst, vocabulary, args.scale, args.seed), args.processes),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama8b")
    parser.add_argument(
        "--server",
        action="append",
        metavar="LABEL=COMMAND",
        help="with {model} and {port}; ours without any; may be repeated",
    )
    parser.add_argument("--rates", type=lambda text: [float(rate) for rate in text.split(",")], default="4,8,16,32,inf")
    parser.add_argument("--window", type=float, default=25, help="seconds of sending at each rate")
    parser.add_argument("--burst", type=int, default=1000, help="requests of the rate inf")
    parser.add_argument("--warm", type=int, default=100, help="requests before, which are not counted")
    parser.add_argument("--scale", type=float, default=1.0, help="of all lengths; medians are 512 in and 128 out")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args(arguments)
    shape, rows = shape_of(args.shape), [HEADER]
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / shape.name, shape)
        for _ in range(args.rounds):
            for label, _, command in (server.partition("=") for server in args.server or [OURS]):
                with running(command, model, Path(folder) / "log") as (url, seconds):
                    print(f"{label}: ready after {seconds:.1f} s", flush=True)
                    for found in measured(label, url, args, shape.vocab):
                        print("  ".join(found), flush=True)
                        rows.append(found)
                        if args.out:
                            args.out.write_text(_table(rows))
    print(_table(rows))


def _table(rows: list[Any]) -> str:
    return text_table(rows[0], rows[1:])


if __name__ == "__main__":
    main()
