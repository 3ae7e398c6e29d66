"""What a program, a task or a function gives for each row: a value, or the error that took its place."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sgl.lang.backends.default_backend import resolve_backend
from sgl.lang.backends.scripted.scripted_backend import Scripted
from sgl.lang.errors import ArgumentsError, BadValueError, BatchError, reject_unknown
from sgl.lang.interpreter.token_usage import Usage
from sgl.lang.journal import JournalCounts, journalled, once
from sgl.lang.program import batch_runs
from sgl.lang.program.program_run import RunSettings
from sgl.lang.program.program_state import ProgramState
from sgl.lang.sgl_function import SglFunction

from .field_scores import MISSING
from .plain_values import json_form, plain

Rows = Sequence[Any]
PLAN = {"num_threads", "progress_bar"}  # options of a batch that are not those of its runs


@dataclass(frozen=True)
class RowOutcome:
    """What a row gave: a plain value, or MISSING and an error. confidence: by the path of a field, "" the value."""

    value: Any
    error: BaseException | None = None
    confidence: Mapping[str, float] = field(default_factory=dict)
    usage: Usage | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ProgramRuns:
    """How rows are run: by what, reading which variable, and with which options of `run_batch`. several: whether the
    gold values are lists."""

    program: Any
    variable: str | None
    backend: Any
    journal: str | Path | None
    options: Mapping[str, Any]
    several: bool

    def outcomes(self, rows: Rows) -> tuple[list[RowOutcome], float, JournalCounts | None]:
        """Of every row, in order; the seconds that all took; and what the journal served, if there is one."""
        run, backend = self._chosen()
        with self._recorded(backend) as recorded:
            started = time.perf_counter()
            found = run(rows, recorded)
            return found, time.perf_counter() - started, getattr(recorded, "counts", None)

    def _chosen(self) -> tuple[Callable[[Rows, Any], list[RowOutcome]], Any]:
        """How rows are run, and where."""
        if isinstance(self.program, SglFunction):
            return self._of_program, resolve_backend(self.backend)
        if self.variable is not None:
            raise BadValueError(f"value={self.variable!r} names a variable of a program; {self.program!r} has none")
        if batch_of(self.program):
            return self._of_task, resolve_backend(self.backend)
        if self.backend is not None or self.options.keys() - PLAN:
            raise BadValueError(
                f"{_name(self.program)} is a function, to which evaluate gives only the rows; give the backend and the "
                "options of runs inside it, or make it an @sgl.function"
            )
        return self._of_function, Scripted({})

    def _of_program(self, rows: Rows, backend: Any) -> list[RowOutcome]:
        options = {"temperature": 0, **self.options, "backend": backend}
        return [self._of_state(state) for state in _run(self.program, rows, options)]

    def _of_task(self, rows: Rows, backend: Any) -> list[RowOutcome]:
        self._check_arguments()
        values = batch_of(self.program)(list(rows), backend=backend, return_exceptions=True, **self.options)
        return [_failed(one) if isinstance(one, Exception) else _of_value(one, self.several) for one in values]

    def _check_arguments(self) -> None:
        """Raises BadValueError for a task without its first arguments, such as the type of sgl.extract."""
        try:
            inspect.signature(batch_of(self.program)).bind([], **self.options)
        except TypeError as error:
            raise BadValueError(
                f"{self.program!r} cannot run with the rows alone: {error}; give its other arguments, as in "
                "functools.partial(sgl.extract, Booking)"
            ) from None

    def _of_function(self, rows: Rows, backend: Any) -> list[RowOutcome]:
        """Through a program without a model, so that a journal keeps the values and threads run the calls."""
        key = None if self.journal is None else source_key(self.program)
        called = SglFunction(partial(_called, function=self.program, several=self.several, key=key))
        states = _run(called, [{"row": row} for row in rows], {**self.options, "backend": backend})
        return [_of_kept(state) for state in states]

    @contextmanager
    def _recorded(self, backend: Any) -> Iterator[Any]:
        """The backend, with the journal around it, if there is one."""
        if self.journal is None:
            yield backend
            return
        with journalled(backend, self.journal) as recorded:
            yield recorded

    def _of_state(self, state: ProgramState | BaseException) -> RowOutcome:
        if not isinstance(state, ProgramState):
            return _failed(state)
        usage = state.usage()
        try:
            if error := state.error():
                raise error
            found = _of_value(state.ret_value if self.variable is None else state.get(self.variable), self.several)
            confidence = found.confidence or self._confidence(state, found.value)
        except Exception as error:
            return RowOutcome(MISSING, error, {}, usage, usage.wall_seconds)
        return RowOutcome(found.value, None, confidence, usage, usage.wall_seconds)

    def _confidence(self, state: ProgramState, value: Any) -> dict[str, float]:
        """Of a named variable: the probability of its choice, where it is one of several."""
        if self.variable is None:
            return {}
        try:
            return {"": state.probs(self.variable)[state[self.variable]]}
        except (BadValueError, KeyError):
            return {}


def batch_of(program: Any) -> Any:
    """How a task, or a partial of one with its first arguments, runs many rows; None for other functions."""
    if isinstance(program, partial):
        inner = batch_of(program.func)
        return inner and partial(inner, *program.args, **program.keywords)
    return getattr(program, "batch", None)


def _run(program: SglFunction, rows: Rows, options: Mapping[str, Any]) -> list[Any]:
    """The states of all rows, also of those that failed; what a body raised in place of its state."""
    plan = {name: value for name, value in options.items() if name in PLAN}
    given = {name: value for name, value in options.items() if name not in PLAN}
    reject_unknown("evaluate", given, batch_runs.OPTION_NAMES | PLAN, batch_runs.meant(given))
    calls = batch_runs.make_calls(program, rows)
    settings = RunSettings.of(given, returns_errors=True, items=len(calls))
    try:
        return batch_runs.run_all(program, calls, settings, batch_runs.BatchRunSettings(**plan))
    except BatchError as error:
        return list(error.results)


def _called(s: Any, row: Any, function: Callable[..., Any], several: bool, key: str | None) -> dict[str, Any]:
    """The body that calls a function with a row, unless a journal has its value. key: of the function in a journal."""
    args, kwargs = ((), row) if isinstance(row, dict) else (tuple(row), {}) if isinstance(row, tuple) else ((row,), {})
    if key is None:
        return _kept(function, several, *args, **kwargs)
    kept: dict[str, Any] = once(s, key, partial(_kept, function, several), *args, **kwargs)
    return kept


def _kept(function: Callable[..., Any], several: bool, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The value of a call as JSON, with its confidence and seconds."""
    started = time.perf_counter()
    found = _of_value(function(*args, **kwargs), several)
    seconds = time.perf_counter() - started
    return {"value": json_form(found.value), "confidence": dict(found.confidence), "seconds": seconds}


