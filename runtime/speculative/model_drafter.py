"""Drafts of a model: its likeliest tokens, one after the other, for all sequences of a step at once."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..sequences.draft_tokens import DraftTokens
from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import ScheduledWork
from .draft_model_state import DraftModelStates
from .draft_model_timing import SOURCE, DraftModelTiming
from .drafter import follow, may_build_states

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..sequences.sequence_state import SequenceState

NEAR = 16  # tokens that a shadow may lack where its first token is drafted: they are computed with that
# tokens a step that shadows catch up, at least; otherwise as many as it has of prompts itself, or the one before had
LEAST = 32


class DraftRunner(Protocol):
    """Computes the draft model's steps: see `executor.runner.EagerRunner`."""

    def on_device(self) -> AbstractContextManager[object]: ...

    def forward(self, work: list[ScheduledWork]) -> Tensor | None: ...

    def release(self) -> None: ...

    def restore(self, attention: Any) -> None: ...

    def close(self) -> None: ...


class DraftCounts(Protocol):
    """Where it says what it did: see `loop.metrics.Stats`."""

    draft_seconds: float
    draft_computed_tokens: int
    draft_pages_total: int
    draft_pages_free: int


@dataclass(slots=True)
class DraftChain:
    """What is drafted for one sequence.

    most: tokens.  builds: the grammar may get new states for it.  ends: tokens that are not drafted, as nothing follows
    them.
    """

    draft_state: SequenceState
    most: int
    matcher: Matcher | None
    builds: bool
    ends: frozenset[int]
    tokens: list[int] = field(default_factory=list)

    def take(self, token: int, logits: Tensor, ids: Tensor | None) -> bool:
        """Go on with the likeliest token, or with that of those that the grammar allows; False: here it ends.

        logits: [tokens].
        """
        if self.matcher is not None:
            allowed = self._allowed(token, logits, ids, self.matcher)
            if allowed is None or self.matcher.finished:
                return False
            token = allowed
        if token in self.ends:
            return False
        self.tokens.append(token)
        self.draft_state.tokens.append(token)
        return len(self.tokens) < self.most

    def _allowed(self, token: int, logits: Tensor, ids: Tensor | None, matcher: Matcher) -> int | None:
        """The matcher goes on by the token, or by the likeliest allowed one; None: it would have to learn which those
        are.
        """
        if follow(matcher, token, self.builds):
            return token
        if not self.builds and matcher.known_mask() is None:
            return None
        token = _best_allowed(logits, ids, matcher)
        return token if follow(matcher, token, self.builds) else None


