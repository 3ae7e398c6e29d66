"""What operations and handles ask of the engine that runs them: `loop.Lifecycle` and `loop.EngineCore` give it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sgl.grammars import Vocabulary

from ..cache import Ints, PrefixCache
from ..text.tokenizer import Tokenizer
from .remembered_jumps import RememberedJumps

if TYPE_CHECKING:
    from .decoding import Decoding
    from .grammar_work import GrammarWork
    from .ops import Generate, Op
    from .sequence import SequenceState, Status
    from .terms import Terms


class TextSide(NamedTuple):
    """What it takes to turn tokens into text."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    jumps: RememberedJumps | None


class Core(Protocol):
    """What a handle needs, from any thread; a state is whatever `new_state` gave."""

    def new_state(self, terms: Terms, status: Status) -> Any: ...
    def adapter_digest(self, name: str) -> str: ...
    def submit(self, seq: Any, op: Op) -> Future[Any]: ...
    def abort(self, seq: Any) -> None: ...


class Places(Protocol):
    """What a scheduler keeps account of."""

    reused_tokens: int

    def pin(self, seq: SequenceState) -> None: ...
    def check_pinned(self, pages: int) -> None: ...


class Life(Protocol):
    """What an operation needs, on the scheduler thread."""

    cache: PrefixCache
    text: TextSide
    vocab_size: int
    context: int

    @property
    def scheduler(self) -> Places: ...
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
    def start_decoding(self, seq: SequenceState, op: Generate) -> Decoding: ...
    def work_out(self, seq: SequenceState, op: Generate, work: GrammarWork) -> None: ...
    def conclude(self, seq: SequenceState, decoding: Decoding) -> None: ...

    # of others that it makes
    def new_state(self, terms: Terms) -> SequenceState: ...
    def give_birth(self, parent: SequenceState, child: SequenceState) -> int: ...
    def enqueue(self, seq: SequenceState, *ops: Op) -> None: ...
