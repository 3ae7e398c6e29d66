"""Does the server hold out? Thousands of mixed requests against a real `sgl serve`, with faults meanwhile.

Chats, texts, native calls, schemas, regexes, tools, embeddings, streams, aborts, clients that leave or dawdle,
malformed
bodies, wrong keys, huge prompts; a KV pool that is too small for all of them, so that sequences are preempted; the
engine's process killed and stopped. It ends with counts of what came of each kind, and with status 1 if a request got
no
answer in time or a wrong one, or if pages, memory, threads or processes are left.

    python benchmarks/soak.py [--seconds 120] [--requests N] [--at-once 24] [--kill 20] [--stop 5] [--in-process]
    [NAME=VALUE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from server_client import Broken, Client
from server_process import Account, Served, served
from soak_faults import Faults
from soak_requests import UNEXPECTED, Requests
from tqdm import tqdm

KEYS = ("first-key", "second-key")
SERVER_SECONDS, CLIENT_SECONDS = 30.0, 60.0  # the server's limit of a request, and when it counts as hung
MOST_BODY = 1_000_000
# a small pool, so that sequences are preempted; in bfloat16 oneDNN keeps code for every number of rows that it has met,
# which grows for thousands of requests and would hide a leak
ENGINE = ("kv_tokens=3000", "threads=1", "dtype=float32")
QUIET_SECONDS = 20.0
ENDED_STATUS = 0
MEMORY_MORE, MEMORY_SHARE = (
    64 * 2**20,
    1.25,
)  # what the server may hold at the end beyond the baseline, and in its share
THREADS_MORE = (
    min(32, (os.cpu_count() or 1) + 4) + 6
)  # pools open theirs by need: asyncio's, the server's and its engine's
FILES_MORE = 4
FAILED = ("503", "in stream")  # an engine that died, reported by a status or in a stream


@dataclass
class Tally:
    """What came of the requests, by kind; what should not have been."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    failed: list[tuple[float, float]] = field(default_factory=list)  # begin and end of those that a fault ended

    def add(self, kind: str, outcome: str, started: float) -> None:
        ended = time.monotonic()
        self.counts[kind, outcome] += 1
        self.slowest = max(self.slowest, ended - started)
        if outcome in FAILED and kind != "reads slowly":
            self.failed.append((started, ended))

    def failed_after(self, kills: list[float]) -> float:
        """The longest that one who waited when the engine was killed waited for the error, in seconds."""
        return max((end - kill for start, end in self.failed for kill in kills if start < kill < end), default=0.0)

    @property
    def total(self) -> int:
        return self.counts.total()

    def show(self) -> None:
        outcomes = sorted({outcome for _, outcome in self.counts}, key=lambda outcome: (outcome.isdecimal(), outcome))
        print(f"\n{'':16}" + "".join(f"{outcome:>11}" for outcome in outcomes))
        for kind in sorted({kind for kind, _ in self.counts}):
            print(f"{kind:16}" + "".join(f"{self.counts[kind, outcome] or '':>11}" for outcome in outcomes))
        print(
            f"{'all':16}"
            + "".join(f"{sum(n for (_, o), n in self.counts.items() if o == outcome):>11,}" for outcome in outcomes)
        )


