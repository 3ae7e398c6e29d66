"""What a program is: its body, the names of its parameters, and the arguments that are bound."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import ArgumentsError, nearest


@dataclass(frozen=True)
class ProgramCall:
    """The arguments of one execution of a program."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Program:
    """A function whose first parameter is `s`; `sgl.SglFunction` is one that can be run, traced and compiled."""

    __name__: str

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

    def bind(self, **kwargs: Any) -> Self:
        """Return the same program with some of its arguments fixed."""
        for name in kwargs:
            if name not in self.parameter_names and not self.takes_any_keyword:
                raise ArgumentsError(
                    f"{self.__name__} has no parameter {name!r}; {nearest(name, self.parameter_names)}"
                )
        return type(self)(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **kwargs})


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
