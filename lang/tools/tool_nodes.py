"""The nodes of a step with tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backend import Generated
from ..nodes.ir import SglExpr, SglExprList, SglGen
from ..sampling.constraint_match import matches_constraint
from ..sampling.options import SamplingOptions
from ..sampling.text_limits import at_limit
from ..typed.type_constraint import constrained, reject_constraints
from ..typed.typed_text_parsing import TypedTextParser
from .tool_calls import ToolCall, ToolCalls

if TYPE_CHECKING:
    from ..backend import Backend
    from .python_tool import Tool


class ToolSet(SglExprList, ABC):
    """Tools that a model may call, as the nodes of a step and an agent see them: a Toolbox."""

    tools: dict[str, Tool]

    @abstractmethod
    def call(self, name: str | None = None, choice: str = "auto", **options: Any) -> SglToolCall:
        """The node of a step: text or calls."""

    @abstractmethod
    def run(self, call: ToolCall, raise_errors: bool = False) -> Any:
        """Call the tool's function with checked arguments."""

    @abstractmethod
    def nodes_of(self, call: SglToolCall, backend: Backend) -> list[SglExpr] | None:
        """The nodes of a step that is more than one gen in the format of the backend's model, None for one gen."""

    @abstractmethod
    def chosen(self, choice: str) -> list[Tool]:
        """The tools that may be called."""

    @abstractmethod
    def grammar(self, choice: str, backend: Backend) -> str | None:
        """The structural tag of a step, None where a step is several nodes."""

    @abstractmethod
    def parse(self, text: str, backend: Backend) -> ToolCalls:
        """The calls in any text."""


class ToolCallsParser:
    """How the text of a `toolbox.call` becomes a ToolCalls, in the format of the backend's model."""

    copies = False

    def __init__(self, toolbox: ToolSet, choice: str) -> None:
        self.toolbox = toolbox
        self.choice = choice

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        reject_constraints(options, "tools")
        tag = self.toolbox.grammar(self.choice, backend)
        if tag is None:  # the nodes of the step are constrained one by one
            return options
        return constrained(options, backend, self.toolbox, {"structural_tag": tag}, whole=False)

    def read(self, text: str, backend: Backend) -> ToolCalls:
        found = self.toolbox.parse(text, backend)
        self.check(found, text)
        return found

    def is_cut(self, text: str, options: SamplingOptions, meta: Mapping[str, Any], backend: Backend) -> bool:
        """A call that a limit cut is not a call, and no required call is missing; the model's text may be cut."""
        if not at_limit(meta):
            return False
        if self.choice != "auto" and not self.toolbox.parse(text, backend):
            return True
        return breaks_off(text, self.toolbox.grammar(self.choice, backend))

    def check(self, found: ToolCalls, text: str) -> None:
        """Raise ValueError where a call was required and there is none."""
        wanted = self.choice in self.toolbox.tools
        names = {call.name for call in found}
        if self.choice != "auto" and (not names or (wanted and names != {self.choice})):
            expected = f"a call of {self.choice!r}" if wanted else "a call of a tool"
            raise ValueError(f"expected {expected}, but the text is {text!r}")


def breaks_off(text: str, tag: str | None) -> bool:
    """Whether the text follows the structural tag and ends within a call."""
    matcher = None if tag is None else matches_constraint(text, SamplingOptions(structural_tag=tag))
    return matcher is not None and not matcher.can_end


class SglToolCall(SglGen[ToolCalls]):
    """A step of the model that may call tools. Its nodes depend on the format of the backend's model."""

    free_turns = True
    reading: ToolCallsParser

    def __repr__(self) -> str:
        return f"ToolCall({self.name!r}, choice={self.reading.choice!r})"


@dataclass(frozen=True)
class StepContinuation:
    """What continues after an operation: text, and then a gen unless `options` is None."""

    text: str = ""
    options: SamplingOptions | None = None


class SglContinued(SglGen[ToolCalls]):
    """A gen that depends on what the operation before it gave."""

    def __init__(
        self,
        name: str | None,
        options: SamplingOptions,
        reading: TypedTextParser[ToolCalls],
        go_on: Callable[[Generated], StepContinuation],
    ) -> None:
        super().__init__(name, options, reading)
        self.go_on = go_on

    def __repr__(self) -> str:
        return f"ToolCall({self.name!r})"
