"""What do fork and the prefix cache save? The demo's program against the same prompts one by one, uncached.

python benchmarks/fork.py [--dialogues 32]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from bench_results import keep, table

import sgl
from sgl.runtime.nano import nano_prompts

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from extract_bookings import SAMPLE, track


@sgl.function
def track_one(s, turns, service):
    for message in nano_prompts.dialogue_prefix(turns):
        s += sgl.system(message["content"]) if message["role"] == "system" else sgl.user(message["content"])
    s += sgl.user(nano_prompts.service_question(service)["content"])
    s += sgl.assistant(sgl.select("intent", nano_prompts.intent_names(service)))
    s += sgl.assistant(
        sgl.gen("slots", max_tokens=200, json_schema=nano_prompts.schema_of(nano_prompts.state_fields(service)))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=32)
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    services = {service["service_name"]: service for service in sample["services"]}
    dialogues = sample["dialogues"][: args.dialogues]
    with sgl.Engine(json_options={"whitespace": "spaced"}) as engine:
        track.run(
            dialogues[0]["turns"], [services[n] for n in dialogues[0]["expected"]], backend=engine, temperature=0
        ).sync()
        engine.flush_cache()
        forked, forked_stats, together = with_forks(engine, dialogues, services)
        single, single_stats, alone = one_by_one(engine, dialogues, services)
    same = sum(a == b for a, b in zip(together, alone, strict=True))
    table(
        ("", "seconds", "tokens computed", "from the cache", "forced", "generated"),
        [
            (
                "batch with forks",
                forked,
                forked_stats.computed_tokens,
                forked_stats.cached_tokens,
                forked_stats.forced_tokens,
                forked_stats.generated_tokens,
            ),
            (
                "one by one, no cache",
                single,
                single_stats.computed_tokens,
                single_stats.cached_tokens,
                single_stats.forced_tokens,
                single_stats.generated_tokens,
            ),
        ],
    )
    print(f"\n{single / forked:.1f} times faster; {same} of {len(alone)} answers are equal to the letter")
    keep(
        "fork",
        {
            "dialogues": len(dialogues),
            "seconds": {"forked": forked, "one_by_one": single},
            "ratio": single / forked,
            "equal_answers": [same, len(alone)],
            "forked": forked_stats.as_dict(),
            "one_by_one": single_stats.as_dict(),
        },
    )


def with_forks(engine, dialogues, services):
    items = [{"turns": d["turns"], "services": [services[n] for n in d["expected"]]} for d in dialogues]
    before, started = engine.stats(), time.perf_counter()
    states = track.run_batch(items, backend=engine, temperature=0)
    return time.perf_counter() - started, engine.stats() - before, [text for state in states for text in state["slots"]]


def one_by_one(engine, dialogues, services):
    before, started, texts = engine.stats(), time.perf_counter(), []
    for dialogue in dialogues:
        for name in dialogue["expected"]:
            engine.flush_cache()
            state = track_one.run(dialogue["turns"], services[name], backend=engine, temperature=0)
            texts.append(state["slots"])
            del state
    return time.perf_counter() - started, engine.stats() - before, texts


if __name__ == "__main__":
    main()
