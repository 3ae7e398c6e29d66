"""Programs: how they are declared, run, bound and batched."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from ..program import batch_runs
from ..program.program_run import _SWITCHES
from ..sampling.options import RUN_NAMES
from .abstract_values import (
    ANY,
    AbstractValue,
    CallArguments,
    ConstantValue,
    DictValue,
    FunctionValue,
    GeneratedText,
    ListValue,
    TextPattern,
    options_of,
)
from .check_context import CheckContext
from .check_environment import CheckEnvironment, escape
from .check_problem import hint
from .primitive_call_checks import check_values

AnyFunctionDef = ast.FunctionDef | ast.AsyncFunctionDef
RUNNERS = ("run", "run_batch", "arun", "arun_batch", "bind", "with_options", "item", "trace", "cache", "compile")
_RUN_EXTRA = frozenset({"timeout", "budget", "adapter"})
_BATCH_EXTRA = frozenset({"num_threads", "progress_bar", "generator_style", "return_exceptions", "batch_kwargs"})


@dataclass(frozen=True)
class ProgramSignature:
    """The parameters of a program after `s`."""

    positional: tuple[str, ...]
    required: frozenset[str]
    names: frozenset[str]
    more_positional: bool
    more_named: bool


def from_state(node: AnyFunctionDef) -> list[ast.arg]:
    """The positional parameters from the state on: of a method without `self` or `cls`."""
    ordered = [*node.args.posonlyargs, *node.args.args]
    is_method = len(ordered) > 1 and ordered[0].arg in ("self", "cls") and ordered[1].arg == "s"
    return ordered[1:] if is_method else ordered


def signature(node: AnyFunctionDef) -> ProgramSignature:
    spec = node.args
    ordered = from_state(node)
    optional = {item.arg for item in ordered[len(ordered) - len(spec.defaults) :]}
    optional |= {a.arg for a, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is not None}
    names = [item.arg for item in ordered[1:]]
    every = frozenset(names) | {item.arg for item in spec.kwonlyargs}
    return ProgramSignature(tuple(names), every - optional, every, spec.vararg is not None, spec.kwarg is not None)


def check_declaration(c: CheckContext, node: AnyFunctionDef) -> None:
    """The parameters of a program."""
    ordered = from_state(node)
    if not ordered or ordered[0].arg != "s":
        shown = repr(ordered[0].arg) if ordered else "missing"
        c.report(
            "SGL601",
            ordered[0] if ordered else node,
            f"the first parameter of {node.name} is {shown}; it must be `s`, the state of the program",
        )
    for item in [*ordered[1:], *node.args.kwonlyargs]:
        if item.arg in run_options() - {"max_tokens"}:
            c.report(
                "SGL602",
                item,
                f"parameter {item.arg!r} has the name of a run option: run({item.arg}=...) gives it to the program "
                "and you cannot set the option (in sglang the option gets it and the argument is missing); rename it",
            )


def check_decorated(c: CheckContext, function: FunctionValue, node: ast.Attribute) -> None:
    """`function.run` and its like need a program."""
    if function.is_program or node.attr not in RUNNERS or isinstance(function.node, ast.Lambda):
        return
    spec = function.node.args
    if spec.args and spec.args[0].arg == "s" and function.name in c.names.language_functions:
        c.report(
            "SGL604",
            node,
            f"{function.name} is not a program: put @sgl.function above its def in line {function.node.lineno}",
        )


def run_options() -> frozenset[str]:
    """All keywords of `run` that are not the program's own."""
    return frozenset(RUN_NAMES | _SWITCHES | _RUN_EXTRA)


def batch_options() -> frozenset[str]:
    return frozenset(batch_runs.OPTION_NAMES | _BATCH_EXTRA | _RUN_EXTRA)


# --- running -----------------------------------------------------------------------------------------------


def run(
    c: CheckContext, program: FunctionValue, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    """`program(...)`, `program.run(...)`: the finished state."""
    assert isinstance(program.node, AnyFunctionDef)
    escape(arguments.all(), env)
    own = signature(program.node)
    options = {name: value for name, value in arguments.named.items() if name not in own.names}
    _check_names(c, program, own, node, options, run_options())
    _check_count(c, program, own, node, arguments)
    check_values(c, "run", options, _places(node), node)
    return c.finished_state(program, env)


def _places(node: ast.Call) -> dict[str, ast.AST]:
    return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}


def _check_names(
    c: CheckContext, program: FunctionValue, own: ProgramSignature, node: ast.Call, given: Any, options: frozenset[str]
) -> None:
    if own.more_named:
        return
    for keyword in node.keywords:
        if keyword.arg in given and keyword.arg not in options:
            c.report(
                "SGL603",
                keyword,
                f"{program.name} has no parameter {'and run no option ' if options else ''}{keyword.arg!r}"
                f"{hint(keyword.arg or '', own.names | options)}",
            )


