"""Every exception of the language, one tree. Messages name the offending value and the next action."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .places.source_location import SourceLocation


class LanguageError(Exception):
    """Base class of all errors of the language."""


class UnknownOptionError(LanguageError, TypeError):
    """An option, argument or attribute that does not exist. The message names the most similar one."""


class BadValueError(LanguageError, ValueError):
    """An option has a value of the wrong type or outside its range."""


def check_text(text: str, what: str) -> None:
    """Raise BadValueError for unpaired surrogates, which no tokenizer and no file accepts."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise BadValueError(
            f"{what} is not valid Unicode: it has an unpaired surrogate, {text[error.start]!r}, at position "
            f"{error.start}; leave it out, or "
            'repair it with text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")'
        ) from None


class ArgumentsError(LanguageError, TypeError):
    """Arguments do not fit the signature of a program."""


class TemplateError(LanguageError, KeyError):
    """A chat template does not exist or cannot render a conversation."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TextOfNodeError(LanguageError, TypeError):
    """A node was turned into a string, but it has no text before the program runs."""


class TraceError(LanguageError, TypeError):
    """A program cannot be traced because it needs a value that exists only in a run."""


class UnsupportedByBackendError(LanguageError, NotImplementedError):
    """The backend does not support what a node requests."""


class RemoteError(LanguageError, RuntimeError):
    """A call to a remote backend failed.

    `status` is the HTTP status if there was an answer, `url` the address without secrets, `retry_after` the
    seconds that the server asked to wait, `attempts` the number of attempts. `retryable`: another attempt may
    succeed.
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
    """No server answered at the address, or the connection broke before the answer was complete."""


class RemoteStatusError(RemoteError):
    """The server answered with an error; the message quotes it."""


class RemoteProtocolError(RemoteError):
    """The server's answer does not follow the protocol."""


class RemoteStreamError(RemoteError):
    """A stream ended early. `text` is what had arrived by then."""

    def __init__(self, message: str, *, text: str = "", **about: Any) -> None:
        super().__init__(message, **about)
        self.text = text


class RemoteTimeoutError(RemoteError, TimeoutError):
    """A call exceeded its time limit."""


class RemoteAbortedError(RemoteError):
    """The stream was aborted while the call was running or waiting."""


class SpeculationError(LanguageError, RuntimeError):
    """With num_api_spec_tokens, the answer of a call did not fit the program's assistant turn."""


class ProgramError(LanguageError, RuntimeError):
    """A node of a program failed. `where` is its file and line; `__cause__` is the original error."""

    def __init__(self, message: str, where: SourceLocation | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.where)


class BatchError(ProgramError):
    """The body of a batch item raised an error; the other items finished.

    index: the index of the first failed item; `__cause__` is its error. arguments: its arguments, by name.
    results: one per item, as with `return_exceptions=True`: its state or its error. None for items that a
    generator-style batch has already returned or had not started.
    """

    def __init__(
        self,
        message: str,
        where: SourceLocation | None = None,
        index: int = 0,
        arguments: Mapping[str, Any] | None = None,
        results: Sequence[Any] = (),
    ) -> None:
        super().__init__(message, where)
        self.index = index
        self.arguments = dict(arguments or {})
        self.results = list(results)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.where, self.index, self.arguments, self.results)


class TooLongError(LanguageError, ValueError):
    """A text and the answer to it do not fit the context of the model. `__cause__` is the backend's error."""


class ExtractionError(LanguageError, ValueError):
    """No attempt of an extraction gave a value that the validators take.

    attempts: what the model wrote, and what was wrong with it, of each attempt. messages: the whole conversation.
    """

    def __init__(self, message: str, attempts: Sequence[Any] = (), messages: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.attempts = list(attempts)
        self.messages = list(messages)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.attempts, self.messages)


class StateEndedError(ProgramError):
    """A program appended to a state after its end; what is to follow belongs into the program, or into another one."""


class JournalError(LanguageError, RuntimeError):
    """A journal cannot be read, written or searched."""


class MissingJournalError(JournalError, FileNotFoundError):
    """The file of a journal does not exist."""


class ReplayMismatch(ProgramError):
    """A replayed program requested something that its journal does not have. The message shows the difference."""


class RecordedError(LanguageError, RuntimeError):
    """A recorded failure whose type is unknown here. The message names the type."""


class ScriptError(LanguageError, AssertionError):
    """A script has no answer for a call, or one that no model could give."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known option most similar to `name`, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def reject_unknown(
    owner: str, given: Iterable[str], known: Iterable[str], meant: Mapping[str, str] | None = None
) -> None:
    """Raise UnknownOptionError for the first of the `given` names that is not `known`.

    `meant`: what to write for names of others.
    """
    names = set(known)
    for name in given:
        if name not in names:
            raise UnknownOptionError(
                f"{owner} has no option {name!r}; {(meant or {}).get(name) or nearest(name, names)}"
            )


def node_failure(node: object, cause: BaseException, where: SourceLocation | None) -> ProgramError:
    """The ProgramError of a node that failed because of `cause`."""
    if isinstance(cause, ReplayMismatch):
        return type(cause)(cause.message, cause.where or where)
    error = ProgramError(f"{node!r} failed: {type(cause).__name__}: {error_message_of(cause)}", where)
    error.__cause__ = cause
    return error


def shown(value: object) -> str:
    """The repr of a value, shortened; never raises (a number may be too long for a repr)."""
    try:
        text = repr(value)
    except BaseException as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}..."


def error_message_of(error: BaseException) -> str:
    """The message of an error; never raises (foreign classes may fail in str())."""
    try:
        return str(error)
    except BaseException as broken:
        return f"(no message: its str() raises {type(broken).__name__})"


class RunStopped(ProgramError):
    """A run was stopped from outside; its remaining work was abandoned."""


class ProgramCancelled(RunStopped):
    """`state.cancel()` was called, or nothing waits for the run any more."""


class DeadlineExceeded(RunStopped, TimeoutError):
    """The run, or one of its gens, took longer than its `timeout`."""


class BudgetExceeded(RunStopped):
    """The run used more than its budget allows."""


class NeverMadeError(ProgramError, KeyError):
    """A variable does not exist because the run failed before making it. `__cause__` is the failure."""

    __str__ = ProgramError.__str__


class WouldBlockError(LanguageError, RuntimeError):
    """An `async def` program read a value that is not ready without awaiting it."""


class UnknownVariableError(LanguageError, KeyError):
    """The state has no such variable. The message names existing ones; `forked`: its forks have the variable."""

    def __init__(self, name: str | None, known: Iterable[str | None] = (), forked: bool = False) -> None:
        super().__init__(name)
        self.known = tuple(known)
        self.forked = forked

    def __str__(self) -> str:
        wanted = self.args[0]
        if self.forked:
            return (
                f"no variable {wanted!r} here: {wanted!r} is a variable of the forks; join first (forks.join()), "
                "or read it there"
            )
        if not isinstance(wanted, str | None):
            return (
                f"{wanted!r} is not a variable name; for all values use {{name: state[name] for name in "
                f"state.variables()}}, for a stream state.text_iter()"
            )
        names = [name for name in self.known if name is not None]
        return f"no variable {wanted!r}; " + (nearest(str(wanted), names) if names else "there are none")

    def __reduce__(self) -> tuple[type[UnknownVariableError], tuple[str | None, tuple[str | None, ...], bool]]:
        return type(self), (self.args[0], self.known, self.forked)
