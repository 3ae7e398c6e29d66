"""Case 6: JSON that real-life schemas enforce, against free text of the same batch and length in the same run.

The weights are random, so a constrained text never ends by itself: every text is an array of at least 64 records, cut
by max_tokens. Free and constrained texts are sampled at temperature 1.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from gpu_cases import Bench
from gpu_report import Figure
from gpu_work import Run, generate, middle, prompts, repeated

import sgl
from sgl.grammars import compile_json_schema

SCHEMAS = Path(__file__).parent / "schemas.json"
PROMPT = 64


def records(schema: dict[str, Any]) -> dict[str, Any]:
    """Many of what the schema describes."""
    return {"type": "array", "items": schema, "minItems": 64}


def compiled(engine: sgl.Engine) -> tuple[list[Any], float]:
    """The grammars of the file's schemas, and the seconds that compiling took."""
    started = time.perf_counter()
    schemas = json.loads(SCHEMAS.read_text())
    return [
        compile_json_schema(json.dumps(records(s)), engine.vocabulary) for s in schemas.values()
    ], time.perf_counter() - started


def run_batch(bench: Bench, batch: int, grammars: list[Any] | None) -> Run:
    chosen = [grammars[i % len(grammars)] for i in range(batch)] if grammars else None
    tokens = bench.sizes.constrained_tokens

    def work(seed: int) -> Run:
        return generate(bench.engine, prompts(batch, PROMPT, bench.shape.vocab, seed), tokens, 1.0, chosen)

    return middle(repeated(bench.sizes.runs, work))


def constrained(bench: Bench, label: str) -> list[Figure]:
    """For each batch size the ratio of all tokens/s and of the sampled ones to
    the free text's; `label` says the options.
    """
    grammars, seconds = compiled(bench.engine)
    figures = [Figure("6", f"{label}: compiling {len(grammars)} schemas", seconds, "s")]
    for batch in bench.sizes.batches:
        free, bound = run_batch(bench, batch, None), run_batch(bench, batch, grammars)
        figures.append(ratio(f"{label}, {batch} sequences", free, bound))
    return figures


def ratio(what: str, free: Run, bound: Run) -> Figure:
    sampled = (bound.tokens - bound.forced) / bound.seconds
    note = (
        f"constrained {bound.rate:,.0f} tok/s ({sampled:,.0f} sampled, "
        f"{100 * bound.forced / max(1, bound.tokens):.0f}% forced), "
        f"free {free.rate:,.0f} tok/s"
    )
    more = {
        "constrained": bound.rate,
        "sampled": sampled,
        "forced": bound.forced,
        "tokens": bound.tokens,
        "free": free.rate,
    }
    return Figure(
        "6", f"JSON, {what}: of free text", 100 * bound.rate / free.rate, "%", target=97.0, note=note, more=more
    )
