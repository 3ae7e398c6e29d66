"""What does a separate process cost the engine, and what does it save when the host is busy?

The same streams, taken in turns by an engine in this process and by one in a separate one: tokens a second, with the
host idle and with a thread of the host computing in Python all the while.

    python benchmarks/process.py [--streams 64] [--tokens 200] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench_results import keep, table

import sgl
from sgl.runtime import SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with sgl.Engine() as here, sgl.Engine(process=True) as there:
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(args.rounds):
            for busy in (False, True):
                for name, engine in (("this", here), ("its own", there)):
                    with host(busy):
                        rates.setdefault((name, "busy" if busy else "idle"), []).append(rate(engine, args))
    medians = {key: statistics.median(found) for key, found in rates.items()}
    table(("process", "host", "tokens/s"), [(*key, value) for key, value in medians.items()])
    ratio = {load: medians["its own", load] / medians["this", load] for load in ("idle", "busy")}
    print(
        f"\n{args.streams} streams: its own process runs at {ratio['idle']:.2f} of the speed, with a busy host at "
        f"{ratio['busy']:.2f}"
    )
    keep(
        "process",
        vars(args) | {"tokens_per_second": {" / ".join(key): value for key, value in medians.items()}, "ratio": ratio},
    )


def rate(engine: Any, args: argparse.Namespace) -> float:
    """Tokens a second of streams that begin together, each piece handed to a callback."""
    params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
    engine.flush_cache()
    pieces: list[Any] = []
    sequences = [engine.open() for _ in range(args.streams)]
    started = time.perf_counter()
    for number, sequence in enumerate(sequences):
        sequence.extend(engine.tokenizer.encode(f"Stream {number} begins here:", special_prefix=True))
    futures = [sequence.generate(params, None, pieces.append) for sequence in sequences]
    tokens = sum(future.result().completion_tokens for future in futures)
    assert sum(piece.finished for piece in pieces) == args.streams
    return tokens / (time.perf_counter() - started)


@contextmanager
def host(busy: bool) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)], daemon=True)
    if busy:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if busy:
            thread.join()


if __name__ == "__main__":
    main()
