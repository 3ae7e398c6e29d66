"""What the scheduler thread knows of a sequence: its state, the base of its operations, what these ask of the engine.

The three name each other, so they have one file.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from concurrent.futures import InvalidStateError
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..cache import GrowableIntArray, Ints, PrefixCache, RadixNode, Space, StateCheckpoint
from ..errors import note_sequence
from .draft_tokens import DraftTokens
from .generation import TokenLogprobs
from .op_future import OpFuture
from .sequence_options import USUAL, SequenceOptions

if TYPE_CHECKING:
    from .detokenizer_resources import DetokenizerResources
    from .pending_grammar import PendingGrammar


class SequenceStatus(enum.Enum):
    CHILD_PENDING = "unborn"  # a fork child whose parent has not reached the fork
    IDLE = "idle"  # nothing to do; keeps its pages while there is room
    WAITING = "waiting"  # has work, holds no place in the batch
    RUNNING = "running"  # computed in every step until its work is done
    CLOSED = "closed"


class SequenceState:
    """What the scheduler thread knows of a sequence. Only that thread touches it."""

    __slots__ = (
        "ahead",
        "arrival",
        "border",
        "branch",
        "charged_tokens",
        "computed",
        "deferred_error",
        "draft",
        "error",
        "guarded",
        "id",
        "into",
        "node",
        "number",
        "ops",
        "passed",
        "preempted",
        "prefilling",
        "reread",
        "since",
        "slots",
        "status",
        "terms",
        "tokens",
        "trail",
        "window",
    )

    def __init__(self, id: int, terms: SequenceOptions = USUAL, status: SequenceStatus = SequenceStatus.IDLE) -> None:
        self.id = id
        self.number = id  # what its handle calls it, in whatever process that is; a probe has its owner's
        self.terms = terms
        self.arrival = id
        self.status = status
        self.tokens = GrowableIntArray()
        self.slots = GrowableIntArray()
        self.computed = 0
        self.ahead = 0  # tokens sampled on the device that the host has not seen: 0 or 1
        self.guarded = False  # some of its tokens are of a generation of which nothing is to be learned
        self.draft: DraftTokens | None = None  # laid behind its tokens for the step under way
        self.node: RadixNode | None = None
        self.trail: list[StateCheckpoint] = []
        self.into = 0
        self.branch = 0
        self.window = 0
        self.border = 0  # where its next step ends at the latest, to leave a state
        self.ops: deque[SequenceOp] = deque()
        self.prefilling = False  # computes a prefix that others may wait for
        self.charged_tokens = 0  # tokens that its tenant has paid for
        self.since = 0  # step in which it got its place
        self.passed = 0  # later ones that got a place before it
        self.preempted = 0  # times since it began to wait
        self.reread = 0  # tokens that its parent had computed by another adapter
        self.error: BaseException | None = None  # why it will never be born
        self.deferred_error: BaseException | None = None  # of an extend that failed when nothing was queued behind it

    def __len__(self) -> int:
        return self.tokens.length

    @property
    def namespace(self) -> Space:
        """Whose cached prefixes it may stand on, and by which adapter these were computed."""
        return self.terms.space

    @property
    def known(self) -> int:
        """Its tokens, and those of its draft: the host has them to be computed."""
        return self.tokens.length + (0 if self.draft is None else len(self.draft.tokens))

    @property
    def target(self) -> int:
        """The number of tokens that the current operation needs computed."""
        try:
            return self.ops[0].target(self)
        except BaseException as error:
            note_sequence(error, self)
            raise

    @property
    def need(self) -> int:
        return self.target - self.computed


class ScheduledWork(NamedTuple):
    """Compute the tokens lo..hi of a sequence in this step (none, if its target is reached already)."""

    seq: SequenceState
    lo: int
    hi: int


class SequenceOp:
    """Base: an operation that needs nothing computed and is done when it begins.

    Only the scheduler thread drives it:

    begin(seq, life)        the operation reaches the head of the queue; True when it is done at once
    reuse(seq)              how many computed tokens it can stand on (it needs logits after that)
    target(seq)             how many tokens must be computed before it can go on
    rows(seq, lo, hi)       of the positions lo..hi computed in this step, those whose logits it wants
    pool(seq, lo, hi)       of these positions, those whose last hidden states are to be summed for it
    leaves(seq, hi)         whether the state behind the tokens up to hi will be wanted
    wanted(seq, n)          for each of those n rows, the token ids whose log-probabilities it wants
    collect(seq, life, ..)  what was found there; True when it is done
    """

    __slots__ = ("future", "started")

    top = 0  # likeliest tokens wanted beside those of `wanted`
    made_of: tuple[str, ...] = ()  # attributes from which the class makes a twin, in another process too

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


class PrefixPins(Protocol):
    """What a scheduler keeps account of."""

    reused_tokens: int

    def pin(self, seq: SequenceState) -> None: ...
    def check_pinned(self, pages: int) -> None: ...


class SequenceEngine(Protocol):
    """What an operation needs, on the scheduler thread."""

    cache: PrefixCache
    text: DetokenizerResources
    vocab_size: int
    context: int

    @property
    def scheduler(self) -> PrefixPins: ...
    @property
    def may_jump(self) -> bool: ...

    def seed(self) -> int: ...
    def check_tokens(self, tokens: Ints) -> None: ...
    def check_length(self, seq: SequenceState, more: int = 0) -> None: ...

    # of the sequence that the operation belongs to
    def rewind(self, seq: SequenceState, length: int) -> None: ...
    def truncate(self, seq: SequenceState, length: int) -> None: ...
    def fail(self, seq: SequenceState, error: BaseException) -> None: ...
    def proceed(self, seq: SequenceState) -> None: ...
    def retire(self, seq: SequenceState) -> None: ...

    # of the generation at the head of its queue
    def advance_grammar(self, seq: SequenceState, work: PendingGrammar) -> None: ...
    def conclude(self, seq: SequenceState) -> None: ...

    # of others that it makes
    def new_state(self, terms: SequenceOptions) -> SequenceState: ...
    def spawn_children(self, parent: SequenceState, child: SequenceState) -> int: ...
    def enqueue(self, seq: SequenceState, *ops: SequenceOp) -> None: ...