def _of_kept(state: ProgramState | BaseException) -> RowOutcome:
    return RowOutcome(**state.ret_value) if isinstance(state, ProgramState) else _failed(state)


def _of_value(value: Any, several: bool) -> RowOutcome:
    """Of an object with `.value` and `.confidence` (of sgl.extract), with `.label` and `.probs` (of sgl.classify; if
    there are `several` right ones, of its `.labels`), or of any other value, which has no confidence."""
    if hasattr(value, "value") and hasattr(value, "confidence"):
        confidence = {path: _probability(one) for path, one in (value.confidence or {}).items()}
        usage = getattr(value, "usage", None)
        return RowOutcome(plain(value.value), None, confidence, usage, usage and usage.wall_seconds)
    if hasattr(value, "label") and hasattr(value, "probs"):
        chosen = value.labels if several else value.label
        sure = getattr(value, "confidence", max(value.probs.values()))
        return RowOutcome(plain(chosen), None, {"": float(sure)})
    return RowOutcome(plain(value))


def _probability(confidence: Any) -> float:
    """A number, or an object's probability of the field as a whole."""
    return float(getattr(confidence, "whole", confidence))


def _failed(error: Any) -> RowOutcome:
    return RowOutcome(MISSING, error)


def source_key(function: Callable[..., Any]) -> str:
    """The name of a function with a digest of its source and of the arguments that are bound to it."""
    return f"{_name(function)} {blake2b(_source(function).encode(), digest_size=8).hexdigest()}"


def _source(function: Any) -> str:
    if isinstance(function, partial):
        return f"{_source(function.func)} {function.args!r} {function.keywords!r}"
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        raise ArgumentsError(
            f"the source of {_name(function)} cannot be read, so that a journal cannot know when it changes; define it "
            "in a file"
        ) from None


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or _name(getattr(function, "func", type(function)))
