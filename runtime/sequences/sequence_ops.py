"""The operations that a sequence queues. Only the scheduler thread drives them.

begin(seq, life)        the operation reaches the head of the queue; True when it is done at once
reuse(seq)              how many computed tokens it can reuse (it needs logits after that)
target(seq)             how many tokens must be computed before it can go on
rows(seq, lo, hi)       of the positions lo..hi computed in this step, those whose logits it wants
pool(seq, lo, hi)       of these positions, those whose last hidden states are to be summed for it
leaves(seq, hi)         whether the state after the tokens up to hi will be wanted
wanted(seq, n)          for each of those n rows, the token ids whose log-probabilities it wants
collect(seq, life, ..)  what was found there; True when it is done
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from typing import TYPE_CHECKING, Any

from ..cache import Ints
from ..common.argument_checks import shown
from ..errors import ConfigError
from ..sampling.sampling_params import SamplingParams
from .generation import Chunk as Chunk
from .generation import Generation as Generation
from .generation import TokenLogprobs as TokenLogprobs
from .op_future import OpFuture

if TYPE_CHECKING:
    from .engine_protocols import SequenceEngine
    from .running_generation import RunningGeneration
    from .sequence import SequenceState


class SequenceOp:
    """Base: an operation that needs nothing computed and is done when it begins."""

    __slots__ = ("future", "started")

    top = 0  # likeliest tokens wanted in addition to those of `wanted`
    made_of: tuple[str, ...] = ()  # attributes from which the class makes a copy, in another process too

    def __init__(self) -> None:
        self.future = OpFuture()
        self.started = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since it was asked for."""
        return time.perf_counter() - self.started

    @property
    def blocked(self) -> bool:
        """It waits for other sequences, not for its own tokens."""
        return False

    @property
    def streamed(self) -> bool:
        """Somebody is given each piece as it comes."""
        return False

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        raise NotImplementedError

    def admitted(self, seq: SequenceState, reused: int) -> None:
        """The sequence got a place in the batch, standing on `reused` computed tokens."""

    def prefix_rejoined(self, tokens: int) -> None:
        """So many more tokens, computed for another sequence, turned out to be there."""

    def reuse(self, seq: SequenceState) -> int:
        return len(seq)

    def target(self, seq: SequenceState) -> int:
        return 0

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(0)

    def pool(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(0)

    def leaves(self, seq: SequenceState, hi: int) -> bool:
        return True

    def wanted(self, seq: SequenceState, rows: int) -> list[list[int]]:
        return [[]] * rows

    def collect(
        self, seq: SequenceState, life: SequenceEngine, pairs: list[TokenLogprobs], tops: list[TokenLogprobs]
    ) -> bool:
        return seq.computed >= self.target(seq)

    def resolve(self, result: Any = None) -> None:
        try:
            self.future.set_result(result)
        except InvalidStateError:
            pass  # its owner cancelled the future

    def fail(self, error: BaseException) -> None:
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            pass


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
    """Log-probabilities of the tokens [start:] of the sequence itself, and of the tokens `fan` after its end."""

    __slots__ = ("fan", "fan_found", "found", "start", "top", "top_found")

    made_of = ("start", "top", "fan")

    def __init__(self, start: int, top: int = 0, fan: list[int] | None = None) -> None:
        super().__init__()
        self.start, self.top, self.fan = start, top, fan or []
        self.found: TokenLogprobs = []
        self.fan_found: TokenLogprobs = []
        self.top_found: list[TokenLogprobs] = []

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        if self.start < 1:
            raise ConfigError(f"logprobs(start={self.start}): the first token has no context; start at 1 or later")
        life.check_length(seq)
        life.rewind(seq, self.reuse(seq))
        return self._done(seq)

    def reuse(self, seq: SequenceState) -> int:
        return max(0, min(self.target(seq) - bool(self.fan), self.start - 1 + len(self.found)))

    def target(self, seq: SequenceState) -> int:
        return len(seq) if self.fan else len(seq) - 1

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(max(lo, self.start - 1 + len(self.found)), hi)  # a preempted one computes anew what it has found

    def leaves(self, seq: SequenceState, hi: int) -> bool:
        """No sequence goes on from a probe that ends with this, and has no forks after it."""
        return hi < self.target(seq) or bool(self.fan) or len(seq.ops) < 2 or not isinstance(seq.ops[1], Close)

    def wanted(self, seq: SequenceState, rows: int) -> list[list[int]]:
        first = self.start + len(self.found)
        tokens: list[int] = seq.tokens.array[first : first + rows].tolist()
        return [[token] for token in tokens] + [self.fan] * (rows - len(tokens))

    def collect(
        self, seq: SequenceState, life: SequenceEngine, pairs: list[TokenLogprobs], tops: list[TokenLogprobs]
    ) -> bool:
        missing = len(seq) - self.start - len(self.found)
        self.found += [row[0] for row in pairs[:missing]]
        self.fan_found += [pair for row in pairs[missing:] for pair in row]
        self.top_found += [top[: self.top] for top in tops[:missing]]
        return self._done(seq)

    def _done(self, seq: SequenceState) -> bool:
        if self.start + len(self.found) < len(seq) or len(self.fan_found) < len(self.fan):
            return False
        self.resolve((self.found, self.top_found))
        return True


class Generate(SequenceOp):
    """Sample until a stop. What happens to each token is in `decoding.RunningGeneration`.

    What it is given is checked where it is made, on its caller's thread; it fails with what was found when it begins.
    """

    __slots__ = ("cached", "decoding", "grammar", "on_chunk", "params", "queue_seconds", "refusal")

    def __init__(
        self, params: SamplingParams, grammar: Any = None, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        super().__init__()
        self.grammar, self.on_chunk = grammar, on_chunk
        self.params, self.refusal = _checked(params, grammar, on_chunk)
        self.decoding: RunningGeneration | None = None
        self.cached: int | None = None
        self.queue_seconds = 0.0

    @property
    def streamed(self) -> bool:
        return self.on_chunk is not None

    @property
    def cuts(self) -> bool:
        """Whether its text may end in the middle of a token, the rest of which is then tokenised anew."""
        return bool(self.params.close_at_limit or self.params.stop or self.params.stop_regex)

    @property
    def behind(self) -> bool:
        """Its grammar is worked out on another thread."""
        return self.decoding is not None and self.decoding.work is not None

    def fail(self, error: BaseException) -> None:
        if self.decoding is not None and self.decoding.work is not None:
            self.decoding.work.cancel()
        super().fail(error)

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        if self.refusal is not None:
            raise self.refusal
        if not len(seq):
            raise ConfigError("generate() on an empty sequence: extend it with at least one token first")
        life.check_length(seq, 1)
        self.decoding = life.start_decoding(seq, self)
        if self.decoding.begin(seq):
            life.conclude(seq, self.decoding)
            return True
        life.rewind(seq, self.reuse(seq))
        return False

    def admitted(self, seq: SequenceState, reused: int) -> None:
        if self.cached is None:
            self.cached = reused
        if self.decoding is None or not self.decoding.output:  # a fork is informed before it has its place, too
            self.queue_seconds = self.elapsed

    def prefix_rejoined(self, tokens: int) -> None:
        self.cached = (self.cached or 0) + tokens

    def reuse(self, seq: SequenceState) -> int:
        return len(seq) - 1

    def target(self, seq: SequenceState) -> int:
        length, decoding = seq.tokens.length, self.decoding
        # after the token that is being sampled
        goes_on = seq.ahead and decoding is not None and len(decoding.stops.token_ids) + 1 < decoding.limit
        return length + 1 if goes_on else length

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        if seq.draft is not None:
            return range(seq.tokens.length - 1, hi)
        return range(hi - 1, hi) if hi == seq.tokens.length + seq.ahead else range(0)


def _checked(params: Any, grammar: Any, on_chunk: Any) -> tuple[SamplingParams, ConfigError | None]:
    """The parameters, and why no text can be generated so; None: it can, as far as is known without the vocabulary."""
    try:
        if not isinstance(params, SamplingParams):
            raise ConfigError(f"params must be SamplingParams, got {shown(params)}")
        if grammar is not None and not (hasattr(grammar, "matcher") and hasattr(grammar, "vocabulary")):
            raise ConfigError(f"grammar must come from a compile_ function of sgl.grammars, got {shown(grammar)}")
        if on_chunk is not None and not callable(on_chunk):
            raise ConfigError(f"on_chunk must be a function of a Chunk, got {shown(on_chunk)}")
        return params.checked(), None
    except Exception as error:  # a value may be such that it cannot even be looked at
        refusal = error if isinstance(error, ConfigError) else ConfigError(f"params cannot be used: {shown(error)}")
        return SamplingParams(), refusal.with_traceback(None)
