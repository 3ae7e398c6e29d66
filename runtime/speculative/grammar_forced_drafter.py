"""Drafts of what a grammar forces, where it is sampled: with log-probabilities, or without `jump_forward`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sequences.draft_tokens import DraftSource, DraftTokens
from .drafter import may_build_states

if TYPE_CHECKING:
    from ..sequences.jump_cache import JumpCache
    from ..sequences.ops.generate_op import Generate
    from ..sequences.running_generation import RunningGeneration
    from ..sequences.sequence_state import SequenceState


class ForcedDrafter:
    """The tokens that a jump would append; one that would rewrite the text is none."""

    def __init__(self, jumps: JumpCache) -> None:
        self._jumps = jumps

    def propose(self, seq: SequenceState, op: Generate, most: int) -> DraftTokens | None:
        decoding = op.decoding
        if decoding is None or decoding.matcher is None or (decoding.jumps and decoding.life.may_jump):
            return None  # of a text in which it is already
        if not may_build_states(decoding.matcher):
            return None
        jump = self._jumps.jump(decoding.matcher.copy(), decoding.output, decoding.limit)
        return DraftTokens(jump.token_ids[:most], DraftSource("forced")) if jump is not None and not jump.drop else None

    def learn(self, seq: SequenceState, decoding: RunningGeneration) -> None:
        """A grammar says it all."""

    def forget(self) -> None:
        """Nothing is kept."""
