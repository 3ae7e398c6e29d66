"""The nodes of a program. They are plain values: running or tracing one changes nothing of it but `taken`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

from ..errors import TextOfNodeError, shown
from ..places.source_location import SourceLocation
from ..sampling.choices import ChoicesSamplingMethod
from ..sampling.options import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR, SamplingOptions
from ..typed.typed_text_parsing import TypedTextParser
from .pickle_placeholders import kept
from .unused_expression_warning import warn_if_dropped

SglSamplingParams = SamplingOptions
Value_co = TypeVar("Value_co", covariant=True)

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "SglAdapterBegin",
    "SglAdapterEnd",
    "SglCommitLazy",
    "SglConstantText",
    "SglExpr",
    "SglExprList",
    "SglGen",
    "SglImage",
    "SglPastCalls",
    "SglRoleBegin",
    "SglRoleEnd",
    "SglSamplingParams",
    "SglSelect",
    "SglSeparateReasoning",
    "SglSeparated",
    "SglSubmitted",
    "SglTools",
    "SglVarScopeBegin",
    "SglVarScopeEnd",
    "SglVideo",
    "TypedTextParser",
    "flatten",
    "print_graph",
]


_USERS = ("reading", "choices_method", "toolbox", "go_on", "path")  # attributes that hold what programs define


class SglExpr:
    """Base of all nodes. `+` joins nodes and strings from left to right.

    `node_id`, `prev_node`, `source` and `where` are set in the graph of a trace, on a copy of the node.
    """

    node_id: int | None = None
    where: SourceLocation | None = None
    stands_alone = False  # True for forks and their like, which add no text
    prev_node: SglExpr | None = None
    source: SglExpr | None = None
    taken = False  # True once it was appended to something
    _hint = ""

    def __add__(self, other: Any) -> SglExprList:
        return SglExprList([*_parts(self, None), *_parts(other, self)])

    def __radd__(self, other: Any) -> SglExprList:
        return SglExprList([*_parts(other, self), *_parts(self, None)])

    def __str__(self) -> str:
        self._no_text()

    def __format__(self, spec: str) -> str:
        self._no_text()

    def _no_text(self) -> NoReturn:
        raise TextOfNodeError(
            f"{self!r} was used as a string (in an f-string, str() or print()), but it has no text before the "
            f'program runs. Append it with + instead: s += "..." + node + "..."{self._hint}'
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: what of the node cannot be pickled, such as a type that a function defines, is lost by name."""
        return {name: kept(value) if name in _USERS else value for name, value in self.__dict__.items()}

    def __copy__(self) -> Self:
        duplicate = object.__new__(type(self))
        duplicate.__dict__.update(self.__dict__)
        return duplicate

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def placed(self, node_id: int, prev: SglExpr | None) -> SglExpr:
        """A copy of this node at a place of a traced graph."""
        node = copy(self)
        node.node_id, node.prev_node = node_id, prev
        return node

    @property
    def predecessors(self) -> list[SglExpr]:
        """The nodes of the graph that this one depends on directly."""
        return [node for node in (self.prev_node, self.source) if node is not None]

    def print_graph_dfs(self) -> str:
        """The graph that leads to this node, a line for each node, predecessors first."""
        return print_graph(self)


class SglAppendable(SglExpr):
    """What is meant to be appended: it warns where a line makes it and does nothing with it."""

    def __del__(self) -> None:
        if not self.taken:
            warn_if_dropped(self)


class SglExprList(SglAppendable):
    """Several nodes, one after another."""

    def __init__(self, expr_list: Iterable[SglExpr | str]) -> None:
        self.expr_list = [SglConstantText(part) if isinstance(part, str) else part for part in expr_list]

    def __enter__(self) -> NoReturn:
        raise TextOfNodeError("an expression is no block; the state opens one: with s.user(): or with s.assistant():")

    def __exit__(self, *error: object) -> None:
        """Never called."""

    def __del__(self) -> None:
        if not self.taken:
            for part in self.__dict__.get("expr_list", ()):  # which die with it, and need not say so too
                part.taken = True
            warn_if_dropped(self)

    def __repr__(self) -> str:
        return f"ExprList({self.expr_list})"


class SglSubmitted(SglExpr):
    """What `s.user(...)` returns: it is already part of `owner`, where appending it again adds nothing."""

    def __init__(self, expr: SglExpr, owner: object) -> None:
        self.expr = expr
        self.owner = owner

    def __repr__(self) -> str:
        return repr(self.expr)


class SglConstantText(SglExpr):
    """A literal piece of text. A `QuotedText` says which parts come from outside; for another str its place does."""

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Constant({self.value!r})"


class SglGen(SglAppendable, Generic[Value_co]):
    """Text that the model writes, bound to the variable `name`. `reading` is what `s.get` makes of it.

    free_turns: only a run knows which turns it has.
    """

    free_turns: ClassVar[bool] = False

    def __init__(
        self, name: str | None, sampling_params: SamplingOptions, reading: TypedTextParser[Value_co] | None = None
    ) -> None:
        self.name = name
        self.sampling_params = sampling_params
        self.reading = reading

    def __repr__(self) -> str:
        return f"Gen({self.name!r})"


