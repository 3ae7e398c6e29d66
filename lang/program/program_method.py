"""Programs that are methods of a class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, overload

from ..errors import ArgumentsError
from .program import Program

ProgramType_co = TypeVar("ProgramType_co", bound=Program[..., Any], covariant=True)


def is_method(func: Any) -> bool:
    """Whether a function in the body of a class takes the state second, after `self`."""
    code, (outer, _, _) = getattr(func, "__code__", None), getattr(func, "__qualname__", "").rpartition(".")
    if code is None or outer == "" or outer.endswith("<locals>"):
        return False
    names = code.co_varnames[: code.co_argcount]
    return len(names) > 1 and names[0] != "s" and names[1] == "s"


class ProgramMethod(Generic[ProgramType_co]):
    """What `@sgl.function` makes of a method: `judge.score` is the program, whose body gets `judge` as `self`.

    Of a class method, the class and its instances give the program, whose body gets the class.
    """

    def __init__(self, func: Any, make: Callable[[Any], ProgramType_co]) -> None:
        self._of_class = isinstance(func, classmethod)
        self._func: Any = func.__func__ if self._of_class else func
        itself: Any = self
        functools.update_wrapper(itself, self._func)
        self._name = self._func.__name__
        self._program = make(MethodType(self._func, self))  # `of` replaces the instance

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self | ProgramType_co: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> ProgramType_co: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if self._of_class:
            return self._bound(type(instance) if owner is None else owner)
        if instance is None:
            return self
        if instance is owner:
            self._misuse("is below @classmethod; write @sgl.function above it")
        return self._bound(instance)

    def _bound(self, owner: Any) -> Program[..., Any]:
        return self._program.of(MethodType(self._func, owner), self._name)

    def __repr__(self) -> str:
        return f"<sgl.function {self._func.__qualname__}, a method>"

    def _misuse(self, what: str) -> NoReturn:
        raise ArgumentsError(f"the program {self._func.__qualname__} {what}")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Only for what is not there: programs have it."""
            if not name.startswith("_") and hasattr(self._program, name):
                self._misuse(f"is a method; take it from an instance: instance.{self._name}.{name}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
