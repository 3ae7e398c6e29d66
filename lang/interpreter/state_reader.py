"""What is read of one state, while it grows and afterwards: text, turns, variables, errors. Only these wait."""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from sgl.runtime.errors import EngineDied

from ..errors import ProgramError, UnknownVariableError
from .state_transcript import LiteralText, again, messages_of, text_of
from .state_variables import Binding, Name, StateVariables, never_made

if TYPE_CHECKING:
    from ..chat import ConversationTurns
    from ..concurrency.replay_feed import ReplayFeed
    from .run_history import RunBranch
    from .state_transcript import Piece


class StateReader:
    """The reading half of a StreamExecutor, which makes what these attributes hold."""

    branch: RunBranch
    pieces: ReplayFeed[Piece]
    conversation: ConversationTurns
    vars: StateVariables
    ended: bool
    failure: ProgramError | None
    body_error: BaseException | None
    body_thread: int | None  # where the body of a streaming run is running
    _children: list[weakref.ref[Self]]
    _pending: int
    _submitting: AbstractContextManager[bool | None]

    @property
    def fork_start(self) -> int:
        return self.branch.start

    def find(self, name: Name, variables: StateVariables | None = None) -> Binding | None:
        """What is bound to a name, None for a plain value. KeyError if nothing is."""
        try:
            return (variables or self.vars).find(name, self.body_still_runs())
        except UnknownVariableError as error:
            if self.failure is None:
                raise UnknownVariableError(name, error.known, self._forks_know(name)) from None
            raise never_made(name, self.failure) from self.failure

    def _forks_know(self, name: Name) -> bool:
        children = [child for reference in list(self._children) if (child := reference()) is not None]
        return any(child.vars.knows(name) or child._forks_know(name) for child in children)

    def variable_names(self, variables: StateVariables | None = None) -> list[str]:
        """The names of the variables, in the order in which they were first made. Waits for a streaming run's body."""
        if self.body_still_runs():
            self.pieces.wait_closed()
        return [name for name in (variables or self.vars).declared() if name is not None]

    def get_var(self, name: Name, variables: StateVariables | None = None) -> Any:
        """The value of a variable, waiting for it. KeyError if there is none, ProgramError if it failed."""
        binding = self.find(name, variables)
        return (variables or self.vars).value(name) if binding is None else binding.get()

    def set_var(self, name: Name, value: Any, variables: StateVariables | None = None) -> None:
        with self._submitting:
            (variables or self.vars).set(name, value)

    def body_still_runs(self) -> bool:
        """True for readers of a streaming run whose body has not ended: more may come."""
        return not self.ended and self.body_thread not in (None, threading.get_ident())

    def sync(self) -> None:
        """Wait until everything that was submitted is done."""
        if self.body_still_runs():
            self.pieces.wait_closed()
        for piece in self.pieces.items:
            piece.wait()

    def text(self) -> str:
        """The whole text, up to the first node that failed. Raises its error if the engine died under it."""
        self.sync()
        for piece in self.pieces.items:
            if piece.error is not None and isinstance(piece.error.__cause__, EngineDied):
                raise again(piece.error)
        return self.readable_text()

    def readable_text(self) -> str:
        """The text up to the first node that failed, whatever failed it."""
        self.sync()
        return text_of(self.pieces.items)

    def error(self) -> BaseException | None:
        self.sync()
        failed = next((piece.error for piece in self.pieces.items if piece.error), None)
        return failed or self.failure or self.body_error

    def messages(self, wait: bool = True) -> list[dict[str, Any]]:
        """The finished turns; the contents without leading white space."""
        if wait:
            self.sync()
        return messages_of(self.conversation.finished, self.pieces.items)

    # --- what programs read of the executor ----------------------------------------------------------------------

    @property
    def variables(self) -> dict[Name, Any]:
        """The variables that have a value already."""
        return self.vars.ready()

    @property
    def variable_event(self) -> dict[Name, Binding]:
        return self.vars.pending()

    @property
    def meta_info(self) -> dict[Name, Any]:
        return {name: binding.meta_info for name, binding in self.vars.pending().items() if binding.done}

    @property
    def text_(self) -> str:
        return text_of(self.pieces.items, wait=False)

    @property
    def messages_(self) -> list[dict[str, Any]]:
        return self.messages(wait=False)

    @property
    def images_(self) -> list[Any]:
        return [piece.media.source for piece in self.pieces.items if isinstance(piece, LiteralText) and piece.media]

    @property
    def cur_role(self) -> str | None:
        return self.conversation.role

    @property
    def working(self) -> bool:
        """Operations of this state are queued or running."""
        return self._pending > 0

    @property
    def is_finished(self) -> bool:
        return self.ended and not self._pending
