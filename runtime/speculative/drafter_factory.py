"""The drafters of an engine, by its options."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .control import Control
from .drafter import Drafter
from .forced import ForcedDrafter
from .named import NamedDrafter
from .speculation import Speculation
from .states import StateDrafter
from .suffix import SuffixDrafter
from .trials import Trials

if TYPE_CHECKING:
    from ..cache import PrefixCache
    from ..sequences.remembered_jumps import RememberedJumps
    from .options import Drafting


def speculation_of(options: Drafting, jumps: RememberedJumps, cache: PrefixCache, by_outcome: bool = True, alone: bool = False) -> Speculation:
    """by_outcome: see `Control`; otherwise stretches of steps tell.  alone: one thread does all that a step computes, so that its own time is the step's."""
    made: dict[str, Drafter] = {"forced": ForcedDrafter(jumps), "states": StateDrafter(), "suffix": SuffixDrafter(), "named": NamedDrafter()}
    drafters = [made[name] for name in options.drafters]
    control, clock = Control(by_outcome) if options.control else None, time.thread_time if alone else time.perf_counter
    trials = Trials() if options.control and not by_outcome else None
    return Speculation(drafters, cache, control, options.most, options.learn, clock, trials)
