"""What rank 0 and another rank say to each other: messages by their kinds, and what the first two hold."""

from __future__ import annotations

import signal
from typing import NamedTuple

import torch

from ..ep.expert_parallel_split import ExpertParallelSplit

BEGIN, POOL, STEP, SLEEP, WAKE, COMPILE, REHEARSE = range(7)  # from rank 0
READY = 7  # to it
ASK, TELL = range(8, 10)  # from rank 0: a method of the rank's by its name, and what it is given
UNANSWERED = (STEP, REHEARSE, TELL)
WHERE = signal.SIGUSR1  # a rank writes to stderr where its threads are


class RankStart(NamedTuple):
    """What a rank begins with.

    meeting: see `Ranks`.  whole, rows: see `Split`.  The others: as the engine has settled them.
    """

    rank: int
    ranks: int
    meeting: str
    path: str
    dtype: torch.dtype
    device: torch.device
    threads: int
    context: int | None
    load_format: str
    seed: int | None
    weights: str
    deterministic: bool
    stages: int = 1
    whole: ExpertParallelSplit | None = None
    rows: bool = False


class RankKVOptions(NamedTuple):
    """Of keys and values.

    slots: token slots of the pool; the rest as of `attention_backend`.  states: slots of states, 0 where no layer keeps
    any.
    graphs: steps are replayed as CUDA graphs.  tokens: of a step, at most.
    captured: layers before which rank 0 keeps the states of every token, see `HiddenStateCapture`; None: it keeps none.
    window_slots: of layers that see a window and have separate slots; 0: none has.
    """

    slots: int
    dtype: torch.dtype
    attention: str
    page_size: int
    max_running: int
    context: int
    deterministic: bool
    states: int = 0
    graphs: bool = False
    tokens: int = 0
    captured: tuple[int, ...] | None = None
    window_slots: int = 0
