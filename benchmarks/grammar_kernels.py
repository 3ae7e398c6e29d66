"""Constrained decoding on a GPU: what masks, moves and new rows cost inside a CUDA graph, and how often the host steps
in.

    python benchmarks/grammar_kernels.py [--vocab tekken|FILE] [--files FILE.jsonl.gz] [--count 64]

Times are medians over replays of graphs that hold the calls twenty times, by CUDA events. The share of the roofline is
the bytes that must move (logits forbidden, mask rows read) over the time, against a large copy in the same run; what
fits in the L2 cache can be above 100 %, as in a real step, where the logits have just been written; `fill_` is torch's
own store of -inf to all logits.

The last table follows real schemas side by side, a valid text each, twice: how often the host had to step in, and what
that took (`sync_misses`, its wait for the device included), a token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from common import machine, table
from grammar_cases import Case, schema_files
from grammar_vocabularies import BenchVocabulary, load

from sgl.grammars import Grammar, GrammarError, Matcher, Vocabulary, compile_json_schema
from sgl.grammars.device import DevicePool
from sgl.grammars.device.device_state_codes import ENDED, FIXED_ROWS, NO_ROW, NO_TOKEN

FILES = Path(__file__).parents[2] / "shared" / "data" / "jsonschemabench-dev.jsonl.gz"
BATCHES = (1, 8, 64, 256)
CALLS, REPLAYS = 20, 30


def wrapped(bench: BenchVocabulary) -> Vocabulary:
    """A vocabulary that has compiled nothing yet."""
    return Vocabulary.from_bytes([b""] * bench.n_special + bench.tokens, [bench.eos])


def graph_us(work: Callable[[], Any]) -> float:
    """Microseconds of one call inside a captured graph."""
    for _ in range(3):
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    graph.replay()
    return statistics.median(_event_us(graph.replay) for _ in range(REPLAYS)) / CALLS


def _event_us(work: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


def copy_bandwidth() -> float:
    """Bytes per microsecond of a copy of 4 GB, read and written."""
    source = torch.randint(0, 255, (1 << 32,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / statistics.median(_event_us(lambda: target.copy_(source)) for _ in range(9))


def kernel_us(work: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of each kernel of a call, by the profiler."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(CALLS):
            work()
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / CALLS for event in profile.key_averages()}


def measure_masks(pool: DevicePool, text: np.ndarray, ceiling: float) -> None:
    rng = np.random.default_rng(0)
    words = pool.tables.masks.shape[1]
    kinds = {
        "10 tokens allowed": np.bincount(rng.integers(0, words, 10), minlength=words),
        "half allowed": rng.integers(-(2**31), 2**31, words),
        "text of a string": text,
    }
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for name, mask in kinds.items():
            pool.tables.masks.copy_(torch.from_numpy(mask.astype(np.int32)).expand_as(pool.tables.masks))
            forbidden = 32 * words - int(np.unpackbits(mask.astype(np.int32).view(np.uint8)).sum())
            for batch in BATCHES:
                rows.append((*_one_mask(pool, dtype, batch, forbidden, ceiling), name))
    head = ("dtype", "batch", "us", "must move MB", "of the roofline %", "fill_ us", "mask")
    table(head, rows)


def _one_mask(pool: DevicePool, dtype: torch.dtype, batch: int, forbidden: int, ceiling: float) -> tuple[Any, ...]:
    words = pool.tables.masks.shape[1]
    logits = torch.randn(batch, 32 * words, device="cuda").to(dtype)
    rows = torch.arange(2, 2 + batch, dtype=torch.int32, device="cuda")
    took = graph_us(lambda: pool.tables.apply(logits, rows))
    moved = batch * (forbidden * dtype.itemsize + 4 * words)
    whole = graph_us(lambda: logits.fill_(-torch.inf))
    return str(dtype)[6:], batch, took, moved / 1e6, 100 * moved / took / ceiling, whole


def strings(vocabulary: Vocabulary, count: int) -> list[Grammar]:
    """Objects with one string each; every grammar has its own states."""
    schemas = ({"type": "object", "properties": {f"k{i}": {"type": "string"}}} for i in range(count))
    schemas = ({**schema, "required": list(schema["properties"]), "additionalProperties": False} for schema in schemas)
    return [compile_json_schema(schema, vocabulary) for schema in schemas]


def inside(grammar: Grammar, index: int, vocabulary: BenchVocabulary) -> Matcher:
    """A matcher inside the string."""
    matcher = grammar.matcher()
    for token in vocabulary.encode(f'{{"k{index}": "a'):
        assert matcher.accept(token)
    return matcher


def full_pool(vocabulary: Vocabulary, matchers: list[Matcher]) -> DevicePool:
    """A pool of these sequences and of all that they lead to."""
    pool = DevicePool(vocabulary, "cuda", slots=len(matchers), most_rows=max(1024, 4 * len(matchers)))
    pool.assign(dict(enumerate(matchers)))
    while pool.grow(1000):
        pass
    pool.tables.forget_rows()
    pool.advance(pool._still)
    assert not pool.misses.any(), "the device lacks states"
    return pool


def check_rows(pool: DevicePool, matchers: list[Matcher]) -> None:
    found = pool.tables.masks[pool.rows[: len(matchers)].long()].cpu().numpy()
    assert np.array_equal(found, np.stack([matcher.mask() for matcher in matchers]))


def measure_steps(bench: BenchVocabulary, vocabulary: Vocabulary) -> None:
    """A step whose rows are known, and one that works out a new row for every sequence."""
    grammars = strings(vocabulary, max(BATCHES))
    rows = []
    for batch in BATCHES:
        texts = [inside(grammar, i, bench) for i, grammar in enumerate(grammars[:batch])]
        pool = full_pool(vocabulary, texts)
        tokens = torch.tensor([bench.encode(" the")[0]] * batch, device="cuda")
        known = graph_us(lambda pool=pool, tokens=tokens: pool.advance(tokens))
        check_rows(pool, texts)
        text = _fill_us(pool, batch)
        check_rows(pool, texts)
        starts = [grammar.matcher() for grammar in grammars[:batch]]
        pool = full_pool(vocabulary, starts)
        start = _fill_us(pool, batch)
        check_rows(pool, starts)
        rows.append((batch, known, text, start))
    head = ("batch", "advance, rows known: us", "with a new row each, in a string: us", "with a new row each, at {: us")
    table(head, rows)
    for name, took in kernel_us(_filler(pool, batch)).items():
        if took > 0:
            print(f"  {took:8.1f} us  {name[:70]} (batch {batch}, a new row each, at {{)")


def _filler(pool: DevicePool, batch: int, fill: bool = True) -> Callable[[], None]:
    """Forgets all rows, and works out one for every sequence."""
    blank = torch.full_like(pool.tables.rows_of, NO_ROW)
    blank[ENDED] = ENDED
    still = torch.full((batch,), NO_TOKEN, device="cuda")

    def work() -> None:
        pool.tables.rows_of.copy_(blank)
        pool.tables.counters.fill_(FIXED_ROWS)
        if fill:
            pool.advance(still)

    return work


def _fill_us(pool: DevicePool, batch: int) -> float:
    """A step that works out a row for every sequence, less the time of forgetting them."""
    return graph_us(_filler(pool, batch)) - graph_us(_filler(pool, batch, fill=False))


def compiled(cases: list[Case], vocabulary: Vocabulary, count: int) -> list[tuple[Grammar, str]]:
    """Grammars with a valid text each."""
    found = []
    for case in cases:
        text = next((text for text, valid in case.tests if valid), None)
        try:
            if text is not None and len(found) < count:
                found.append((compile_json_schema(case.source, vocabulary), text))
        except GrammarError:
            continue
    return found


def measure_misses(bench: BenchVocabulary, cases: list[Case], count: int, grow: int) -> tuple[Any, ...]:
    """Real schemas side by side, their texts twice: how often the host steps in, and how long that takes."""
    vocabulary = wrapped(bench)
    chosen = compiled(cases, vocabulary, count)
    pool = DevicePool(vocabulary, "cuda", slots=len(chosen), most_states=200_000, most_rows=16_384)
    results = [_walk(pool, bench, chosen, grow) for _ in range(2)]
    states = len(pool._numbers._owners)
    cells = [x for tokens, missed, took in results for x in (100 * missed / tokens, 1e6 * took / tokens)]
    return (len(chosen), results[0][0], grow, *cells, states, pool.tables.counters[1].item())


def _walk(
    pool: DevicePool, bench: BenchVocabulary, chosen: list[tuple[Grammar, str]], grow: int
) -> tuple[int, int, float]:
    matchers = {slot: grammar.matcher() for slot, (grammar, _) in enumerate(chosen)}
    texts = [bench.encode(text) for _, text in chosen]
    pool.assign(matchers)
    tokens = missed = 0
    took = 0.0
    for step in range(max(map(len, texts))):
        column = [text[step] if step < len(text) else NO_TOKEN for text in texts]
        column = [t if t == NO_TOKEN or matchers[i].accept(t) else NO_TOKEN for i, t in enumerate(column)]
        pool.advance(torch.tensor(column, device="cuda"))
        torch.cuda.synchronize()
        started = time.perf_counter()
        missed += len(pool.sync_misses())
        took += time.perf_counter() - started
        tokens += sum(t != NO_TOKEN for t in column)
        pool.grow(grow)
    return tokens, missed, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocab", default="tekken")
    parser.add_argument("--files", type=Path, default=FILES)
    parser.add_argument("--count", type=int, default=64)
    options = parser.parse_args()
    bench = load(options.vocab)
    vocabulary = wrapped(bench)

    print(json.dumps({**machine(), "gpu": torch.cuda.get_device_name(), "triton": triton.__version__}, indent=1))
    ceiling = copy_bandwidth()
    print(f"copy: {ceiling / 1e6:.2f} TB/s; vocabulary {bench.name}, {vocabulary.size} tokens")
    text = inside(strings(vocabulary, 1)[0], 0, bench).mask()
    pool = DevicePool(vocabulary, "cuda")
    print(
        f"tables of {len(pool.tables.finals)} states and {len(pool.tables.masks)} rows: "
        f"{pool.tables.nbytes / 1e6:.0f} MB\n"
    )
    measure_masks(pool, text, ceiling)
    print()
    measure_steps(bench, vocabulary)
    print()
    cases = schema_files(options.files, 4 * options.count)
    head = (
        "schemas",
        "tokens",
        "grown a step",
        "missed %",
        "us a token",
        "again missed %",
        "us a token",
        "states",
        "rows",
    )
    table(head, [measure_misses(bench, cases, options.count, grow) for grow in (0, 64, 1024)])


if __name__ == "__main__":
    main()
