"""Jinja's sandbox with a budget: loops, calls, filters, operators and the joining of texts are counted as they run.

Nothing that can be large is computed while a template is compiled. What makes lists is weighed when it makes them, so
no list that a template holds is larger than it may be, and whatever reads one is short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, _PassArg
from jinja2.visitor import NodeTransformer

from . import template_value_sizes as sizes
from .template_render_budget import RenderBudget, is_flow, weight_given

STEP, MADE, TEXT = "a step", "a container", "a text"  # filters that no template can spell
WITHOUT = ("wordwrap", "urlize", "xmlattr", "pprint", "striptags")  # filters for web pages, slow on long texts
SCOPES = ("_loop_vars", "_block_vars")  # what jinja hands on with every call


class _Plain(Namespace):
    """Its text is short, whatever it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training. Its body is a scope, as in transformers."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Renders within `spending`; several threads may at once."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, filters: Mapping[str, Callable[..., Any]], names: Mapping[str, Any]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._current = threading.local()
        found = {name: each for name, each in self.filters.items() if name not in WITHOUT} | dict(filters)
        self.filters = {name: self._counted(name, each) for name, each in found.items()}
        self.filters |= {STEP: self._step, MADE: self._made, TEXT: self._text}
        del self.globals["lipsum"]
        self.globals.update(names, namespace=_Plain)

    @contextmanager
    def spending(self, given: Any) -> Iterator[None]:
        """The budget for rendering `given`."""
        before = getattr(self._current, "budget", None)
        self._current.budget = RenderBudget(weight_given(given))
        try:
            yield
        finally:
            self._current.budget = before

    @property
    def budget(self) -> RenderBudget:
        found: RenderBudget = self._current.budget
        return found

    # what compiled templates call

    def concat(self, pieces: Iterable[str]) -> str:
        """The text of a rendering, a macro or a block."""
        budget, size, found = self.budget, 0, list[str]()
        for piece in pieces:
            budget.step()
            size += len(piece)
            budget.allow(size)
            found.append(piece)
        text: str = budget.made("".join(found))
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        budget.step()
        if operator == "+" and type(left) is type(right) and isinstance(left, list | tuple):
            return budget.joined(left, right)
        budget.allow(sizes.of_operator(budget, operator, left, right))
        return budget.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = self.budget
        budget.step()
        args = tuple(list(budget.each(arg)) if is_flow(arg) else arg for arg in args)
        given = {name: arg for name, arg in kwargs.items() if name not in SCOPES}
        for arg in (*args, *given.values()):
            budget.weigh(arg)
        method = getattr(obj, "__wrapped__", obj)  # of a text's format
        if isinstance(getattr(method, "__self__", None), sizes.PLAIN):
            budget.allow(sizes.of_method(budget, method, args, given))
        return budget.made(super().call(context, obj, *args, **kwargs))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter, counted. That it is given the context keeps jinja from computing it while it compiles."""
        passed = _PassArg.from_obj(function)

        @pass_context
        def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.step()
            if is_flow(value) and name == "join":
                value = list(value)
            budget.allow(sizes.of_filter(budget, name, value, args, kwargs))
            before = {
                _PassArg.context: (context,),
                _PassArg.eval_context: (context.eval_ctx,),
                _PassArg.environment: (self,),
            }
            return budget.made(function(*(before[passed] if passed else ()), value, *args, **kwargs))

        return run

    @pass_context
    def _step(self, context: Context, value: Any) -> Any:
        self.budget.step()
        return value

    @pass_context
    def _made(self, context: Context, value: Any) -> Any:
        return self.budget.made(value)

    @pass_context
    def _text(self, context: Context, parts: list[Any]) -> Any:
        """The parts of `a ~ b`, as one text."""
        budget = self.budget
        budget.step(len(parts))
        budget.allow(sum(budget.weigh(part).bytes for part in parts))
        return budget.made("".join(map(str, parts)))

    # how templates are compiled

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        counted = _Counting().visit(source)
        counted.set_environment(self)
        return super()._generate(counted, name, filename, defer_init)


class _Counting(NodeTransformer):
    """Puts the sandbox's own filters into a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        step = _filtered(nodes.Const(True, lineno=node.lineno), STEP)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(step, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), TEXT)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE) if node.ctx == "load" else node


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
