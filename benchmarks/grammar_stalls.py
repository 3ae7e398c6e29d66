"""How long others wait for hostile grammars: while they are compiled, and in an engine that decodes for both.

    python benchmarks/grammar_stalls.py --vocab tekken
    python benchmarks/grammar_stalls.py --requests 10000

The first compiles each of a list and works out its first masks, as servers do it. A thread that wants to run twice a
millisecond notes its longest pause: it represents the loop that decodes for others.

The second has the bundled model write plain texts, free ones and some by an ordinary schema, alone and next to so many
random hostile requests (`tests/cpu/hostile_requests.py`), which two threads have compiled as in the server, in a
separate process. It prints the intervals between the tokens of the plain ones. A control runs the same next to as many
requests without grammars, which shows the part of the model and the machine.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any

from grammar_vocabularies import load

from sgl.grammars import GrammarError, Vocabulary, compile_json_schema

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "grammars"))
SWITCH_INTERVAL = 0.0001  # seconds; the engine's, while it works


class Ticker:
    """The longest pause, in milliseconds, of a thread that sleeps for half a millisecond again and again."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._going = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last = time.perf_counter()
        while self._going:
            time.sleep(0.0005)
            now = time.perf_counter()
            self.longest, last = max(self.longest, (now - last) * 1e3), now

    def stop(self) -> None:
        self._going = False
        self._thread.join()


def prepare(schema: Any, vocabulary: Vocabulary) -> str:
    try:
        return f"{compile_json_schema(schema, vocabulary).prepared().memory >> 20} MB"
    except GrammarError as error:
        return f"refused: {error}"[:90]


def compiling(vocab: str) -> None:
    from test_grammar_hostile_schemas import HOSTILE

    loaded = load(vocab)
    vocabulary = Vocabulary.from_bytes([b""] * loaded.n_special + loaded.tokens, [loaded.eos], range(loaded.n_special))
    compile_json_schema({"type": "object"}, vocabulary).prepared()
    gc.collect()
    gc.freeze()  # as the engine has it, which collects between its steps
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL)
    for name, schema in HOSTILE.items():
        results: list[str] = []
        worker = threading.Thread(
            target=lambda schema=schema, results=results: results.append(prepare(schema, vocabulary))
        )
        ticker, started = Ticker(), time.perf_counter()
        worker.start()
        worker.join()
        seconds = time.perf_counter() - started
        ticker.stop()
        print(f"{name:26} {seconds * 1e3:6.0f} ms, longest pause {ticker.longest:5.1f} ms  {results[0]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", default="nano", help="nano, tekken, or a file")
    parser.add_argument(
        "--requests", type=int, default=0, help="hostile requests next to plain ones in an engine; 0: only compile"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="compile in the engine's process instead of a separate one")
    options = parser.parse_args()
    if options.requests:
        from grammar_beside import measure_next_to_hostile_requests

        measure_next_to_hostile_requests(options.requests, options.seed, not options.here)
    else:
        compiling(options.vocab)


if __name__ == "__main__":
    main()
