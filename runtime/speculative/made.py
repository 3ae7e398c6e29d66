"""The drafters of an engine, by its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .control import Control
from .drafter import Drafter
from .forced import ForcedDrafter
from .speculation import Speculation
from .states import StateDrafter
from .suffix import SuffixDrafter

if TYPE_CHECKING:
    from ..cache import PrefixCache
    from ..sequences.jump import JumpForward
    from .options import Drafting


def speculation_of(options: Drafting, jumps: JumpForward, cache: PrefixCache) -> Speculation:
    made: dict[str, Drafter] = {"forced": ForcedDrafter(jumps), "states": StateDrafter(), "suffix": SuffixDrafter()}
    drafters = [made[name] for name in options.drafters]
    return Speculation(drafters, cache, Control() if options.control else None, options.most, options.learn)
