"""What a program is: its body, the names of its parameters, and the arguments that are bound."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, Self

from ..errors import ArgumentsError, nearest
from .type_parameters import Parameters, Returned_co


@dataclass(frozen=True)
class ProgramCall:
    """The arguments of one execution of a program."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Program(Generic[Parameters, Returned_co]):
    """A function whose first parameter is `s`; `sgl.SglFunction` is one that can be run, traced and compiled.

    `bind_arguments` and `run_options` are what `bind` and `with_options` have fixed.
    """

    __name__: str
    method_name: str | None = None  # in its class, of a method with its instance

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bind_arguments: dict[str, Any] | None = None,
    ) -> None:
        if not callable(func):
            raise ArgumentsError(f"sgl.function({func!r:.60}): give a function whose first parameter is `s`")
        itself: Any = self
        functools.update_wrapper(itself, func)
        self.__name__ = getattr(func, "__name__", type(func).__name__)
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = bind_arguments or {}
        self.run_options: dict[str, Any] = {}
        self._signature = inspect.signature(func)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].name != "s":
            raise ArgumentsError(f"the first parameter of {func.__qualname__} must be `s`, the state of the program")
        positional = [p for p in parameters[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.arg_names = [p.name for p in positional]
        self.arg_defaults = [p.default for p in positional if p.default is not p.empty]
        self.parameter_names = frozenset(
            p.name for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        )
        self._required = {
            p.name for p in parameters[1:] if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        self.is_async = inspect.iscoroutinefunction(func)
        self.takes_any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def __repr__(self) -> str:
        return f"<sgl.function {self.__name__}>"

    def call(self, state: Any, call: ProgramCall) -> Any:
        """The body on `state`; bound arguments win over given ones. Raises ArgumentsError where they do not fit."""
        try:
            return self.func(state, *call.args, **{**call.kwargs, **self.bind_arguments})
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # the body began
                raise
            raise ArgumentsError(self._misfit(error, call)) from None

    def check(self, call: ProgramCall) -> ProgramCall:
        """The arguments, if they fit; known before a backend is started for them. Raises ArgumentsError."""
        if len(call.args) <= len(self.arg_names) and self._required <= {
            *self.arg_names[: len(call.args)],
            *call.kwargs,
            *self.bind_arguments,
        }:
            return call
        return self.check_all(call)

    def check_all(self, call: ProgramCall) -> ProgramCall:
        """`check`, of what a call of the body would find as well: names, and arguments that are given twice."""
        try:
            self._signature.bind(None, *call.args, **{**call.kwargs, **self.bind_arguments})
        except TypeError as error:
            raise ArgumentsError(self._misfit(error, call)) from None
        return call

    def _misfit(self, error: TypeError, call: ProgramCall) -> str:
        shown = f"{self.__name__}({', '.join(['s', *self.arg_names])})"
        hint = (
            f"; in a program, s.call({self.__name__}, ...) runs it on the same state"
            if any(hasattr(arg, "stream_executor") for arg in call.args)
            else ""
        )
        return f"{shown}: {str(error).partition('() ')[2] or error}{hint}"

    def bind(self, **kwargs: Any) -> Program[..., Returned_co]:
        """Return the same program with some of its arguments fixed."""
        for name in kwargs:
            if name not in self.parameter_names and not self.takes_any_keyword:
                raise ArgumentsError(
                    f"{self.__name__} has no parameter {name!r}; {nearest(name, self.parameter_names)}"
                )
        return self._changed(bind_arguments={**self.bind_arguments, **kwargs})

    def of(self, method: Any, name: str) -> Self:
        """The program of a method that has its instance; `name` is its name in the class."""
        return self._changed(func=method, __wrapped__=method, method_name=name)

    def _changed(self, **attributes: Any) -> Self:
        program = object.__new__(type(self))
        program.__dict__.update(self.__dict__, **attributes)
        return program

    def __reduce__(self) -> Any:
        """By name, as functions are pickled, or as what its instance has of that name; with what is fixed."""
        fixed = self.bind_arguments, self.run_options
        if self.method_name is not None:
            found = getattr, (self.func.__self__, self.method_name)  # type: ignore[attr-defined]
            return (_with_fixed, (*found, *fixed)) if any(fixed) else found
        if any(fixed):
            return _with_fixed, (_of_module, (self.func.__module__, self.func.__qualname__), *fixed)
        return self.func.__qualname__


def _of_module(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module))


def _with_fixed(
    find: Callable[..., Any], place: tuple[Any, ...], bound: dict[str, Any], options: dict[str, Any]
) -> Any:
    program = find(*place)
    bound, options = {**program.bind_arguments, **bound}, {**program.run_options, **options}
    return program._changed(bind_arguments=bound, run_options=options)


def check_program(value: Any) -> None:
    """Raise ArgumentsError for what `s.call` cannot run."""
    if not callable(getattr(value, "call", None)):
        name = getattr(value, "__name__", None)
        meant = (
            f"put @sgl.function above it, or, if it only appends, call it: {name}(s, ...)"
            if callable(value) and name
            else "give a program, made by @sgl.function"
        )
        raise ArgumentsError(f"s.call({name or repr(value)[:60]}): it is no program; {meant}")
    if options := getattr(value, "run_options", None):
        raise ArgumentsError(
            f"s.call({value.__name__}): {', '.join(options)} of with_options is for a whole run, but a call continues "
            "the run of its state; call the program without with_options"
        )
