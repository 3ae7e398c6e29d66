"""The operations that a sequence queues, but for `Generate`, `Score` and `Embed`."""

from __future__ import annotations

from ...cache import Ints
from ...errors import ConfigError
from ..generation import TokenLogprobs
from ..sequence_state import SequenceEngine, SequenceOp, SequenceState


class Extend(SequenceOp):
    __slots__ = ("drop", "new")

    made_of = ("new", "drop")

    def __init__(self, tokens: Ints, drop: int) -> None:
        super().__init__()
        self.new, self.drop = tokens, drop

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        life.check_tokens(self.new)
        if not 0 <= self.drop <= len(seq):
            raise ConfigError(f"extend(drop={self.drop}) on a sequence of {len(seq)} tokens")
        if self.drop:
            life.truncate(seq, len(seq) - self.drop)
        seq.tokens.extend(self.new)
        self.resolve()
        return True


class Read(SequenceOp):
    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        self.resolve(seq.tokens.array.copy())
        return True


class Close(SequenceOp):
    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        life.retire(seq)
        self.resolve()
        return True


class Prefill(SequenceOp):
    """Compute every token and publish the prefix. Result: how many did not have to be computed."""

    __slots__ = ("cached",)

    def __init__(self) -> None:
        super().__init__()
        self.cached: int | None = None

    def admitted(self, seq: SequenceState, reused: int) -> None:
        if self.cached is None:
            self.cached = reused

    def prefix_rejoined(self, tokens: int) -> None:
        self.cached = (self.cached or 0) + tokens

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        life.check_length(seq)
        return self.collect(seq, life, [], [])

    def target(self, seq: SequenceState) -> int:
        return len(seq)

    def collect(
        self, seq: SequenceState, life: SequenceEngine, pairs: list[TokenLogprobs], tops: list[TokenLogprobs]
    ) -> bool:
        if seq.computed < len(seq):
            return False
        life.cache.publish(seq)
        self.done(seq, life)
        return True

    def done(self, seq: SequenceState, life: SequenceEngine) -> None:
        self.resolve(len(seq) if self.cached is None else self.cached)


class Pin(Prefill):
    """Compute the tokens that fill whole pages, and keep those until the sequence is closed. Result: how many."""

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        size = life.cache.pool.page_size
        if len(seq) < size:
            raise ConfigError(f"pin() of {len(seq)} tokens: they fill no page of {size}; pin a longer prefix")
        life.truncate(seq, len(seq) - len(seq) % size)
        life.scheduler.check_pinned(len(seq) // size)
        return super().begin(seq, life)

    def done(self, seq: SequenceState, life: SequenceEngine) -> None:
        life.scheduler.pin(seq)
        self.resolve(len(seq))


class Fork(Prefill):
    """Children start on the parent's pages by reference, once the parent is computed."""

    __slots__ = ("children",)

    def __init__(self, children: list[SequenceState]) -> None:
        super().__init__()
        self.children = children

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        if any(child.terms.adapter == seq.terms.adapter for child in self.children):
            return super().begin(seq, life)
        self.done(seq, life)  # no sequence reuses what is computed of it
        return True

    def done(self, seq: SequenceState, life: SequenceEngine) -> None:
        for child in self.children:
            life.scheduler.reused_tokens += life.spawn_children(seq, child)
        self.resolve()


class Logprobs(SequenceOp):
    """Log-probabilities of the tokens [start:] of the sequence itself, and of `next_tokens` after its end."""

    __slots__ = ("found", "next_found", "next_tokens", "start", "top", "top_found")

    made_of = ("start", "top", "next_tokens")

    def __init__(self, start: int, top: int = 0, next_tokens: list[int] | None = None) -> None:
        super().__init__()
        self.start, self.top, self.next_tokens = start, top, next_tokens or []
        self.found: TokenLogprobs = []
        self.next_found: TokenLogprobs = []
        self.top_found: list[TokenLogprobs] = []

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        if self.start < 1:
            raise ConfigError(f"logprobs(start={self.start}): the first token has no context; start at 1 or later")
        life.check_length(seq)
        life.rewind(seq, self.reuse(seq))
        return self._done(seq)

    def reuse(self, seq: SequenceState) -> int:
        return max(0, min(self.target(seq) - bool(self.next_tokens), self.start - 1 + len(self.found)))

    def target(self, seq: SequenceState) -> int:
        return len(seq) if self.next_tokens else len(seq) - 1

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(max(lo, self.start - 1 + len(self.found)), hi)  # a preempted one computes anew what it has found

    def leaves(self, seq: SequenceState, hi: int) -> bool:
        """No sequence goes on from a probe that ends with this, and has no forks after it."""
        return hi < self.target(seq) or bool(self.next_tokens) or len(seq.ops) < 2 or not isinstance(seq.ops[1], Close)

    def wanted(self, seq: SequenceState, rows: int) -> list[list[int]]:
        first = self.start + len(self.found)
        tokens: list[int] = seq.tokens.array[first : first + rows].tolist()
        return [[token] for token in tokens] + [self.next_tokens] * (rows - len(tokens))

    def collect(
        self, seq: SequenceState, life: SequenceEngine, pairs: list[TokenLogprobs], tops: list[TokenLogprobs]
    ) -> bool:
        missing = len(seq) - self.start - len(self.found)
        self.found += [row[0] for row in pairs[:missing]]
        self.next_found += [pair for row in pairs[missing:] for pair in row]
        self.top_found += [top[: self.top] for top in tops[:missing]]
        return self._done(seq)

    def _done(self, seq: SequenceState) -> bool:
        if self.start + len(self.found) < len(seq) or len(self.next_found) < len(self.next_tokens):
            return False
        self.resolve((self.found, self.top_found))
        return True
