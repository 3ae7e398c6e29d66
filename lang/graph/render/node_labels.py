"""What drawings write on a node, and of which kind it is."""

from __future__ import annotations

from ...nodes.ir import SglConstantText, SglExpr, SglGen, SglSelect, SglSeparateReasoning
from ...nodes.traced_nodes import SglArgument, SglConcateAndAppend, SglFork, SglGetForkItem, SglVariable
from ..trace_recording import SglGather

TEXT, GEN, SELECT, VARIABLE, ARGUMENT, FORK, OTHER = "text", "gen", "select", "variable", "argument", "fork", "other"
_KINDS: dict[type[SglExpr], str] = {
    SglConstantText: TEXT,
    SglGen: GEN,
    SglSelect: SELECT,
    SglVariable: VARIABLE,
    SglArgument: ARGUMENT,
    SglFork: FORK,
    SglGetForkItem: FORK,
    SglConcateAndAppend: FORK,
    SglGather: FORK,
}


def kind_of(node: SglExpr) -> str:
    return _KINDS.get(type(node), OTHER)


def label_of(node: SglExpr) -> str:
    """A short text. It has printable characters only."""
    if isinstance(node, SglConstantText):
        return repr(node.value)
    if isinstance(node, SglGen):
        return f"gen {node.name or ''}".strip()
    if isinstance(node, SglSelect):
        return f"select {node.name or ''} of {len(node.choices)}"
    if isinstance(node, SglVariable):
        return f"= {node.name}"
    if isinstance(node, SglArgument):
        return f"argument {node.name}"
    if isinstance(node, SglFork):
        return f"fork into {node.number}" + ("" if node.adapter is ... else f", adapter {node.adapter!r}")
    if isinstance(node, SglGetForkItem):
        return f"branch {node.index}"
    if isinstance(node, SglConcateAndAppend | SglGather):
        return "join texts" if isinstance(node, SglConcateAndAppend) else "join variables"
    return "thought" if isinstance(node, SglSeparateReasoning) else repr(node)


def printable(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def details_of(node: SglExpr) -> str:
    """What a reader sees when pointing at the node: all of it, and its place in the program."""
    return f"%{node.node_id} {node!r}" + (f"\n{node.where}" if node.where else "")
