"""Calls of the primitives of the language: gen, select, roles ..., their options and their values."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..errors import LanguageError
from ..nodes import primitives
from ..sampling.option_table import PROGRAM_OPTIONS
from ..sampling.options import CONSTRAINTS, NAMES, OTHER_NAMES, make_options
from . import constraint_checks
from .abstract_values import (
    ANY,
    AbstractValue,
    AppendableExpression,
    ConstantValue,
    ExpressionNodeValue,
    GeneratedText,
    ListValue,
    TextPattern,
    options_of,
)
from .check_context import CheckContext
from .check_problem import hint

GEN_PRIMITIVES = ("gen", "gen_int", "gen_string", "select")


# names of sgl that are not appended
_OTHER_NAMES = {
    "answer_likelihood",
    "calibrate",
    "choice",
    "classify",
    "compare",
    "copied",
    "copied_spans",
    "decide",
    "evaluate",
    "examples",
    "extract",
    "extract_document",
    "flush_cache",
    "function",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "instrument",
    "journal",
    "nearest",
    "once",
    "predicate",
    "record",
    "replay",
    "report",
    "resume",
    "score",
    "set_default_backend",
    "token_length_normalized",
    "tune",
    "unconditional_likelihood_normalized",
    "uninstrument",
}


@cache
def expression_primitives() -> frozenset[str]:
    """The primitives that make expressions."""
    public = (name for name in dir(primitives) if not name.startswith("_") and name.islower())
    return frozenset(name for name in public if getattr(primitives, name).__class__.__name__ == "function")


def check_primitive(c: CheckContext, name: str, node: ast.Call) -> None:
    """A name that sgl does not have, called in a program."""
    if c.in_program and name.islower() and name not in expression_primitives() | _OTHER_NAMES:
        c.report("SGL406", node.func, f"sgl has no {name!r}{hint(name, _public_names())}")


@cache
def _public_names() -> frozenset[str]:
    from .module_bindings import STAR_NAMES

    return frozenset(STAR_NAMES)


def _signature(primitive: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(primitives, primitive)).parameters.values())


@cache
def parameters(primitive: str) -> tuple[str, ...]:
    """The named parameters of a primitive, in their order."""
    names = [
        parameter.name
        for parameter in _signature(primitive)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    return tuple(names)


@cache
def positional(primitive: str) -> tuple[str, ...]:
    if primitive in ("gen_int", "gen_string"):
        return tuple(getattr(primitives, "_TYPED_ORDER", parameters(primitive)))
    return tuple(p.name for p in _signature(primitive) if p.kind is p.POSITIONAL_OR_KEYWORD)


@cache
def known_options(primitive: str) -> frozenset[str]:
    """All keywords that a primitive takes."""
    own = frozenset(parameters(primitive))
    return (
        own
        if primitive == "select"
        else own | frozenset(parameters("gen")) | getattr(primitives, "_GEN_NAMES", frozenset())
    )


def make_gen(
    c: CheckContext,
    primitive: str,
    node: ast.Call,
    args: list[AbstractValue],
    keywords: Mapping[str, AbstractValue],
    whole: bool,
) -> AbstractValue:
    """A gen or select. `whole`: there are no * or ** arguments, all is seen."""
    _check_known(c, primitive, node)
    if primitive == "gen" and len(args) > 1 and not _is_count(args[1]):
        return _make_typed_gen(c, node, args, keywords, whole)
    if primitive == "gen" and len(args) > 1 and isinstance(args[1], ConstantValue) and isinstance(args[1].value, str):
        c.report("SGL402", node.args[1], f"gen: {primitives._text_as_type(args[1].value)}")
        args = [args[0], ConstantValue(None), *args[2:]]
    given = {**dict(zip(positional(primitive), args, strict=False)), **keywords}
    places = _places(primitive, node)
    if len(args) > len(positional(primitive)):
        c.report(
            "SGL401", node, f"{primitive} takes {len(positional(primitive))} positional arguments, not {len(args)}"
        )
    chosen = primitive == "select" or _is_given(given.get("choices"))
    if chosen or "choices" in given:
        check_choices(c, primitive, node, given.get("choices"), places, whole)
    check_values(c, primitive, given, places, node)
    if not chosen:
        constraint_checks.check_constraints(c, given, places, node)
    name = given.get("name", ConstantValue(None) if whole else ANY)
    single = _is_single(given.get("n"))
    return AppendableExpression((ExpressionNodeValue("select" if chosen else "gen", node, name, single=single),))


def make_messages(c: CheckContext, node: ast.Call, given: AbstractValue | None) -> AbstractValue:
    """`sgl.messages(given)`: whole turns; what is spelt out is read as a run would."""
    from ..tools.chat_messages import messages

    if isinstance(given, ConstantValue):
        try:
            messages(given.value)
        except (LanguageError, TypeError) as error:
            c.report("SGL402", node, str(error))
    return AppendableExpression(
        (ExpressionNodeValue("turns" if isinstance(given, ConstantValue) and given.value else "any", node),)
    )


def _is_count(value: AbstractValue) -> bool:
    """Surely no type: a number, or None."""
    return isinstance(value, ConstantValue) and isinstance(value.value, int | float | str | None)


def _make_typed_gen(
    c: CheckContext, node: ast.Call, args: list[AbstractValue], keywords: Mapping[str, AbstractValue], whole: bool
) -> AbstractValue:
    """`gen(name, type, ...)`, or a number that is not known."""
    places: dict[str, ast.AST] = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    check_values(c, "gen", keywords, places, node)
    constraint_checks.check_constraints(c, {"type": args[1], **keywords}, places, node)
    return AppendableExpression(
        (ExpressionNodeValue("gen", node, args[0], single=whole and _is_single(keywords.get("n"))),)
    )


def _is_given(value: AbstractValue | None) -> bool:
    return value is not None and not (isinstance(value, ConstantValue) and not value.value)


def _is_single(n: AbstractValue | None) -> bool:
    return n is None or (isinstance(n, ConstantValue) and n.value in (None, 1))


def _places(primitive: str, node: ast.Call) -> dict[str, ast.AST]:
    places: dict[str, ast.AST] = dict(zip(positional(primitive), node.args, strict=False))
    places.update((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
    return places


def _check_known(c: CheckContext, primitive: str, node: ast.Call) -> None:
    known = known_options(primitive)
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in known:
            c.report("SGL401", keyword, f"{primitive} has no option {keyword.arg!r}{hint(keyword.arg, known)}")


# --- values ------------------------------------------------------------------------------------------------


def check_values(
    c: CheckContext, owner: str, given: Mapping[str, AbstractValue], places: Mapping[str, ast.AST], node: ast.AST
) -> None:
    """Every value that the source spells out, as the language itself checks it."""
    for name, value in given.items():
        option = OTHER_NAMES.get(name, name)
        if option not in NAMES or option in CONSTRAINTS:
            continue
        if not isinstance(value, ConstantValue) or value.value is None or isinstance(value.value, type):
            continue
        message = bad_value(option, value.value)
        if message is not None:
            shown = message.replace(option, name) if name != option else message
            rule = "SGL501" if option == "stop_regex" and "regular expression" in shown else "SGL402"
            c.report(rule, places.get(name, node), f"{owner}: {shown}")


def bad_value(option: str, value: Any) -> str | None:
    """Why an option does not take a value; None if it does."""
    try:
        made = make_options(**{option: value})
        return _out_of_range(option, getattr(made, option))
    except (LanguageError, TypeError, ValueError) as error:
        return str(error)


def _out_of_range(option: str, value: Any) -> str | None:
    from sgl.runtime.errors import ConfigError
    from sgl.runtime.sampling.sampling_params import SAMPLING_OPTIONS, SamplingParams

    name = PROGRAM_OPTIONS[option].name
    if name not in SAMPLING_OPTIONS:
        return None
    try:
        SamplingParams(**{"max_tokens": 1 << 30, name: value}).validate()
    except ConfigError as error:
        return str(error)
    return None


# --- choices -----------------------------------------------------------------------------------------------


def check_choices(
    c: CheckContext,
    primitive: str,
    node: ast.AST,
    value: AbstractValue | None,
    places: Mapping[str, ast.AST],
    whole: bool,
) -> None:
    """A list of strings, each once."""
    place = places.get("choices", node)
    if value is None or (isinstance(value, ConstantValue) and value.value is None):
        if primitive == "select" and whole:
            c.report(
                "SGL403",
                node,
                "select has no choices; give a list of strings, a dict of definitions, an Enum or a Literal",
            )
    elif isinstance(value, ConstantValue):
        _check_constant_choices(c, primitive, place, value.value)
    elif isinstance(value, ListValue):
        _check_seen_choices(c, place, value)
    elif isinstance(value, TextPattern | GeneratedText):
        c.report("SGL403", place, "choices is one string; give a list of strings")


def _check_constant_choices(c: CheckContext, primitive: str, place: ast.AST, choices: Any) -> None:
    if choices is bool:
        return
    if isinstance(choices, dict):
        _check_definitions(c, place, choices)
    elif isinstance(choices, str):
        c.report("SGL403", place, f"choices is the string {choices!r}; give a list: choices=[{choices!r}]")
    elif not isinstance(choices, list | tuple | set | frozenset | range):
        c.report(
            "SGL403",
            place,
            f"choices is {choices!r}; give a list of strings, a dict of definitions, an Enum or a Literal",
        )
    elif not choices:
        c.report(
            "SGL403",
            place,
            "choices is empty; "
            f"{'a select needs at least one' if primitive == 'select' else 'leave it out or give choices'}",
        )
    elif wrong := [choice for choice in choices if not isinstance(choice, str)]:
        c.report("SGL403", place, f"choices holds {wrong[0]!r}; give strings: {str(wrong[0])!r}")
    else:
        twice = sorted({choice for choice in choices if list(choices).count(choice) > 1})
        if twice:
            c.report("SGL404", place, f"choices holds {twice[0]!r} twice; each choice is scored once")


def _check_definitions(c: CheckContext, place: ast.AST, choices: dict[Any, Any]) -> None:
    """A dict of texts with what each means, where that is known."""
    for label, about in choices.items():
        if not isinstance(label, str):
            c.report("SGL403", place, f"choices holds {label!r}; give strings: {str(label)!r}")
        elif about is not None and not isinstance(about, str):
            c.report(
                "SGL403",
                place,
                f"the definition of {label!r} is {about!r}; give a text that says what the label means, or None",
            )
        else:
            continue
        return
    if not choices:
        c.report("SGL403", place, "choices is empty; give at least one")


def _check_seen_choices(c: CheckContext, place: ast.AST, choices: ListValue) -> None:
    for item in choices.items:
        for option in options_of(item):
            if isinstance(option, ConstantValue) and not isinstance(option.value, str):
                c.report("SGL403", place, f"choices holds {option.value!r}; give strings: {str(option.value)!r}")
                return
            if isinstance(option, AppendableExpression):
                c.report("SGL403", place, "choices holds an expression; give strings")
                return
