"""The arguments of a compiled program's runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentsError, nearest
from ..nodes.primitives import as_node
from ..nodes.traced_nodes import SglArgument
from ..program.program import Program
from .graph_plan import GraphPlan
from .trace_placeholders import placeholders


class CompiledParameters:
    """What a run of a compiled program must and may be given.

    `fixed` are defaults that the body used as values when it was traced: a run cannot change them any more.
    """

    def __init__(self, program: Program, fixed: Mapping[str, Any], plan: GraphPlan) -> None:
        self.program = program
        self.fixed = fixed
        nodes = (step.node for step in plan.appended())
        self._texts = {part.name for part in nodes if isinstance(part, SglArgument)}
        self._used = {p.name for step in plan.appended() for p in placeholders(step.node)} | self._texts
        parameters = inspect.signature(program.func).parameters
        bound = program.bind_arguments
        self.names = [name for name in program.parameter_names if name not in bound]
        self.defaults = {
            name: parameters[name].default
            for name in self.names
            if parameters[name].default is not inspect.Parameter.empty
        }

    def positional(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> dict[str, Any]:
        """Positional arguments by their names, with the keyword arguments."""
        names = self.program.arg_names
        if len(args) > len(names):
            raise ArgumentsError(f"{self.program.__name__} takes {len(names)} arguments, {len(args)} were given")
        by_name = dict(zip(names, args, strict=False))
        for name in by_name.keys() & given.keys():
            raise ArgumentsError(f"{self.program.__name__} was given two values of {name!r}")
        return {**by_name, **given}

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a run, defaults included. Raises ArgumentsError, and BadValueError for non-texts."""
        for name, value in given.items():
            self._check(name, value)
        missing = [name for name in self.names if name not in given and name not in self.defaults]
        if missing:
            raise ArgumentsError(f"{self.program.__name__} needs the argument {sorted(missing)[0]!r}")
        arguments = {**self.defaults, **given}
        for name in self._texts & arguments.keys():
            as_node(arguments[name])
        return arguments

    def _check(self, name: str, value: Any) -> None:
        title = self.program.__name__
        if name in self.program.bind_arguments:
            raise ArgumentsError(f"{name!r} of {title} was fixed by compile() or bind(); runs cannot change it")
        if name not in self.names:
            raise ArgumentsError(f"{title} has no parameter {name!r}; {nearest(name, self.names)}")
        if name in self.fixed and value != self.fixed[name]:
            raise ArgumentsError(
                f"{title} was compiled with {name}={self.fixed[name]!r}, as its body needs the value: use "
                f"compile({name}={value!r})"
            )

    def examples(self) -> dict[str, Any]:
        """Arguments with which the program's operations can be counted."""
        return {name: self.defaults.get(name, name) for name in self.names}
