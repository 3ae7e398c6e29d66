"""An error on its way to another process."""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple


class SerializedError(NamedTuple):
    """Its class by reference, what it says and what it holds; how it was made is forgotten."""

    kind: type[BaseException]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(
        cls,
        error: BaseException,
        dumps: Callable[[Any], bytes] = pickle.dumps,
        otherwise: type[BaseException] = RuntimeError,
    ) -> SerializedError:
        """One that `dumps` can send.

        Of an error that it cannot, the nearest of its base classes with the same text, or else `otherwise`.
        """
        made = cls._whole(error)
        if made is not None and made._travels(dumps):
            return made
        text = f"{type(error).__name__}: {_text(error)}"
        plain = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
        bases = (base for base in type(error).__mro__[1:] if base not in (Exception, BaseException, object))
        named = (cls(base, (text,), plain) for base in bases)
        return next((one for one in named if one._travels(dumps)), cls(otherwise, (text,), {}))

    @classmethod
    def _whole(cls, error: BaseException) -> SerializedError | None:
        try:
            arguments = tuple(error.__reduce__()[1]) if _is_builtin(type(error)) else error.args
            return cls(type(error), arguments, dict(vars(error)))
        except BaseException:  # its class may do anything
            return None

    def error(self) -> BaseException:
        if _is_builtin(self.kind):
            made = self.kind(*self.arguments)  # OSError and others keep their arguments outside `args`
        else:
            made = self.kind.__new__(self.kind, *self.arguments)
            made.args = self.arguments
        made.__dict__.update(self.attributes)
        return made

    def _travels(self, dumps: Callable[[Any], bytes]) -> bool:
        try:
            again = pickle.loads(dumps(self)).error()
        except BaseException:  # whatever holds it may do anything
            return False
        return isinstance(again, self.kind)


def _is_builtin(kind: type[BaseException]) -> bool:
    return kind.__module__ == builtins.__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:
        return f"(its str() raises {type(broken).__name__})"
