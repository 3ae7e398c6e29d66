"""Loops that only generated text can end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .abstract_values import StateRef, is_generated
from .check_context import CheckContext
from .check_environment import CheckEnvironment


def check_loop(c: CheckContext, loop: ast.While, env: CheckEnvironment) -> None:
    """Warn if every way out of the loop waits for the model to write something."""
    changed = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    endless = isinstance(loop.test, ast.Constant) and bool(loop.test.value)
    exits = list(_exits(loop.body, (), False))
    if not endless and not _by_model(c, loop.test, changed, env):
        return
    if endless and not exits:
        return
    if all(any_tests and all(_by_model(c, test, changed, env) for test in any_tests) for any_tests in exits):
        c.report(
            "SGL701",
            loop,
            "only generated text ends this loop, and a model may never write it; bound it: "
            "for _ in range(10): ... break",
        )


def _exits(body: list[ast.stmt], tests: tuple[ast.expr, ...], inner: bool) -> Iterator[tuple[ast.expr, ...]]:
    """The tests above each statement that leaves the loop."""
    for node in body:
        if isinstance(node, ast.Return | ast.Raise) or (isinstance(node, ast.Break) and not inner):
            yield tests
        elif isinstance(node, ast.If):
            yield from _exits(node.body, (*tests, node.test), inner)
            yield from _exits(node.orelse, (*tests, node.test), inner)
        elif isinstance(node, ast.For | ast.While | ast.AsyncFor | ast.Try | ast.Match):
            # what leaves through these is taken as a bound
            if any(isinstance(part, ast.Return | ast.Raise | ast.Break) for part in ast.walk(node)):
                yield ()
        elif isinstance(node, ast.With | ast.AsyncWith):
            yield from _exits(node.body, tests, inner)


def _by_model(c: CheckContext, test: ast.expr, changed: set[str], env: CheckEnvironment) -> bool:
    """Whether nothing but generated text makes the test true or false."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(_by_model(c, part, changed, env) for part in test.values)
    if isinstance(test, ast.BoolOp):
        return any(_by_model(c, part, changed, env) for part in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _by_model(c, test.operand, changed, env)
    if not is_generated(c.value_silently(test, env)):
        return False
    return not any(_may_count(c, node, changed, env) for node in ast.walk(test) if isinstance(node, ast.Name))


def _may_count(c: CheckContext, name: ast.Name, changed: set[str], env: CheckEnvironment) -> bool:
    """A name that the loop changes by something other than generated text."""
    value = c.value_silently(name, env)
    return name.id in changed and not is_generated(value) and not isinstance(value, StateRef)
