"""Drafts from a grammar's states: in its present state, texts of the same grammar went on with the same token before.

A state says more than the last tokens do: after `"currency": "` comes what came there in other records. With the last
token it says where a string ends. After DOMINO (Beurer-Kellner et al., 2024, arXiv 2403.06988). Learned from finished
texts of the namespace and tenant, as in `suffix`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sgl.grammars.automaton.python_automaton_core import DEAD

from ..sequences.draft_tokens import DraftSource, DraftTokens
from .drafter import follow, may_build_states
from .suffix_drafter import suffix_namespace_of

if TYPE_CHECKING:
    from sgl.grammars import Matcher
    from sgl.grammars.automaton.grammar_automaton import Automaton

    from ..cache import Space
    from ..sequences.ops.generate_op import Generate
    from ..sequences.running_generation import RunningGeneration
    from ..sequences.sequence_state import SequenceState

LIKELY = 0.6  # share of the texts that went on so
SEEN = 2  # texts at least that were in the state
PLACES = 8192  # of a grammar, of which is kept what followed
KINDS = 32  # different tokens; a state that more followed in is within free text, where there is nothing to draft
ANY = -1
AHEAD = 8  # tokens that a draft goes on with
HOMES = 16  # namespaces of a grammar, the newest
UNREAD = 8  # finished texts of a namespace, the newest, which are not walked before somebody asks

Place = tuple[int, int]  # a state, and the token that led there or ANY


@dataclass(slots=True)
class NextTokenCounts:
    """How often each token came next, all together, and the one that came most often."""

    counts: dict[int, int]
    total: int
    best: int

    def add(self, token: int) -> bool:
        """False where it is one kind too many."""
        count = self.counts.get(token, 0) + 1
        if count == 1 and len(self.counts) == KINDS:
            return False
        self.counts[token], self.total = count, self.total + 1
        if count > self.counts[self.best]:
            self.best = token
        return True


Followed = dict[Place, NextTokenCounts | None]  # None: too many kinds came next


@dataclass(slots=True)
class NamespaceStatistics:
    """What is known of a grammar's texts of a namespace and tenant.

    unread: tokens of texts that are not counted in `followed` yet, and the states in which they came.
    """

    followed: Followed = field(default_factory=dict)
    unread: deque[tuple[list[int], list[int]]] = field(default_factory=lambda: deque(maxlen=UNREAD))


class AutomatonDrafter:
    """Texts are walked once a draft is asked for: where none is, they cost nothing."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Automaton, dict[tuple[Space, str], NamespaceStatistics]] = WeakKeyDictionary()

    def propose(self, seq: SequenceState, op: Generate, most: int) -> DraftTokens | None:
        matcher = None if op.decoding is None else op.decoding.matcher
        followed = None if matcher is None else self._followed(seq, matcher.automaton)
        if matcher is None or not followed:
            return None
        tokens = _chain(followed, matcher, int(seq.tokens.array[-1]), most)
        return DraftTokens(tokens, DraftSource("states")) if tokens else None

    def onward(self, seq: SequenceState, tokens: list[int], matcher: Matcher) -> list[int]:
        """What follows a draft."""
        followed = self._followed(seq, matcher.automaton)
        return _chain(followed, matcher, tokens[-1], AHEAD) if followed else []

    def learn(self, seq: SequenceState, decoding: RunningGeneration) -> None:
        if decoding.matcher is None:
            return
        homes = self._of.setdefault(decoding.matcher.automaton, {})
        home = homes.setdefault(suffix_namespace_of(seq), NamespaceStatistics())
        if len(homes) > HOMES:
            del homes[next(iter(homes))]
        home.unread.append(decoding.matcher.trail(PLACES))

    def forget(self) -> None:
        self._of.clear()

    def _followed(self, seq: SequenceState, automaton: Automaton) -> Followed | None:
        home = self._of.get(automaton, {}).get(suffix_namespace_of(seq))
        while home is not None and home.unread:
            _walk(home.followed, *home.unread.popleft())
        return None if home is None else home.followed


def _walk(followed: Followed, tokens: list[int], states: list[int]) -> None:
    """Count what followed in each state of a finished text."""
    last = ANY
    for token, state in zip(tokens, states, strict=True):
        if state == DEAD:
            return
        _count(followed, (state, ANY), token)
        if last != ANY:
            _count(followed, (state, last), token)
        last = token


def _chain(followed: Followed, matcher: Matcher, last: int, most: int) -> list[int]:
    """What came after a state and a token, and so on."""
    tokens: list[int] = []
    if (token := _next(followed, matcher.state, last)) is None:
        return tokens
    ahead, builds = matcher.copy(), may_build_states(matcher)
    while len(tokens) < most and token is not None and follow(ahead, token, builds):
        tokens.append(token)
        token = _next(followed, ahead.state, token)
    return tokens


def _next(followed: Followed, state: int, last: int) -> int | None:
    """What came next in the state after the same token or, where that is not known, after any."""
    token = _likely(followed.get((state, last)))
    return _likely(followed.get((state, ANY))) if token is None else token


def _count(followed: Followed, place: Place, token: int) -> None:
    if place not in followed:
        if len(followed) < PLACES:
            followed[place] = NextTokenCounts({token: 1}, 1, token)
    elif (known := followed[place]) is not None and not known.add(token):
        followed[place] = None


def _likely(known: NextTokenCounts | None) -> int | None:
    return known.best if known is not None and known.counts[known.best] >= max(SEEN, LIKELY * known.total) else None