async def soak(server: Served, options: argparse.Namespace, tally: Tally, faults: Faults | None) -> float:
    """Keeps `at_once` requests going until time or number are over. Returns the seconds that it took."""
    started = time.monotonic()
    numbers = itertools.count()
    with tqdm(
        total=options.requests or options.seconds, unit="request" if options.requests else "s", disable=None
    ) as bar:

        async def work(requests: Requests) -> None:
            while next(numbers) < (options.requests or 10**9) and time.monotonic() - started < options.seconds:
                await _one(requests, tally)
                bar.update(1 if options.requests else round(time.monotonic() - started, 1) - bar.n)
                bar.set_postfix(requests=tally.total, wrong=len(tally.wrong), refresh=False)

        faulty = faults is not None
        injector = asyncio.ensure_future(faults.run()) if faults else None
        clients = [Client(server.url, KEYS[i % len(KEYS)]) for i in range(options.at_once)]
        workers = [
            work(Requests(client, options.seed * 1000 + i, MOST_BODY, faulty)) for i, client in enumerate(clients)
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            if injector:
                injector.cancel()
                await asyncio.gather(injector, return_exceptions=True)
    return time.monotonic() - started


async def _one(requests: Requests, tally: Tally) -> None:
    kind, started = requests.pick(), time.monotonic()
    try:
        async with asyncio.timeout(CLIENT_SECONDS):
            outcome = await requests.make(kind)
    except TimeoutError:
        outcome = "HUNG"
        tally.wrong.append(f"{kind}: no answer in {CLIENT_SECONDS:g} s")
    except UNEXPECTED as error:
        outcome = "LOST" if isinstance(error, Broken | OSError) else "WRONG"
        tally.wrong.append(f"{kind}: {type(error).__name__}: {str(error)[:400]}")
    tally.add(kind, outcome, started)


# before and after


async def quiet(client: Client) -> dict[str, Any]:
    """The engine's counters once nothing runs and no page is held but by the cache.

    Raises Broken where that does not come.
    """
    end = time.monotonic() + QUIET_SECONDS
    while True:
        stats: dict[str, Any] = (await client.get("/server_info")).get("stats", {})
        if (
            stats
            and stats["running"] == stats["waiting"] == 0
            and stats["pages_free"] + stats["pages_cached"] == stats["pages_total"]
        ):
            return stats
        if time.monotonic() > end:
            raise Broken(f"pages or sequences are left: {stats}")
        await asyncio.sleep(0.2)


def leaks(before: Account, after: Account) -> list[str]:
    """What the server holds more of than at the baseline, beyond what an allocator and pools of threads keep."""
    limits = {
        "memory": max(before.memory + MEMORY_MORE, before.memory * MEMORY_SHARE),
        "threads": before.threads + THREADS_MORE,
        "files": before.files + FILES_MORE,
        "processes": before.processes,
    }
    return [
        f"{name}: {getattr(after, name):,} after {getattr(before, name):,}"
        for name in limits
        if getattr(after, name) > limits[name]
    ]


async def drive(server: Served, options: argparse.Namespace, tally: Tally) -> list[str]:
    """Warm up, note the baseline, soak, look again. Returns what is wrong."""
    client = Client(server.url, KEYS[0])
    warm = argparse.Namespace(
        **{**vars(options), "requests": options.warm, "seconds": QUIET_SECONDS * 3, "seed": options.seed + 1}
    )
    await soak(server, warm, tally, None)
    await quiet(client)
    before = server.account()
    faults = Faults(server, client, options.seed, options.kill, options.stop) if options.kill or options.stop else None
    took = await soak(server, options, tally, faults)
    try:
        stats = await quiet(client)
    except Broken as error:
        return [str(error)]
    after = server.account()
    tally.show()
    print(f"\n{tally.total:,} requests, {tally.total / took:.0f} a second; slowest {tally.slowest:.1f} s")
    if faults:
        failed = f"; waiting requests failed within {tally.failed_after(faults.kills):.1f} s" if faults.kills else ""
        back = f"; back after {min(faults.back):.1f} to {max(faults.back):.1f} s{failed}" if faults.back else failed
        print(f"faults: {', '.join(f'{count} × {name}' for name, count in faults.done.items()) or 'none came'}{back}")
    print(
        f"engine since its last start: {stats['preemptions']} preemptions, {stats['aborts']} aborts, "
        f"{stats['generations']} texts"
    )
    print(f"before: {before}\nafter:  {after}")
    return leaks(before, after) + [name for name in ("engine not back",) if faults and faults.done[name]]


def main() -> int:
    options = _options()
    tally = Tally()
    process = [] if options.in_process else ["process=true"]
    limits = ["--request-timeout", str(SERVER_SECONDS), "--max-body-bytes", str(MOST_BODY), "--max-choices", "8"]
    keys = [word for key in KEYS for word in ("--api-key", key)]
    with served(*limits, *keys, *ENGINE, *process, *options.words) as server:
        wrong = asyncio.run(drive(server, options, tally))
        status = server.end()
        wrong += [f"it ended with status {status}"] * (status != ENDED_STATUS)
        wrong += [f"process {pid} is left" for pid in server.left()]
        wrong += [f"the log holds a traceback:\n{server.log()[-3000:]}"] * ("Traceback" in server.log())
    for line in [*dict.fromkeys(tally.wrong), *wrong]:
        print(f"WRONG  {line}")
    print("held out" if not tally.wrong and not wrong else f"{len(tally.wrong) + len(wrong)} things are wrong")
    return 1 if tally.wrong or wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="more options of sgl.Engine")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--requests", type=int, default=0, help="end after so many (default: after the time)")
    parser.add_argument("--at-once", type=int, default=24, help="requests at a time")
    parser.add_argument(
        "--kill", type=float, default=20.0, help="seconds between two kills of the engine's process; 0: none"
    )
    parser.add_argument("--stop", type=float, default=5.0, help="seconds between two pauses of a process; 0: none")
    parser.add_argument("--warm", type=int, default=600, help="requests before the baseline is noted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--in-process", action="store_true", help="the engine in the server's process: it is not killed"
    )
    options = parser.parse_args()
    options.kill = 0.0 if options.in_process else options.kill
    return options


if __name__ == "__main__":
    sys.exit(main())
