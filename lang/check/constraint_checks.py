"""Regular expressions, JSON schemas and EBNF grammars, read as the engine will read them."""

from __future__ import annotations

import ast
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from ..errors import BadValueError
from ..sampling.options import DTYPE_REGEXES, make_options, schema_text
from .abstract_values import AbstractValue, ConstantValue, UnknownValue
from .check_context import CheckContext
from .check_problem import Severity

MOST_STATES = 3_000  # of the search for a stop string; beyond it nothing is said
_LABELS = {"regex": "SGL501", "json_schema": "SGL502", "ebnf": "SGL503"}


def check_constraints(
    c: CheckContext, given: Mapping[str, AbstractValue], places: Mapping[str, ast.AST], node: ast.AST
) -> None:
    """The constraints of one gen."""
    _check_dtype(c, given, places, node)
    _check_one(c, given, places, node)
    for name, rule in _LABELS.items():
        value = given.get(name)
        if isinstance(value, ConstantValue) and value.value is not None:
            message, sure = refusal(name, value.value)
            if message is not None:
                severity: Severity = "error" if sure or not c.remote else "warning"
                c.report(rule, places.get(name, node), message, severity=severity)
    _check_stops(c, given, places, node)


def _check_dtype(
    c: CheckContext, given: Mapping[str, AbstractValue], places: Mapping[str, ast.AST], node: ast.AST
) -> None:
    value = given.get("dtype")
    if isinstance(value, ConstantValue) and isinstance(value.value, str):
        try:
            make_options(dtype=value.value)
        except BadValueError as error:
            c.report("SGL402", places.get("dtype", node), str(error))


def _check_one(
    c: CheckContext, given: Mapping[str, AbstractValue], places: Mapping[str, ast.AST], node: ast.AST
) -> None:
    present = [name for name in ("type", "dtype", *_LABELS) if _is_given(given.get(name))]
    if "dtype" in present and "regex" in present:
        c.report(
            "SGL405",
            places.get("regex", node),
            "the regex is ignored because dtype takes precedence; give one of them",
            severity="warning",
        )
        present.remove("regex")
    if len(present) > 1:
        c.report(
            "SGL405",
            places.get(present[1], node),
            f"this gen has both {present[0]} and {present[1]}; give only one constraint",
        )


def _is_given(value: AbstractValue | None) -> bool:
    """Surely more than None."""
    return (
        value is not None
        and not isinstance(value, UnknownValue)
        and not (isinstance(value, ConstantValue) and value.value is None)
    )


# --- each kind ---------------------------------------------------------------------------------------------


def refusal(kind: str, source: Any) -> tuple[str | None, bool]:
    """Why a constraint cannot be used, None if it can; and whether any engine would refuse it."""
    try:
        key = source if isinstance(source, str) else json.dumps(source, sort_keys=False)
        hash(key)
    except (TypeError, ValueError):
        return _refusal(kind, source)
    return _cached_refusal(kind, key, isinstance(source, str))


@cache
def _cached_refusal(kind: str, key: str, is_text: bool) -> tuple[str | None, bool]:
    return _refusal(kind, key if is_text else json.loads(key))


def _refusal(kind: str, source: Any) -> tuple[str | None, bool]:
    from sgl.grammars import GrammarError, InvalidGrammarError
    from sgl.grammars.ebnf import NoVocabularyError

    try:
        _READERS[kind](source)
    except NoVocabularyError:
        return None, False  # whether there are such tokens depends on the model
    except InvalidGrammarError as error:
        return f"{kind}: {error}", True
    except GrammarError as error:
        return f"{kind}: {error}; the engine refuses it", False
    except json.JSONDecodeError as error:
        return f"json_schema is not JSON: {error}; give JSON text, a dict or a pydantic model", True
    except re.error as error:
        return f"regex {source!r} cannot be read: {error}", True
    except BadValueError as error:
        return str(error), True
    except TypeError:
        return f"{kind} is {source!r}; give text", True
    return None, True


