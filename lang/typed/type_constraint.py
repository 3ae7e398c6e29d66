"""Puts the grammar of a type on the options of a gen."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import BadValueError, UnsupportedByBackendError
from ..sampling.options import CONSTRAINTS, SamplingOptions

if TYPE_CHECKING:
    from ..backend import Backend


def constrained(
    options: SamplingOptions, backend: Backend, kind: Any, *constraints: dict[str, Any], whole: bool = True
) -> SamplingOptions:
    """The options of the gen with the first of the constraints that the backend knows.

    `whole`: a text that a limit cuts is an error, whatever the gen says, unless it is closed. A backend that knows none
    of the constraints gets the options as they are: then only reading shows whether the text has a value.

    Raises BadValueError if the gen already has a constraint, or naming the type if it cannot be enforced.
    """
    reject_constraints(options, f"the type {type_name(kind)}")
    strict = True if whole else options.error_on_truncation
    for constraint in constraints:
        typed = replace(options, **constraint, error_on_truncation=strict)
        if enforced(replace(typed, close_at_limit=None), backend, kind):
            return typed
    return options


def reject_constraints(options: SamplingOptions, what: str) -> None:
    """Raise BadValueError for options that have a constraint already."""
    for name in CONSTRAINTS:
        value = getattr(options, name)
        if value is not None:
            raise BadValueError(f"a gen has {what} and {name}={value!r}; give one of them")


def enforced(options: SamplingOptions, backend: Backend, kind: Any) -> bool:
    """Compile the constraint ahead; False where the backend knows no such constraints."""
    try:
        prepare(options, backend, kind)
    except UnsupportedByBackendError:
        return False
    return True


def prepare(options: SamplingOptions, backend: Backend, kind: Any) -> None:
    """Compile the constraint ahead. Raises UnsupportedByBackendError where the backend knows no such constraints."""
    from sgl.grammars.errors import GrammarError

    try:
        backend.prepare(options)
    except GrammarError as error:
        raise BadValueError(f"{_place(kind, error)} cannot be enforced: {error}") from error


def type_name(kind: Any) -> str:
    """A type as people write it: `int`, `Booking`, `list[int]`."""
    return kind.__name__ if isinstance(kind, type) else repr(kind).replace("typing.", "")


def _place(kind: Any, error: Any) -> str:
    """The type and the field of it that a grammar error is about."""
    steps = str(getattr(error, "where", "")).split("/")
    fields = [after for before, after in pairwise(steps) if before == "properties"]
    inside = [after for before, after in pairwise(steps) if before == "$defs"]
    owner = f" (in {inside[-1]})" if inside and inside[-1] != type_name(kind) else ""
    return f"the type {type_name(kind)}{owner}" + (f", field {'.'.join(fields)!r}," if fields else "")
