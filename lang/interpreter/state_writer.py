"""What the rules of nodes do to a state: the writing half of a StreamExecutor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ..backend import Backend, Generated, Media, Stream
    from ..chat import ChatTemplate, ConversationTurns
    from ..concurrency.replay_feed import ReplayFeed
    from ..places.source_location import SourceLocation
    from ..sampling.adapter_selection import Adapter
    from ..sampling.options import SamplingOptions
    from .run_control import RunControl
    from .run_history import RunBranch
    from .state_transcript import PendingText, Piece
    from .state_variables import Binding, Name

Result = TypeVar("Result")


class StateWriter(Protocol):
    """A state as the rules of nodes see it. StreamExecutor says what the attributes and the methods are."""

    backend: Backend
    options: SamplingOptions
    streaming: bool
    stream: Stream
    control: RunControl
    branch: RunBranch
    pieces: ReplayFeed[Piece]
    chat_template: ChatTemplate
    conversation: ConversationTurns
    adapter: Adapter
    adapters: list[Adapter]
    scopes: dict[str, list[int]]

    def write(self, text: str, send: Callable[[], None], where: SourceLocation | None) -> None: ...
    def attach(self, media: Media, where: SourceLocation | None) -> None: ...
    def bind(self, name: Name, piece: PendingText) -> PendingText: ...
    def name(self, name: str, binding: Binding) -> None: ...
    def attempt(self, piece: PendingText, call: Callable[[], Result]) -> Result: ...
    def start(
        self,
        piece: PendingText,
        index: int,
        call: Callable[[], Future[Any]],
        timeout: float | None = None,
        own_stream: Stream | None = None,
        check: Callable[[Generated], None] | None = None,
    ) -> None: ...
    def forked_streams(self, size: int, adapters: list[Adapter] | None = None) -> list[Stream]: ...
    def adapt(self, adapter: Adapter) -> None: ...
