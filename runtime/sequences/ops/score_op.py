"""Scoring of many continuations at once: what they have in common is computed once."""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from ...cache import Ints
from ...errors import ConfigError
from ..generation import TokenLogprobs
from ..sequence_state import SequenceEngine, SequenceOp, SequenceState
from .sequence_ops import Close, Extend, Logprobs

WORTH_A_TREE = 64  # tokens that must be saved before scoring goes run by run


class ChoiceScores(list[TokenLogprobs]):
    """For each choice a list of (logprob, token id). The counts are in tokens, the times in seconds from the call."""

    prompt_tokens = 0
    cached_tokens = 0
    scored_tokens = 0
    queue_seconds = 0.0  # until it got a place in the batch
    e2e_latency = 0.0


@dataclass(slots=True)
class ChoiceBranch:
    """A run of tokens that choices share.

    `ends` are the choices that end with it, `choice_branches` what may follow.
    """

    tokens: list[int]
    ends: list[int] = field(default_factory=list)
    choice_branches: list[ChoiceBranch] = field(default_factory=list)

    def size(self) -> int:
        """Tokens here and below."""
        count, pending = 0, [self]
        while pending:
            choice_branch = pending.pop()
            count += len(choice_branch.tokens)
            pending += choice_branch.choice_branches
        return count

    @property
    def are_single_tokens(self) -> bool:
        """Whether all below are single tokens: a row of logits has them all."""
        return all(len(child.tokens) == 1 and not child.choice_branches for child in self.choice_branches)

    @property
    def next_tokens(self) -> list[int]:
        """The tokens that may follow."""
        return [choice_branch.tokens[0] for choice_branch in self.choice_branches]


def token_trie(choices: Items[Items[int]]) -> ChoiceBranch:
    """The choices as a tree of shared runs; the root has no tokens."""
    root = ChoiceBranch([])
    rows = sorted((list(map(int, choice)), index) for index, choice in enumerate(choices))
    pending = [(root, rows, 0)]
    while pending:
        choice_branch, rows, depth = pending.pop()
        choice_branch.ends = [index for row, index in rows if len(row) == depth]
        longer = [item for item in rows if len(item[0]) > depth]
        for _, group in groupby(longer, key=lambda item: item[0][depth]):
            members = list(group)
            end = _shared(members[0][0], members[-1][0])
            child = ChoiceBranch(members[0][0][depth:end])
            choice_branch.choice_branches.append(child)
            pending.append((child, members, end))
    return root


def _shared(first: list[int], last: list[int]) -> int:
    """How many leading tokens all rows between two sorted ones share."""
    pairs = zip(first, last, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))


def flat_trie(choices: Items[Items[int]]) -> ChoiceBranch:
    """The choices next to each other, nothing shared but what is equal."""
    ends: dict[tuple[int, ...], list[int]] = {}
    for index, choice in enumerate(choices):
        ends.setdefault(tuple(map(int, choice)), []).append(index)
    choice_branches = [ChoiceBranch(list(tokens), indices) for tokens, indices in ends.items() if tokens]
    return ChoiceBranch([], ends.get((), []), choice_branches)


