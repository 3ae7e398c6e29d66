"""Case 7: trees of thought: every program forks three ways, each branch three ways again, then one answer."""

from __future__ import annotations

import time

from gpu_cases import Bench
from gpu_report import Figure

import sgl

WIDTH = 3
TASK = "Task {}: plan the deliveries of a small bakery so that every cafe has its bread before it opens. " * 8


@sgl.function
def tree_of_thought(s, number, tokens):
    s += TASK.format(*[number] * 8)
    branches = s.fork(WIDTH)
    for index, branch in enumerate(branches):
        branch += f"\nPlan {index}:" + sgl.gen("plan", max_tokens=tokens, temperature=1, ignore_eos=True)
        choice_branches = branch.fork(WIDTH)
        for place, choice_branch in enumerate(choice_branches):
            choice_branch += f"\nObjection {place}:" + sgl.gen(
                "objection", max_tokens=tokens, temperature=1, ignore_eos=True
            )
        choice_branches.join()
    branches.join()
    s += "\nAnswer:" + sgl.gen("answer", max_tokens=tokens, temperature=0, ignore_eos=True)


def programs(bench: Bench) -> list[Figure]:
    count, tokens = bench.sizes.programs, bench.sizes.thought
    items = [{"number": i, "tokens": tokens} for i in range(count)]
    tree_of_thought.run_batch(items, backend=bench.engine)
    bench.engine.flush_cache()
    before, started = bench.engine.stats(), time.perf_counter()
    states = tree_of_thought.run_batch(items, backend=bench.engine)
    seconds, spent = time.perf_counter() - started, bench.engine.stats() - before
    for state in states:
        state.text()  # raises what the program raised
    what = f"tree of thought, {count} programs forking {WIDTH}x{WIDTH}, {tokens} tokens a thought"
    note = (
        f"{spent.generated_tokens:,} tokens generated in {spent.steps:,} steps, {100 * spent.hit_rate:.0f}% of "
        "the prompts' tokens from the cache"
    )
    return [
        Figure("7", what, seconds, "s", note=note, more={"stats": spent.as_dict()}),
        Figure("7", "the same", spent.generated_tokens / seconds, "tok/s"),
    ]