def _read_regex(source: Any) -> Any:
    from sgl.grammars.regex import parse_regex

    re.compile(source)
    return parse_regex(source)


def _read_schema(source: Any) -> Any:
    from sgl.grammars import SchemaOptions
    from sgl.grammars.schema.schema_builder import canonical_schema, schema_expr

    json.loads(schema_text(source))
    schema, _ = canonical_schema(source)
    return schema_expr(schema, SchemaOptions.of({}))


def _read_ebnf(source: Any) -> Any:
    from sgl.grammars.ebnf import ebnf_expr

    return ebnf_expr(source)


_READERS: dict[str, Callable[[Any], Any]] = {
    "regex": _read_regex,
    "json_schema": _read_schema,
    "ebnf": _read_ebnf,
}


# --- stop strings ------------------------------------------------------------------------------------------


def _check_stops(
    c: CheckContext, given: Mapping[str, AbstractValue], places: Mapping[str, ast.AST], node: ast.AST
) -> None:
    found = _constraint(given)
    stop = given.get("stop")
    if found is None or not isinstance(stop, ConstantValue) or not stop.value:
        return
    kind, source = found
    for text in [stop.value] if isinstance(stop.value, str) else stop.value:
        if isinstance(text, str) and text and not _may_write(kind, source, text):
            c.report(
                "SGL504",
                places.get("stop", node),
                f"the {kind} never allows {text!r}, so this stop never ends the text; leave it out, or allow "
                f"it in the {kind}",
            )


def _constraint(given: Mapping[str, AbstractValue]) -> tuple[str, str] | None:
    dtype = given.get("dtype")
    if isinstance(dtype, ConstantValue) and dtype.value is not None:
        label = dtype.value.__name__ if isinstance(dtype.value, type) else dtype.value
        return ("dtype", DTYPE_REGEXES[label]) if label in DTYPE_REGEXES else None
    for kind in _LABELS:
        value = given.get(kind)
        if isinstance(value, ConstantValue) and isinstance(value.value, str | dict):
            source = value.value if isinstance(value.value, str) else json.dumps(value.value)
            return (kind, source) if refusal(kind, source)[0] is None else None
    return None


@cache
def _may_write(kind: str, source: str, text: str) -> bool:
    """Whether some text of the constraint holds `text`.

    True where the search takes too long, or depends on the model.
    """
    from sgl.grammars import GrammarError

    try:
        automaton = _automaton(kind, source)
    except GrammarError:
        return True  # it is no refusal (see `_check_stops`), so it speaks of tokens
    wanted = text.encode()
    start = (automaton.start, 0)
    seen, queue = {start}, deque([start])
    while queue:
        state, matched = queue.popleft()
        for byte, target in _steps(automaton, state):
            after = _matched(wanted, matched, byte)
            if after == len(wanted):
                return True
            if (target, after) not in seen:
                seen.add((target, after))
                queue.append((target, after))
        if len(seen) > MOST_STATES:
            return True
    return False


def _steps(automaton: Any, state: int) -> Iterable[tuple[int, int]]:
    for byte in range(256):
        target = automaton.advance(state, bytes((byte,)))
        if target >= 0:
            yield byte, target


def _matched(wanted: bytes, matched: int, byte: int) -> int:
    """How many bytes of `wanted` the text ends with after one more byte."""
    tail = wanted[:matched] + bytes((byte,))
    for start in range(len(tail) + 1):
        if wanted.startswith(tail[start:]):
            return len(tail) - start
    return 0


@cache
def _automaton(kind: str, source: str) -> Any:
    from sgl.grammars import compile_ebnf, compile_json_schema, compile_regex

    compilers: dict[str, Callable[..., Any]] = {"json_schema": compile_json_schema, "ebnf": compile_ebnf}
    return compilers.get(kind, compile_regex)(source, _bytes()).automaton


@cache
def _bytes() -> Any:
    """A vocabulary of single bytes: enough to walk an automaton."""
    from sgl.grammars import Vocabulary

    return Vocabulary.from_bytes([*(bytes((byte,)) for byte in range(256)), b"<end>"], [256])
