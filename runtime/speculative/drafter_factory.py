"""The drafters of an engine, by its options."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .automaton_drafter import AutomatonDrafter
from .choice_list_drafter import ListDrafter
from .draft_length_control import DraftLengthControl
from .draft_trials import DraftTrials
from .drafter import Drafter
from .grammar_forced_drafter import ForcedDrafter
from .speculation import Speculation
from .suffix_drafter import SuffixDrafter

if TYPE_CHECKING:
    from ..cache import PrefixCache
    from ..sequences.jump_cache import JumpCache
    from .speculation_options import SpeculationOptions


def make_speculation(
    options: SpeculationOptions, jumps: JumpCache, cache: PrefixCache, by_outcome: bool = True, alone: bool = False
) -> Speculation:
    """by_outcome: see `DraftLengthControl`; otherwise stretches of steps tell.

    alone: one thread does all that a step computes, so that its own time is the step's.
    """
    made: dict[str, Drafter] = {
        "forced": ForcedDrafter(jumps),
        "states": AutomatonDrafter(),
        "suffix": SuffixDrafter(),
        "named": ListDrafter(),
    }
    drafters = [made[name] for name in options.drafters]
    control, clock = (
        DraftLengthControl(by_outcome) if options.control else None,
        time.thread_time if alone else time.perf_counter,
    )
    trials = DraftTrials() if options.control and not by_outcome else None
    return Speculation(drafters, cache, control, options.most, options.learn, clock, trials)