class SglSelect(SglAppendable, Generic[Value_co]):
    """One of several texts, the one that the model finds most likely.

    `about` has the definitions that came with the choices; `reading` tells what `s.get` makes of the text, None: it
    stays text.
    """

    def __init__(
        self,
        name: str | None,
        choices: list[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod,
        reading: TypedTextParser[Value_co] | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.reading = reading
        self.about = dict(about or {})
        self.choices = choices
        self.temperature = temperature
        self.choices_method = choices_method

    def __repr__(self) -> str:
        return f"Select({self.name}, choices={shown(self.choices)}, choices_method={self.choices_method})"


class SglRoleBegin(SglExpr):
    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"RoleBegin({self.role})"


class SglRoleEnd(SglExpr):
    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"RoleEnd({self.role})"


class SglImage(SglExpr):
    """A picture: a path, a URL, bytes or a PIL image."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"SglImage({_short(self.path)})"


class SglVideo(SglExpr):
    """A film, shown to the model as `num_frames` of its frames."""

    def __init__(self, path: Any, num_frames: int) -> None:
        self.path = path
        self.num_frames = num_frames

    def __repr__(self) -> str:
        return f"SglVideo({_short(self.path)}, {self.num_frames})"


class SglSeparateReasoning(SglExpr):
    """An expression whose named gens are split into what the model thought and what it said.

    The thought of gen `x` is the variable `x_reasoning_content`; the text of the state keeps the answer only.
    """

    def __init__(self, model_type: str | None, expr: SglExpr) -> None:
        self.model_type = model_type
        self.expr = expr

    @property
    def name(self) -> str | None:
        """The variable of the (first) thought."""
        named = (part.name for part in flatten(self.expr) if isinstance(part, SglGen | SglSelect))
        return next((self.process_name_for_reasoning(name) for name in named if name), None)

    @staticmethod
    def process_name_for_reasoning(name: str) -> str:
        """The variable of what the gen `name` thought."""
        return f"{name}_reasoning_content"

    def __repr__(self) -> str:
        return f"SeparateReasoning(model_type={self.model_type}, name={self.name})"


class SglSeparated(SglExprList):
    """What `separate_reasoning` gives. It reads as [expression, SeparateReasoning]; the second runs the first."""

    def __init__(self, model_type: str | None, expr: SglExpr) -> None:
        self.separation = SglSeparateReasoning(model_type, expr)
        super().__init__([expr, self.separation])


class SglTools(SglExpr):
    """The descriptions of tools, written as the model's format wants them. `toolbox` is what `sgl.tools` gave."""

    def __init__(self, toolbox: Any) -> None:
        self.toolbox = toolbox

    def __repr__(self) -> str:
        return f"Tools({self.toolbox!r})"


class SglPastCalls(SglExpr):
    """Calls of tools that were made earlier, and what was said with them, as the model's format writes them.

    `calls` are ToolCalls; `format` is a ToolFormat, None: that of the backend's model.
    """

    def __init__(self, text: str, calls: list[Any], format: Any = None) -> None:
        self.text = text
        self.calls = calls
        self.format = format

    def __repr__(self) -> str:
        return f"PastCalls({self.text!r}, {self.calls})"


class SglCommitLazy(SglExpr):
    """Have the text so far computed. Old programs' forks queued it; ours need nothing of the kind."""

    def __repr__(self) -> str:
        return "CommitLazy()"


class SglAdapterBegin(SglExpr):
    """From here on the adapter `name` computes the state, None: the base. Up to the next `SglAdapterEnd`."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"AdapterBegin({self.name!r})"


class SglAdapterEnd(SglExpr):
    def __repr__(self) -> str:
        return "AdapterEnd()"


class SglVarScopeBegin(SglExpr):
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"VarScopeBegin({self.name!r})"


class SglVarScopeEnd(SglExpr):
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"VarScopeEnd({self.name!r})"


def flatten(expr: SglExpr, owner: object = None) -> Iterator[SglExpr]:
    """The nodes of an expression, lists opened, in order; without those that `owner` has already."""
    expr.taken = True
    if isinstance(expr, SglSeparated):
        yield expr.separation
    elif isinstance(expr, SglExprList):
        for part in expr.expr_list:
            yield from flatten(part, owner)
    elif not isinstance(expr, SglSubmitted):
        yield expr
    elif expr.owner is not owner:
        yield from flatten(expr.expr, owner)


def print_graph(last: SglExpr) -> str:
    """One line for each node that `last` depends on, predecessors first: `%id = %prev + Node`."""
    lines: list[str] = []
    seen: set[int] = set()
    stack: list[tuple[SglExpr, bool]] = [(last, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            lines.append(graph_line(node))
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(before, False) for before in reversed(node.predecessors)]
    return "\n".join(lines) + "\n"


def graph_line(node: SglExpr) -> str:
    """`%id = %prev + Node`; without the node before it at the start of a state and for forks."""
    if node.prev_node is None or node.stands_alone:
        return f"%{node.node_id} = {node!r}"
    return f"%{node.node_id} = %{node.prev_node.node_id} + {node!r}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parts(value: Any, other: SglExpr | None) -> list[SglExpr]:
    if isinstance(value, SglExprList) and not isinstance(value, SglSeparated):
        return value.expr_list
    if isinstance(value, SglExpr):
        return [value]
    if isinstance(value, str):
        return [SglConstantText(value)]
    raise TextOfNodeError(f"{value!r} cannot be joined with {other!r}: join strings and nodes only")
