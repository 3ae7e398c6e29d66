"""Aspects of reviews in a batch, as an editor sees it.

Checked by mypy, and by pyright where there is one; never run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, assert_type

import sgl

ASPECTS = ["food", "service", "price"]


@sgl.function
def judge(s: sgl.State, review: str) -> None:
    s += sgl.system("You judge reviews.") + sgl.user(review)
    forks = s.fork(len(ASPECTS))
    for aspect, fork in zip(ASPECTS, forks, strict=True):
        assert_type(fork, sgl.State)
        fork += sgl.assistant(f"The {aspect} is " + sgl.select(aspect, ["good", "bad", "not mentioned"]))
    forks.join()


def first(reviews: list[dict[str, Any]], lazily: bool) -> None:
    assert_type(judge.run_batch(reviews), list[sgl.ProgramState[None]])
    assert_type(judge.run_batch(reviews, num_threads=4, temperature=0), list[sgl.ProgramState[None]])
    assert_type(judge.run_batch(reviews, generator_style=True), Iterator[sgl.ProgramState[None]])
    assert_type(judge.run_batch(reviews, generator_style=lazily), Iterable[Any])
    assert_type(
        judge.run_batch(reviews, generator_style=True, return_exceptions=True),
        Iterator[sgl.ProgramState[None] | Exception],
    )
    assert_type(
        judge.run_batch(reviews, max_tokens=20, backend=sgl.Engine(), budget=100, temperature=0),
        list[sgl.ProgramState[None]],
    )
    judge.run_batch(reviews, temprature=0)  # type: ignore[call-overload]
    for state in judge.run_batch(reviews, return_exceptions=True):
        if isinstance(state, Exception):
            continue
        assert_type(state, sgl.ProgramState[None])
        print({aspect: state[aspect] for aspect in ASPECTS}, state.probs("food"))


async def later(reviews: list[dict[str, Any]]) -> int:
    states = await judge.arun_batch(reviews)
    assert_type(states, list[sgl.ProgramState[None]])
    return len(states)


judge.run()  # error
judge.run_batch([judge.item(text="good")])  # error
