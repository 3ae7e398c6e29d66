"""Every exception of the language, one tree. Messages name the offending value and the next action."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


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


class TraceError(LanguageError, TypeError):
    """A program that cannot be traced: it needs a value that only a run can give."""


class UnsupportedByBackendError(LanguageError, NotImplementedError):
    """The backend of this program cannot do what a node asks for."""


class ProgramError(LanguageError, RuntimeError):
    """A node of a program failed. `where` is its file and line, `__cause__` the original error."""

    def __init__(self, message: str, where: Place | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where


class StateEndedError(ProgramError):
    """Something was appended to a state whose program has ended."""


class Place(NamedTuple):
    """A line of a user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


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
    error = ProgramError(f"{node!r} failed: {type(cause).__name__}: {cause}", where)
    error.__cause__ = cause
    return error
