"""The operation that samples text. What it is given is checked; what happens to a token is in `running_generation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...common.argument_checks import shown
from ...errors import ConfigError
from ...sampling.sampling_params import SamplingParams
from ..generation import Chunk
from ..running_generation import RunningGeneration
from ..sequence_state import SequenceEngine, SequenceOp, SequenceState


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
    def grammar_pending(self) -> bool:
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
        seq.guarded = seq.guarded or not self.params.speculation
        self.decoding = RunningGeneration(life, seq, self)
        if self.decoding.begin(seq):
            life.conclude(seq)
            return True
        life.rewind(seq, self.reuse(seq))
        return False

    def admitted(self, seq: SequenceState, reused: int) -> None:
        if self.cached is None:
            self.cached = reused
        if self.decoding is None or not self.decoding.output:  # a fork is told so before it has its place, too
            self.queue_seconds = self.elapsed

    def prefix_rejoined(self, tokens: int) -> None:
        self.cached = (self.cached or 0) + tokens

    def reuse(self, seq: SequenceState) -> int:
        return len(seq) - 1

    def target(self, seq: SequenceState) -> int:
        length, decoding = seq.tokens.length, self.decoding
        goes_on = (
            seq.ahead and decoding is not None and len(decoding.stops.token_ids) + 1 < decoding.limit
        )  # behind the token that is being sampled
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