def _check_count(
    c: CheckContext, program: FunctionValue, own: ProgramSignature, node: ast.Call, arguments: CallArguments
) -> None:
    if not arguments.whole:
        return
    count = len(arguments.positional)
    if count > len(own.positional) and not own.more_positional:
        c.report(
            "SGL603",
            node,
            f"{program.name} takes {len(own.positional)} arguments after s, not {count}: {_listed(own.positional)}",
        )
    given = {*own.positional[:count], *arguments.named, *(program.bound or ())}
    if missing := sorted(own.required - given):
        c.report("SGL603", node, f"{program.name} needs {_listed(missing)}; give it to run, or bind it")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"


# --- methods -----------------------------------------------------------------------------------------------


def method(
    c: CheckContext, program: FunctionValue, name: str, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    """`program.name(...)`."""
    if not program.is_program:
        escape(arguments.all(), env)
        return ANY
    if name in ("run", "arun"):
        return run(c, program, node, arguments, env)
    if name in ("run_batch", "arun_batch"):
        return _run_batch(c, program, node, arguments, env)
    if name == "bind":
        return _bind(c, program, node, arguments, env)
    if name == "with_options":
        return _with_options(c, program, node, arguments, env)
    if name == "item":
        _item(c, program, node, arguments)
    escape(arguments.all(), env)
    return ANY


def _bind(
    c: CheckContext, program: FunctionValue, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    assert isinstance(program.node, AnyFunctionDef)
    own = signature(program.node)
    escape(arguments.all(), env)
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in own.names and not own.more_named:
            c.report(
                "SGL603",
                keyword,
                f"{program.name} has no parameter {keyword.arg!r} to bind{hint(keyword.arg, own.names)}",
            )
    bound = frozenset(arguments.named) if arguments.whole else own.names
    return FunctionValue(program.node, (program.bound or frozenset()) | bound, program.closure)


def _item(c: CheckContext, program: FunctionValue, node: ast.Call, arguments: CallArguments) -> None:
    assert isinstance(program.node, AnyFunctionDef)
    own = signature(program.node)
    _check_names(c, program, own, node, arguments.named, frozenset())
    _check_count(c, program, own, node, arguments)


def _with_options(
    c: CheckContext, program: FunctionValue, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    escape(arguments.all(), env)
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in run_options():
            c.report("SGL603", keyword, f"run has no option {keyword.arg!r}{hint(keyword.arg, run_options())}")
    check_values(c, "with_options", arguments.named, _places(node), node)
    return program


def _run_batch(
    c: CheckContext, program: FunctionValue, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    assert isinstance(program.node, AnyFunctionDef)
    own = signature(program.node)
    known = batch_options()
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in known:
            c.report("SGL603", keyword, f"run_batch has no option {keyword.arg!r}{hint(keyword.arg, known)}")
    check_values(c, "run_batch", arguments.named, _places(node), node)
    items = arguments.get(0, "batch_kwargs")
    if items is not None:
        for option in options_of(items):
            for item in _items(option):
                _check_item(c, program, own, item, node.args[0] if node.args else node)
        escape([items], env)
    if "return_exceptions" in arguments.named or not arguments.whole:
        return ANY
    return ListValue((c.finished_state(program, env),), complete=False)


def _items(value: AbstractValue) -> list[AbstractValue]:
    if isinstance(value, ListValue):
        return [option for item in value.items for option in options_of(item)]
    if isinstance(value, ConstantValue) and isinstance(value.value, list | tuple):
        return [ConstantValue(item) for item in value.value]
    return []


def _check_item(
    c: CheckContext, program: FunctionValue, own: ProgramSignature, item: AbstractValue, place: ast.AST
) -> None:
    """One item of a batch: a dict or a tuple of arguments."""
    if isinstance(item, ConstantValue) and isinstance(item.value, dict):
        item = DictValue(tuple(item.value))
    if isinstance(item, DictValue):
        _check_keys(c, program, own, item, place)
    elif isinstance(item, ListValue) and item.complete:
        _check_length(c, program, own, len(item.items), place)
    elif isinstance(item, ConstantValue) and isinstance(item.value, list | tuple):
        _check_length(c, program, own, len(item.value), place)
    elif isinstance(item, ConstantValue | TextPattern | GeneratedText):
        shown = repr(item.value) if isinstance(item, ConstantValue) else "text"
        c.report("SGL603", place, f"an item of the batch is {shown}; give a dict or a tuple of arguments")


def _check_keys(
    c: CheckContext, program: FunctionValue, own: ProgramSignature, item: DictValue, place: ast.AST
) -> None:
    for key in item.keys:
        if key not in own.names and not own.more_named:
            meant = hint(str(key), own.names)
            c.report("SGL603", place, f"an item has {key!r}, but {program.name} has no such parameter{meant}")
    if missing := sorted(own.required - set(item.keys) - (program.bound or frozenset())):
        c.report("SGL603", place, f"an item lacks {_listed(missing)}, which {program.name} needs")


def _check_length(c: CheckContext, program: FunctionValue, own: ProgramSignature, count: int, place: ast.AST) -> None:
    names = [name for name in own.positional if name not in (program.bound or ())]
    least = sum(name in own.required for name in names)
    if not least <= count <= len(own.positional) and not own.more_positional:
        c.report("SGL603", place, f"an item has {count} arguments, but {program.name} takes {_listed(names)}")
