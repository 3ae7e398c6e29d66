"""Every exception of the language, one tree. Messages name the offending value and the next action."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .places.place import Place


class LanguageError(Exception):
    """Base class of all errors that the language raises on purpose."""


class UnknownOptionError(LanguageError, TypeError):
    """An option, argument or attribute that does not exist. The message names the nearest one that does."""


class BadValueError(LanguageError, ValueError):
    """An option whose value has the wrong type or lies outside its range."""


def check_text(text: str, what: str) -> None:
    """Raise BadValueError for halves of characters (lone surrogates), which no tokenizer and no file takes."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise BadValueError(
            f"{what} is no Unicode text: it has half a character, {text[error.start]!r}, at {error.start}; leave it out, or "
            'mend it with text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")'
        ) from None


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


class BatchError(ProgramError):
    """The body of an item of a batch failed; the others went on.

    index: of the first item that failed; `__cause__` is what its body raised. arguments: what it was given, by name.
    results: one for each item, as `return_exceptions=True` gives them: its state, or what its body raised. None for
    items that a generator-style batch has given already or had not begun.
    """

    def __init__(
        self,
        message: str,
        where: Place | None = None,
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
    error = ProgramError(f"{node!r} failed: {type(cause).__name__}: {error_words(cause)}", where)
    error.__cause__ = cause
    return error


def shown(value: object) -> str:
    """The repr of a value, cut, and whatever it does: a number may be too long for one."""
    try:
        text = repr(value)
    except BaseException as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}..."


def error_words(error: BaseException) -> str:
    """What an error says; those of others' classes may raise instead."""
    try:
        return str(error)
    except BaseException as broken:
        return f"(it does not say: its str() raises {type(broken).__name__})"


class RunStopped(ProgramError):
    """A run was stopped from outside of its nodes; what it still had to do was given up."""


class ProgramCancelled(RunStopped):
    """`state.cancel()` was called, or nobody waits for the run any more."""


class DeadlineExceeded(RunStopped, TimeoutError):
    """The run, or one of its gens, took longer than its `timeout`."""


class BudgetExceeded(RunStopped):
    """The run used more than its budget allows."""


class NeverMadeError(ProgramError, KeyError):
    """A variable that does not exist, because what would have made it was not reached. `__cause__` is why."""

    __str__ = ProgramError.__str__


class WouldBlockError(LanguageError, RuntimeError):
    """An `async def` program read a value that is not there yet without awaiting it."""


class UnknownVariableError(LanguageError, KeyError):
    """A variable that the state does not have. The message names those that it has; `forked`: its forks have it."""

    def __init__(self, name: str | None, known: Iterable[str | None] = (), forked: bool = False) -> None:
        super().__init__(name)
        self.known = tuple(known)
        self.forked = forked

    def __str__(self) -> str:
        wanted = self.args[0]
        if self.forked:
            return f"no variable {wanted!r} here: {wanted!r} is a variable of the forks; join first (forks.join()), or read it there"
        if not isinstance(wanted, str | None):
            return f"{wanted!r} is no name of a variable; all at once are {{name: state[name] for name in state.variables()}}"
        names = [name for name in self.known if name is not None]
        return f"no variable {wanted!r}; " + (nearest(str(wanted), names) if names else "there are none")

    def __reduce__(self) -> tuple[type[UnknownVariableError], tuple[str | None, tuple[str | None, ...], bool]]:
        return type(self), (self.args[0], self.known, self.forked)
