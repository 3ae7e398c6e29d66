"""What does the server cost, and does it withstand a crowd? Three parts, on the bundled model:

throughput   the same tokens from the engine in this process and through HTTP: whole answers and streams, the engine in
             the server's process and in a separate one. The client runs on the same cores
crowd        200 streams at a time for two minutes: errors, time to first token, gaps between tokens
beside       time to first token of a short request while a 4,000-token prompt is prefilled, by chunks and at once

    python benchmarks/server_load.py [throughput] [crowd] [beside] [--seconds 120] [--streams 200] [--keep]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_results import keep_text
from server_client import DONE, Broken, Client
from server_process import served

SEQUENCES, TOKENS = 64, 128  # of the throughput
ROUNDS = 3
LONG, CONTEXT, CHUNK = 4000, 8192, 256  # tokens: the prompt, the model's context, and a step by chunks
NEXT_TO_RUNS = 7
HEAD_START = 0.03  # seconds by which the long prompt comes first
ANY_WORD = ("city hotel table night train river bridge garden letter window summer winter morning paper music").split()  # noqa: SIM905
TEXT = "/v1/completions"
EXACT = {"temperature": 0, "ignore_eos": True}


def prompts(count: int, words: int, seed: int) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices(ANY_WORD, k=words)) for _ in range(count)]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def milliseconds(values: list[float]) -> str:
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    return f"p50 {1000 * p50:,.0f} ms, p99 {1000 * p99:,.0f} ms, longest {1000 * max(values, default=0):,.0f} ms"


# one answer


@dataclass
class Heard:
    """One stream: when its pieces came, in seconds since it was asked for."""

    first: float = 0.0
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0


async def listen(client: Client, prompt: str | list[int], tokens: int) -> Heard:
    """Raises Broken for anything but a whole stream."""
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}, **EXACT}
    heard, asked = Heard(), time.perf_counter()
    last = asked
    async with client.asked(TEXT, body) as answer:
        if answer.status != 200:
            raise Broken(f"status {answer.status}: {(await answer.body())[:200]!r}")
        async for event in answer.events():
            now = time.perf_counter()
            if event != DONE and '"choices":[{' in event:
                heard.gaps += [now - last] if heard.first else []
                heard.first, last = heard.first or now - asked, now
            elif event != DONE:
                found = json.loads(event)
                if "error" in found:
                    raise Broken(str(found["error"]))
                heard.tokens = found["usage"]["completion_tokens"]
    return heard


async def whole(client: Client, prompt: str, tokens: int) -> int:
    """Tokens of an answer that is no stream."""
    async with client.asked(TEXT, {"prompt": prompt, "max_tokens": tokens, **EXACT}) as answer:
        return (await answer.json())["usage"]["completion_tokens"]


# throughput


def engine_rate(asked: list[str]) -> float:
    """Tokens/s of the engine in this process, best of the rounds."""
    import sgl

    with sgl.Engine() as engine:
        return max(_timed(lambda: _generate(engine, asked)) for _ in range(ROUNDS + 1))


def _generate(engine: Any, asked: list[str]) -> int:
    engine.flush_cache()
    return sum(found.completion_tokens for found in engine.generate(asked, max_tokens=TOKENS, **EXACT))


def _timed(work: Callable[[], int]) -> float:
    started = time.perf_counter()
    return work() / (time.perf_counter() - started)


def server_rates(asked: list[str], *words: str) -> dict[str, float]:
    """Tokens/s through HTTP, best of the rounds, of whole answers and of streams."""

    async def streamed(client: Client, prompt: str, tokens: int) -> int:
        return (await listen(client, prompt, tokens)).tokens

    with served(*words) as server:
        client = Client(server.url)
        kinds = {"whole": whole, "streams": streamed}
        return {
            name: max(_timed(lambda one=one: asyncio.run(_all(client, one, asked))) for _ in range(ROUNDS + 1))
            for name, one in kinds.items()
        }


async def _all(client: Client, one: Callable[[Client, str, int], Coroutine[Any, Any, int]], asked: list[str]) -> int:
    async with client.asked("/flush_cache", b"") as answer:
        await answer.body()
    return sum(await asyncio.gather(*[one(client, prompt, TOKENS) for prompt in asked]))


def throughput(options: argparse.Namespace) -> str:
    asked = prompts(SEQUENCES, 20, 1)
    before = engine_rate(asked)
    same, own = server_rates(asked), server_rates(asked, "process=true")
    after = engine_rate(asked)
    engine = max(before, after)
    lines = [f"throughput: {SEQUENCES} sequences of {TOKENS} tokens, tokens/s, best of {ROUNDS + 1}"]
    lines += [f"  {'engine in this process':38} {engine:8,.0f}        (before {before:,.0f}, after {after:,.0f})"]
    for name, rates in (("engine in the server's process", same), ("engine in a separate process", own)):
        lines += [f"  {name + ', ' + kind:38} {rate:8,.0f}  {rate / engine:6.1%}" for kind, rate in rates.items()]
    return "\n".join(lines)


# a crowd


def crowd(options: argparse.Namespace) -> str:
    reports = []
    for name, words in (("the server's process", []), ("a separate process", ["process=true"])):
        with served("--max-queue", str(2 * options.streams), *words) as server:
            reports.append(asyncio.run(_crowd(Client(server.url), options, name)))
    return "\n".join(reports)


async def _crowd(client: Client, options: argparse.Namespace, name: str) -> str:
    heard: list[Heard] = []
    failed: Counter[str] = Counter()
    started = time.perf_counter()

    async def stay(seed: int) -> None:
        choose = random.Random(seed)
        while time.perf_counter() - started < options.seconds:
            prompt = " ".join(choose.choices(ANY_WORD, k=choose.randint(5, 60)))
            try:
                heard.append(await asyncio.wait_for(listen(client, prompt, choose.randint(32, 128)), 120))
            except (Broken, OSError, TimeoutError, ValueError, LookupError) as error:
                failed[f"{type(error).__name__}: {str(error)[:150]}"] += 1

    await asyncio.gather(*[stay(seed) for seed in range(options.streams)])
    took = time.perf_counter() - started
    gaps = [gap for one in heard for gap in one.gaps]
    return "\n".join(
        [
            f"crowd: {options.streams} streams at a time, 32 to 128 tokens each, the engine in {name}",
            f"  {len(heard):,} streams in {took:.0f} s, {sum(one.tokens for one in heard) / took:,.0f} tokens/s; "
            f"errors: {dict(failed) or 'none'}",
            f"  time to first token: {milliseconds([one.first for one in heard])}",
            f"  between two pieces:  {milliseconds(gaps)}",
        ]
    )


# next to a long prompt


def next_to_a_long_prompt(options: argparse.Namespace) -> str:
    lines = [
        f"next to a long one: time to first token of a short request {1000 * HEAD_START:.0f} ms after a prompt of "
        f"{LONG} tokens"
    ]
    for name, step in ((f"by chunks (step_tokens={CHUNK})", CHUNK), (f"at once (step_tokens={CONTEXT})", CONTEXT)):
        with longer_model() as model, served(model, "kv_tokens=32768", f"step_tokens={step}") as server:
            alone, meanwhile, long = asyncio.run(_next_to_a_long_prompt(Client(server.url)))
        lines += [
            f"  {name:32} median {1000 * percentile(meanwhile, 0.5):,.0f} ms, longest {1000 * max(meanwhile):,.0f} ms; "
            f"alone {1000 * percentile(alone, 0.5):,.0f} ms; the long one {1000 * percentile(long, 0.5):,.0f} ms"
        ]
    return "\n".join(lines)


@contextmanager
def longer_model() -> Iterator[str]:
    """The bundled model in a folder that says it takes CONTEXT tokens: slow or
    fast, what it then writes is no matter.
    """
    from sgl.runtime.engine import NANO

    with tempfile.TemporaryDirectory() as folder:
        for path in NANO.iterdir():
            (Path(folder) / path.name).symlink_to(path)
        config = Path(folder, "config.json")
        text = json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}
        config.unlink()
        config.write_text(json.dumps(text))
        yield folder


async def _next_to_a_long_prompt(client: Client) -> tuple[list[float], list[float], list[float]]:
    alone, meanwhile, long = [], [], []
    choose = random.Random(1)
    for _ in range(NEXT_TO_RUNS + 1):
        ids = [choose.randrange(300, 8000) for _ in range(LONG)]
        short = [[choose.randrange(300, 8000) for _ in range(20)] for _ in range(2)]
        alone.append((await listen(client, short[0], 1)).first)
        prefill = asyncio.ensure_future(listen(client, ids, 1))
        await asyncio.sleep(HEAD_START)
        meanwhile.append((await listen(client, short[1], 1)).first)
        long.append((await prefill).first)
    return alone[1:], meanwhile[1:], long[1:]  # the first ones warm up


PARTS = {"throughput": throughput, "crowd": crowd, "beside": next_to_a_long_prompt}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=120.0, help="that the crowd stays")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--note", default="", help="a line for the kept file, such as what else ran on the machine")
    parser.add_argument("--keep", action="store_true", help="write results/server.txt")
    options = parser.parse_args()
    if wrong := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    reports = [options.note] if options.note else []
    for name in options.parts or PARTS:
        reports.append(PARTS[name](options))
        print(reports[-1], flush=True)
    if options.keep:
        keep_text("server", "\n\n".join(reports) + "\n")


if __name__ == "__main__":
    main()
