"""Every exception of the language, one tree. Messages name the offending value and the next action."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from .places.place import Place


class LanguageError(Exception):
    """Base class of all errors that the language raises on purpose."""


class UnknownOptionError(LanguageError, TypeError):
    """An option, argument or attribute that does not exist. The message names the nearest one that does."""


class BadValueError(LanguageError, ValueError):
    """An option whose value has the wrong type or lies outside its range."""


class ArgumentsError(LanguageError, TypeError):
    """Arguments that do not fit the signature of a program."""


class TemplateError(LanguageError, KeyError):
    """A chat template that does not exist or cannot render a conversation."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TextOfNodeError(LanguageError, TypeError):
    """A node was turned into a string: its text exists only once the program has run."""


class TraceError(LanguageError, TypeError):
    """A program that cannot be traced: it needs a value that only a run can give."""


class UnsupportedByBackendError(LanguageError, NotImplementedError):
    """The backend of this program cannot do what a node asks for."""


class RemoteError(LanguageError, RuntimeError):
    """A call to a remote backend failed.

    `status` is the HTTP status if there was an answer, `url` the address without secrets, `retry_after` the
    seconds that the server asked to wait, `attempts` how often the call was made. `retryable`: another try
    may succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        url: str | None = None,
        retry_after: float | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.url = url
        self.retry_after = retry_after
        self.retryable = retryable
        self.attempts = 1

    def __str__(self) -> str:
        return self.message if self.attempts == 1 else f"{self.message} (after {self.attempts} attempts)"


class RemoteConnectionError(RemoteError):
    """Nobody answered at the address, or the connection broke before the answer was there."""


class RemoteStatusError(RemoteError):
    """The server answered with an error; the message has its own words."""


class RemoteProtocolError(RemoteError):
    """The server answered with something that is not what the protocol says."""


class RemoteStreamError(RemoteError):
    """A stream ended in the middle. `text` is what had come until then."""

    def __init__(self, message: str, *, text: str = "", **about: Any) -> None:
        super().__init__(message, **about)
        self.text = text


class RemoteTimeoutError(RemoteError, TimeoutError):
    """The time for a call ran out."""


class RemoteAbortedError(RemoteError):
    """The stream was aborted while the call was running or waiting."""


class SpeculationError(LanguageError, RuntimeError):
    """An assistant turn that was to be one call (num_api_spec_tokens) could not be made of its answer."""


class ProgramError(LanguageError, RuntimeError):
    """A node of a program failed. `where` is its file and line, `__cause__` the original error."""

    def __init__(self, message: str, where: Place | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.where)


class StateEndedError(ProgramError):
    """Something was appended to a state whose program has ended."""


class JournalError(LanguageError, RuntimeError):
    """A journal that cannot be read, written or searched."""


class MissingJournalError(JournalError, FileNotFoundError):
    """A journal was to be read and there is no file."""


class ReplayMismatch(ProgramError):
    """A replayed program asked for something that its journal does not have. The message tells the difference."""


class RecordedError(LanguageError, RuntimeError):
    """A failure that was recorded, of a type that is not known here. The message names the type."""


class ScriptError(LanguageError, AssertionError):
    """A scripted backend was asked what its script does not answer, or would answer what no model could."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known option nearest to `name`, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def reject_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UnknownOptionError for the first of the `given` names that is not `known`."""
    names = set(known)
    for name in given:
        if name not in names:
            raise UnknownOptionError(f"{owner} has no option {name!r}; {nearest(name, names)}")


def node_failure(node: object, cause: BaseException, where: Place | None) -> ProgramError:
    """The ProgramError of a node that failed because of `cause`."""
    if isinstance(cause, ReplayMismatch):
        return type(cause)(cause.message, cause.where or where)
    error = ProgramError(f"{node!r} failed: {type(cause).__name__}: {cause}", where)
    error.__cause__ = cause
    return error


class RunStopped(ProgramError):
    """A run was stopped from outside of its nodes; what it still had to do was given up."""


class ProgramCancelled(RunStopped):
    """`state.cancel()` was called, or nobody waits for the run any more."""


class DeadlineExceeded(RunStopped, TimeoutError):
    """The run, or one of its gens, took longer than its `timeout`."""


class BudgetExceeded(RunStopped):
    """The run used more than its budget allows."""


class WouldBlockError(LanguageError, RuntimeError):
    """An `async def` program read a value that is not there yet without awaiting it."""


class UnknownVariableError(LanguageError, KeyError):
    """A variable that the state does not have. The message names those that it has."""

    def __init__(self, name: str | None, known: Iterable[str | None] = ()) -> None:
        super().__init__(name)
        self.known = tuple(known)

    def __str__(self) -> str:
        names = [name for name in self.known if name is not None]
        return f"no variable {self.args[0]!r}; " + (nearest(str(self.args[0]), names) if names else "there are none")

    def __reduce__(self) -> tuple[type[UnknownVariableError], tuple[str | None, tuple[str | None, ...]]]:
        return type(self), (self.args[0], self.known)
