"""What `s.get` makes of a variable's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ProgramError
from ..interpreter.state_transcript import PendingText
from ..interpreter.state_variables import StateVariables
from ..nodes.ir import SglGen, SglSelect
from ..typed.typed_text_parsing import TypedTextParser

if TYPE_CHECKING:
    from ..backend import Backend
    from ..interpreter.stream_executor import StreamExecutor


def typed_value(executor: StreamExecutor, variables: StateVariables, name: str, value: Any, type: Any = None) -> Any:
    """`value` read as `type`, else as the variable's gen says; other values as they are. ProgramError."""
    reading = _reading(variables.node_of(name), type)
    if reading is None:
        return value
    binding = executor.find(name, variables)
    where = binding.where if isinstance(binding, PendingText) else None
    if type is not None and isinstance(binding, PendingText) and _is_cut(binding.meta_info):
        raise ProgramError(
            f"variable {name!r} has no value of that type: its text was cut at its limit, after {value!r}; give its "
            "gen more tokens",
            where,
        )
    try:
        return _read(reading, value, executor.backend)
    except ValueError as error:
        raise ProgramError(f"variable {name!r} has no value of the type it was asked for: {error}", where) from error


def _read(reading: TypedTextParser[Any], value: Any, backend: Backend) -> Any:
    """Texts, in lists of forks and samples; what the program set itself is not text and stays as it is."""
    if isinstance(value, list):
        return [_read(reading, item, backend) for item in value]
    return reading.read(value, backend) if isinstance(value, str) else value


def _is_cut(meta: Any) -> bool:
    """Whether the text of a gen, or of one of its samples, was cut and not closed."""
    found = meta if isinstance(meta, list) else [meta]
    return any(one.get("truncated") and not one.get("closed") for one in found if isinstance(one, dict))


def _reading(node: Any, type: Any) -> TypedTextParser[Any] | None:
    if type is not None:
        from ..typed import reading_of

        return reading_of(type)
    return node.reading if isinstance(node, SglGen | SglSelect) else None