class ModelDrafter:
    """Only the scheduler thread calls this.

    A round has as many steps of the draft model as tokens are drafted, whatever the number of sequences. A sequence of
    which the draft model lacks more than a few tokens is not drafted for. It catches up first, with as many tokens a
    step as are read of prompts.

    vocab_size: of the tokens that can be drafted.  context: longest text that the draft model can read.  ids: what its
        tokens are in the target's vocabulary, int64 [tokens]; None: the same.
    """

    def __init__(
        self,
        runner: DraftRunner,
        draft_states: DraftModelStates,
        timing: DraftModelTiming,
        counts: DraftCounts,
        vocab_size: int,
        context: int,
        ids: Tensor | None = None,
    ) -> None:
        self.runner, self.draft_states, self.timing, self.counts = runner, draft_states, timing, counts
        self._vocab_size, self._context, self._ids = vocab_size, context, ids
        self._read = 0  # tokens of prompts in the newest step

    def propose(
        self, work: dict[SequenceState, ScheduledWork], wanting: dict[SequenceState, tuple[Generate, int]]
    ) -> dict[SequenceState, DraftTokens]:
        """Drafts for those of a step that want one, with how many tokens at most, as far as it pays.

        Before that what they lack is computed.
        """
        self.draft_states.begin()
        reads, self._read = self._read, sum(item.hi - item.lo for item in work.values() if item.hi - item.lo > 1)
        length = self.timing.length(max(1, len(work)), max(1, len(wanting)))
        if not length:
            self._tell_pages()
            return {}
        began = time.perf_counter()
        with self.runner.on_device():
            draft_states = self._follow(work, wanting)
            self._catch_up(list(draft_states.values()), max(LEAST, reads, self._read))
            caught_up = time.perf_counter() - began
            ready = [owner for owner in wanting if owner in draft_states and self.draft_states.reach(owner)]
            chains = {
                owner: chain for owner in ready if (chain := self._chain(draft_states[owner], *wanting[owner], length))
            }
            self._draft_tokens(list(chains.values()))
        self._account(began, caught_up, bool(chains))
        return {owner: DraftTokens(chain.tokens, SOURCE) for owner, chain in chains.items() if chain.tokens}

    def forget(self) -> None:
        """Nothing of any text is kept."""
        self.draft_states.forget()
        self._tell_pages()

    def _follow(
        self, work: dict[SequenceState, ScheduledWork], wanting: dict[SequenceState, tuple[Generate, int]]
    ) -> dict[SequenceState, SequenceState]:
        """The shadows of what is generated, or its prompt computed, in this step.

        Where drafts are only probed, one of them.
        """
        owners = [
            seq
            for seq in work
            if 1 < len(seq) < self._context and isinstance(op := seq.ops[0], Generate) and op.params.speculation
        ]
        if self.timing.probing:
            owners = [seq for seq in owners if seq in wanting][:1]
        return {owner: draft_state for owner in owners if (draft_state := self.draft_states.follow(owner)) is not None}

    def _catch_up(self, draft_states: list[SequenceState], budget: int) -> None:
        """Compute up to so many tokens of those that lack more than a few, the nearest first."""
        work: list[ScheduledWork] = []
        lacking = [draft_state for draft_state in draft_states if len(draft_state) - draft_state.computed > NEAR]
        for draft_state in lacking:
            self.draft_states.rejoin(draft_state)
        for draft_state in sorted(lacking, key=lambda each: len(each) - each.computed):
            count = min(budget, len(draft_state) - 1 - draft_state.computed)
            if count > 0 and self.draft_states.grow(draft_state, draft_state.computed + count):
                work.append(ScheduledWork(draft_state, draft_state.computed, draft_state.computed + count))
                budget -= count
        self._compute(work)
        for draft_state, _, hi in work:
            if len(draft_state) - hi <= NEAR:
                self.draft_states.publish(draft_state)

    def _chain(self, draft_state: SequenceState, op: Generate, most: int, length: int) -> DraftChain | None:
        """None: too much is lacking, or there is no room for it."""
        assert op.decoding is not None
        most = min(most, length, self._context - len(draft_state))
        near = len(draft_state) - draft_state.computed <= NEAR
        if most < 1 or not near or not self.draft_states.grow(draft_state, len(draft_state) + most - 1):
            return None
        matcher = op.decoding.matcher
        builds = matcher is not None and may_build_states(matcher)
        return DraftChain(
            draft_state, most, None if matcher is None else matcher.copy(), builds, op.decoding.row.end_ids
        )

    def _draft_tokens(self, chains: list[DraftChain]) -> None:
        while chains:
            began = time.perf_counter()
            chains = sorted(chains, key=lambda chain: len(chain.draft_state) - chain.draft_state.computed > 1)
            logits = self._compute(
                [
                    ScheduledWork(chain.draft_state, chain.draft_state.computed, len(chain.draft_state))
                    for chain in chains
                ]
            )
            assert logits is not None
            logits = logits[:, : self._vocab_size]
            best = logits.argmax(1)
            tokens: list[int] = (best if self._ids is None else self._ids[best]).tolist()
            count = len(chains)
            chains = [
                chain
                for chain, token, row in zip(chains, tokens, logits, strict=True)
                if chain.take(token, row, self._ids)
            ]
            self.timing.stepped(count, time.perf_counter() - began)

    def _compute(self, work: list[ScheduledWork]) -> Tensor | None:
        if not work:
            return None
        logits = self.runner.forward(work)
        for draft_state, lo, hi in work:
            self.draft_states.cache.advance(draft_state, hi)
            self.counts.draft_computed_tokens += hi - lo
        return logits

    def _account(self, began: float, caught_up: float, guessed: bool) -> None:
        self.timing.end_draft_round(caught_up)
        if guessed:
            self.timing.probed()
        self._tell_pages()
        self.counts.draft_seconds += time.perf_counter() - began

    def _tell_pages(self) -> None:
        pool = self.draft_states.cache.pool
        self.counts.draft_pages_total, self.counts.draft_pages_free = pool.total, pool.free


def _best_allowed(logits: Tensor, ids: Tensor | None, matcher: Matcher) -> int:
    """The likeliest of the tokens that may come. logits: [tokens].  ids: see `ModelDrafter`."""
    bits = torch.from_numpy(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).bool().to(logits.device)
    tokens = len(logits) if ids is None else int(ids.max()) + 1
    bits = torch.cat([bits, bits.new_zeros(max(0, tokens - len(bits)))])
    allowed = bits[: len(logits)] if ids is None else bits[ids]
    best = logits.masked_fill(~allowed, -torch.inf).argmax()
    return int(best if ids is None else ids[best])
