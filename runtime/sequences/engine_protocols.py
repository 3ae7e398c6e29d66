"""What operations and handles ask of their engine: `loop.SequenceLifecycle` and `loop.EngineCore` implement it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sgl.grammars import Vocabulary

from ..cache import Ints, PrefixCache
from ..text.tokenizer import Tokenizer
from .jump_cache import JumpCache

if TYPE_CHECKING:
    from .pending_grammar import PendingGrammar
    from .running_generation import RunningGeneration
    from .sequence import SequenceState, SequenceStatus
    from .sequence_ops import Generate, SequenceOp
    from .sequence_options import SequenceOptions


class TextTools(NamedTuple):
    """What it takes to turn tokens into text."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    jumps: JumpCache | None


class SequenceCore(Protocol):
    """What a handle needs, from any thread; a state is whatever `new_state` gave."""

    def new_state(self, terms: SequenceOptions, status: SequenceStatus) -> Any: ...
    def adapter_digest(self, name: str) -> str: ...
    def submit(self, seq: Any, op: SequenceOp) -> Future[Any]: ...
    def abort(self, seq: Any) -> None: ...


class PrefixPins(Protocol):
    """What a scheduler keeps account of."""

    reused_tokens: int

    def pin(self, seq: SequenceState) -> None: ...
    def check_pinned(self, pages: int) -> None: ...


class SequenceEngine(Protocol):
    """What an operation needs, on the scheduler thread."""

    cache: PrefixCache
    text: TextTools
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
    def start_decoding(self, seq: SequenceState, op: Generate) -> RunningGeneration: ...
    def advance_grammar(self, seq: SequenceState, op: Generate, work: PendingGrammar) -> None: ...
    def conclude(self, seq: SequenceState, decoding: RunningGeneration) -> None: ...

    # of others that it makes
    def new_state(self, terms: SequenceOptions) -> SequenceState: ...
    def spawn_children(self, parent: SequenceState, child: SequenceState) -> int: ...
    def enqueue(self, seq: SequenceState, *ops: SequenceOp) -> None: ...