class Score(SequenceOp):
    """Log-probabilities of several continuations.

    A run of tokens that they share is a short-lived fork, computed once. The first tokens after it are all read off its
    last row, so that choices of one token each cost no more than that row. Longer ones take a step for each fork on the
    way: where that saves little, all choices go in parallel in one step.
    """

    __slots__ = ("cached", "choices", "flat", "launched", "pending", "results", "scored", "trie")

    made_of = ("choices",)

    def __init__(self, choices: list[Ints]) -> None:
        super().__init__()
        self.choices = choices
        rows = [choice.tolist() for choice in choices]
        self.trie, beside = token_trie(rows), flat_trie(rows)
        self.flat = not self.trie.are_single_tokens and beside.size() - self.trie.size() <= WORTH_A_TREE
        if self.flat:
            self.trie = beside
        self.launched = False
        self.pending = 0
        self.cached: int | None = None
        self.scored = 0
        self.results = ChoiceScores([] for _ in choices)

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        if not len(seq):
            raise ConfigError("score() on an empty sequence: the first token of a choice would have no context")
        for choice in self.choices:
            life.check_tokens(choice)
        life.check_length(seq, max((len(choice) for choice in self.choices), default=0))
        if not self.trie.choice_branches:
            return self._finish(seq)
        if self.flat:
            if seq.computed >= self.target(
                seq
            ):  # it needs no place in the batch, so no other code reports what was there
                self.admitted(seq, seq.computed)
            return self.collect(seq, life, [], [])
        life.rewind(seq, self.reuse(seq))
        return False

    @property
    def blocked(self) -> bool:
        return self.launched and self.pending > 0

    def admitted(self, seq: SequenceState, reused: int) -> None:
        if self.cached is None:
            self.cached = reused
        if not self.launched:
            self.results.queue_seconds = self.elapsed

    def prefix_rejoined(self, tokens: int) -> None:
        self.cached = (self.cached or 0) + tokens

    def reuse(self, seq: SequenceState) -> int:
        return len(seq) if self.flat else len(seq) - 1

    def target(self, seq: SequenceState) -> int:
        return len(seq) - 1 if self.flat else len(seq)

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        wanted = hi == len(seq) and not self.launched and not self.flat
        return range(hi - 1, hi) if wanted else range(0)

    def wanted(self, seq: SequenceState, rows: int) -> list[list[int]]:
        return [self.trie.next_tokens] * rows

    def collect(
        self, seq: SequenceState, life: SequenceEngine, pairs: list[TokenLogprobs], tops: list[TokenLogprobs]
    ) -> bool:
        if not self.launched:
            if self.flat and seq.computed >= self.target(seq):
                self._start_probes(seq, life)
            elif pairs:
                self.launched = True
                self._grow(seq, life, seq, self.trie, [], pairs[-1])
        return self.launched and self.pending == 0 and self._finish(seq)

    def _finish(self, seq: SequenceState) -> bool:
        self.results.prompt_tokens = len(seq)
        self.results.cached_tokens = min(self.cached or 0, len(seq))
        self.results.scored_tokens = self.scored
        self.results.e2e_latency = self.elapsed
        self.resolve(self.results)
        return True

    def _start_probes(self, owner: SequenceState, life: SequenceEngine) -> None:
        """A probe for each choice: it computes the sequence's last token and all of the choice's."""
        self.launched = True
        for index in self.trie.ends:
            self.results[index] = []
        for choice_branch in self.trie.choice_branches:
            self.scored += 1
            self._probe(owner, life, owner, choice_branch, [], len(owner))

    def _grow(
        self,
        owner: SequenceState,
        life: SequenceEngine,
        parent: SequenceState,
        choice_branch: ChoiceBranch,
        path: TokenLogprobs,
        next_tokens: TokenLogprobs,
    ) -> None:
        """Go on after a run that is computed: `path` leads to its end, `next_tokens` are the first tokens after it."""
        for index in choice_branch.ends:
            self.results[index] = path
        for child, first in zip(choice_branch.choice_branches, next_tokens, strict=True):
            self.scored += 1
            if child.choice_branches or len(child.tokens) > 1:
                self._probe(owner, life, parent, child, [*path, first], len(parent) + 1)
            else:
                for index in child.ends:
                    self.results[index] = [*path, first]

    def _probe(
        self,
        owner: SequenceState,
        life: SequenceEngine,
        parent: SequenceState,
        choice_branch: ChoiceBranch,
        path: TokenLogprobs,
        start: int,
    ) -> None:
        """Compute a run after `parent`. What is known already is in `path`; the rest begins at `start`."""
        probe = life.new_state(owner.terms)
        probe.number = owner.number
        life.spawn_children(parent, probe)
        self.pending += 1
        self.scored += len(choice_branch.tokens) - 1
        look = Logprobs(start, next_tokens=choice_branch.next_tokens)
        look.future.add_done_callback(partial(self._take, owner, life, probe, choice_branch, path, look))
        life.enqueue(probe, Extend(np.array(choice_branch.tokens, np.int32), 0), look, Close())

    def _take(
        self,
        owner: SequenceState,
        life: SequenceEngine,
        probe: SequenceState,
        choice_branch: ChoiceBranch,
        path: TokenLogprobs,
        look: Logprobs,
        future: Future[Any],
    ) -> None:
        self.pending -= 1
        if not owner.ops or owner.ops[0] is not self:
            return  # it was aborted
        if error := future.exception():
            life.fail(owner, error)
            return
        self._grow(owner, life, probe, choice_branch, path + look.found, look.next_found)
        if self.pending == 0:
            life.proceed(owner)
