"""The variables of one state: values, and the pieces of text whose value will come."""

from __future__ import annotations

from typing import Any

from ..concurrency.replay_feed import ReplayFeed
from ..errors import NeverMadeError, ProgramError, UnknownVariableError
from ..nodes.ir import SglExpr
from ..nodes.traced_nodes import SglVariable
from .state_transcript import PendingText, TextSpan, ThoughtText

Binding = PendingText | TextSpan | ThoughtText
Name = str | None  # None: the last gen without a name


def never_made(name: Name, why: BaseException) -> ProgramError:
    """The error of a read of a variable that no node made, because of an earlier error."""
    reason = why.message if isinstance(why, ProgramError) else f"{type(why).__name__}: {why}"
    error = NeverMadeError(f"{reason}; so variable {name!r} was never made", getattr(why, "where", None))
    error.__cause__ = why
    return error


class StateVariables:
    """Names with what was bound to them last. `names` shows readers in other threads what has arrived."""

    def __init__(self) -> None:
        self.names: ReplayFeed[str] = ReplayFeed()
        self._bindings: dict[Name, Binding] = {}
        self._values: dict[Name, Any] = {}
        self._nodes: dict[Name, SglExpr] = {}
        self._declared: dict[Name, None] = {}
        self._body_error: BaseException | None = None

    def copy(self) -> StateVariables:
        """For a fork: the same values, and the same pending pieces."""
        other = StateVariables()
        other._bindings, other._values = dict(self._bindings), dict(self._values)
        other._nodes, other._declared = dict(self._nodes), dict(self._declared)
        return other

    def bind(self, name: Name, binding: Binding) -> None:
        """From now on the name means what the piece will give."""
        self._bindings[name] = binding
        self._values.pop(name, None)
        self._tell(name)

    def set(self, name: Name, value: Any, node: SglExpr | None = None) -> None:
        """From now on the name means `value`, which `node` made, if that is known."""
        self._values[name] = value
        self._bindings.pop(name, None)
        self._nodes.pop(name, None)
        if node is not None:
            self._nodes[name] = node
        self._tell(name)

    def node_of(self, name: Name) -> SglExpr | None:
        """The node that makes or made the value of a name, if that is known."""
        binding = self._bindings.get(name)
        return self._nodes.get(name) if binding is None else binding.node

    def bind_error(self, name: str, error: ProgramError) -> None:
        """From now on reading the name raises the error."""
        piece = PendingText(SglVariable(name, None), error.where)
        piece.fail(error)
        self.bind(name, piece)

    def find(self, name: Name, wait: bool) -> Binding | None:
        """What is bound to a name, None for a plain value. KeyError if nothing is.

        `wait`: the body is still running in another thread and may bind the name later.
        """
        if wait and not self.knows(name):
            for declared in self.names:
                if declared == name:
                    break
        if name in self._values:
            return None
        if name not in self._bindings and self._body_error is not None:
            raise never_made(name, self._body_error)
        if name not in self._bindings:
            raise UnknownVariableError(name, self.declared())
        return self._bindings[name]

    def get(self, name: Name, wait: bool) -> Any:
        """The value. Waits for it; KeyError if there is none, ProgramError if its node failed."""
        binding = self.find(name, wait)
        return self._values[name] if binding is None else binding.get()

    def value(self, name: Name) -> Any:
        """The value of a name that is bound to a plain one."""
        return self._values[name]

    def knows(self, name: Name) -> bool:
        return name in self._values or name in self._bindings

    def declared(self) -> list[Name]:
        """All names, pending ones too, in the order in which they were first made."""
        return list(self._declared)

    def pending(self) -> dict[Name, Binding]:
        return dict(self._bindings)

    def ready(self) -> dict[Name, Any]:
        """The variables that have a value already."""
        ready = {n: b.value for n, b in self.pending().items() if b.done and b.error is None}
        return {**self._values, **ready}

    def close(self, body_error: BaseException | None) -> None:
        """The body has ended: no more names come."""
        self._body_error = body_error
        self.names.close()

    def _tell(self, name: Name) -> None:
        self._declared.setdefault(name)
        if name is not None:
            self.names.put(name)
