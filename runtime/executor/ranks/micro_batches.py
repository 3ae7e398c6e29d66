"""How a step is cut so that the stages of a pipeline compute different parts of it at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...cache.recurrent_state_slots import SCRAP_SLOT
from ...cache.state_checkpoints import write_slot
from ..logit_rows import pooled_rows

if TYPE_CHECKING:
    from ...sequences.sequence_state import ScheduledWork

FIXED = 16  # tokens whose products take as long as reading the weights does, on a CPU
FIXED_ON_GPUS = 256
MOST = 4  # micro-batches for each stage: with more of them little is won


def micro_batches(tokens: int, stages: int, fixed: int = FIXED) -> int:
    """How many, for the step to be over soonest.

    Stages compute n micro-batches in the time of stages + n - 1, of which each takes what its tokens take and a fixed
    part.
    """
    return min(range(1, max(1, min(tokens, MOST * stages)) + 1), key=lambda n: (stages + n - 1) * (fixed + tokens / n))


def pieces(
    work: list[ScheduledWork], stages: int, fixed: int = FIXED, states: bool = False
) -> list[list[ScheduledWork]]:
    """The work of a step in its order, in micro-batches of about as many tokens; prompts are cut where it falls.

    fixed: see `FIXED`.

    What is summed over tokens stays whole, and so does a sequence with a draft. So does one of models with `states`
    that leaves none, from which a later part could go on.
    """
    tokens = sum(hi - lo for _, lo, hi in work)
    count = 1 if pooled_rows(work) else micro_batches(tokens, stages, fixed)
    return _cut(work, [tokens * number // count for number in range(1, count)], states)


def _cut(work: Iterable[ScheduledWork], places: list[int], states: bool) -> list[list[ScheduledWork]]:
    found: list[list[ScheduledWork]] = [[]]
    done = 0
    for item in work:
        rest, stays = item, item.seq.draft is not None or (states and write_slot(item.seq) == SCRAP_SLOT)
        while places and places[0] <= done + rest.hi - rest.lo and rest.hi > rest.lo:
            count = rest.hi - rest.lo if stays else places[0] - done
            places = [place for place in places if place > done + count]
            if count:
                found[-1].append(rest._replace(hi=rest.lo + count))
            found.append([])
            done, rest = done + count, rest._replace(lo=rest.lo + count)
        if rest.hi > rest.lo:
            found[-1].append(rest)
            done += rest.hi - rest.lo
    return [piece for piece in found if piece]
